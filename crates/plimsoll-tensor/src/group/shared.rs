//! How the ranks of a group open each other's memory: [`ProcessGroup::empty_shared`].

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_cuda::{Carrier, Exported, Gpu, PeerCopies};
use plimsoll_gpu::named;

use super::ProcessGroup;
use super::memory::Copies;
use crate::capturing;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// The label of the exchange in messages.
const LABEL: &str = "shared memory";

impl ProcessGroup {
    /// A tensor without initial values in memory that the other ranks can read. On GPUs of one host, copy engines
    /// run all-gathers into it and all-to-alls from it on the group's [stream](ProcessGroup::stream), without taking
    /// multiprocessors from kernels, and without NCCL's buffers. All ranks must call this, with the same shape and type.
    /// Like `torch.distributed._symmetric_memory.empty` with `rendezvous`.
    ///
    /// `PLIMSOLL_PEER_COPIES=0` turns the copies off; so does a rank on another host, or a GPU that cannot read the
    /// others' memory.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Device, ProcessGroup};
    /// let alone = ProcessGroup::threads(1).remove(0);
    /// assert_eq!(alone.empty_shared(&[2, 3], DType::F32, &Device::cpu())?.shape(), [2, 3]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Tensor::empty`], during a capture, or [`Error::Distributed`](crate::Error::Distributed).
    pub fn empty_shared(&self, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        if self.size() == 1 {
            return Tensor::empty(shape, dtype, device);
        }
        let why = "other ranks open its memory: make it before the capture";
        capturing::refuse(device.number(), "empty_shared", why)?;
        let tensor = self.0.shared.memory.within(device, || Tensor::empty(shape, dtype, device))?;
        let begin = tensor.data_ptr();
        let region = begin..begin + (tensor.numel() * dtype.size()) as u64;
        match device.gpu() {
            _ if region.is_empty() => {}
            Some(gpu) => self.register(gpu, device, region)?,
            None if !device.has_values() && self.would_copy(device) => {
                self.0.shared.memory.add(self.0.number, region);
            }
            None => {}
        }
        Ok(tensor)
    }

    /// Whether the GPUs that a simulated group stands for could read each other's memory.
    fn would_copy(&self, device: &Device) -> bool {
        let gpu = named(&device.properties().name).ok();
        is_wanted()
            && self.0.hosts.hosts == 1
            && gpu.is_some_and(|gpu| gpu.bandwidth.nvlink_bytes_per_s.is_some())
    }

    /// Lets all ranks read this memory, if they can.
    fn register(&self, gpu: &Arc<Gpu>, device: &Device, region: Range<u64>) -> Result<()> {
        if matches!(self.0.peers().copies, Copies::Unknown) {
            let copies = self.join_peers(gpu, device)?;
            self.0.peers().copies = copies;
        }
        let Some(copies) = self.0.peers().copies() else { return Ok(()) };
        let exported = copies.export(region.start);
        let own = exported.as_ref().map_or([0; 72], Exported::to_bytes);
        let all = self.all_gather_bytes(&[&own[..], &[u8::from(exported.is_ok())]].concat(), LABEL)?;
        let all: Option<Vec<Exported>> =
            all.iter().map(|rank| Exported::from_bytes(&rank[..72]).filter(|_| rank[72] == 1)).collect();
        let bytes = region.end - region.start;
        let is_open = all.is_some_and(|all| copies.register(region.start, bytes, &all).is_ok());
        if self.all_agree(is_open)? {
            self.0.shared.memory.add(self.0.number, region);
        } else {
            self.0.peers().stop();
        }
        Ok(())
    }

    /// Opens the flags that the ranks share.
    fn join_peers(&self, gpu: &Gpu, device: &Device) -> Result<Copies> {
        const PATH_BYTES: usize = 64;
        let (rank, size) = (self.rank(), self.size());
        let file = (rank == 0 && is_wanted()).then(|| Temporary::new(size)).flatten();
        let mut path = [0; PATH_BYTES];
        if let Some(Temporary(name)) = &file {
            path[..name.len()].copy_from_slice(name.as_bytes()); // at most 45 bytes
        }
        // Without a file, this is the empty path.
        let path = self.all_gather_bytes(&path, LABEL)?.swap_remove(0);
        let path = PathBuf::from(String::from_utf8_lossy(&path).trim_end_matches('\0'));
        let joined = is_wanted().then(|| gpu.join_peers(&path, rank, size).ok()).flatten();
        Ok(match (self.all_agree(joined.is_some())?, joined) {
            (true, Some(copies)) => {
                let copies = Arc::new(copies);
                self.0.shared.watch.add(device, &Carrier::Peers(Arc::clone(&copies)));
                Copies::Ready(copies)
            }
            _ => Copies::Impossible,
        })
    }

    fn all_agree(&self, own: bool) -> Result<bool> {
        Ok(self.all_gather_bytes(&[u8::from(own)], LABEL)?.iter().all(|rank| rank[0] == 1))
    }
}

/// Whether copies are allowed: the user has not turned them off.
fn is_wanted() -> bool {
    std::env::var_os("PLIMSOLL_PEER_COPIES").is_none_or(|value| value != "0")
}

/// The file of a group's flags, which is removed when this is dropped. Ranks that have mapped it keep it.
struct Temporary(String);

impl Temporary {
    /// Makes the file; `None` if that fails.
    fn new(size: usize) -> Option<Temporary> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let name = format!("/dev/shm/plimsoll-{}-{now:x}", std::process::id());
        PeerCopies::make_flags(name.as_ref(), size).ok().map(|()| Temporary(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
