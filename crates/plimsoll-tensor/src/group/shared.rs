//! Memory that the other ranks of a group can read: [`SharedMemory`] and [`Peers`].
//!
//! It is in a pool of its own, whose segments are single allocations of the device, because other processes can only
//! open those. On a simulated device, the same memory is requested.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_alloc::Pool;
use plimsoll_cuda::{Carrier, Exported, Gpu, PeerCopies};
use plimsoll_gpu::named;

use super::ProcessGroup;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What messages call the exchange of addresses.
const LABEL: &str = "shared memory";

/// The pools of a rank's shared memory, one for each device.
#[derive(Debug, Default)]
pub(super) struct SharedMemory(Mutex<Vec<(usize, Arc<Pool>)>>);

impl SharedMemory {
    /// Runs `f`, whose memory is shared memory of a device.
    fn within<T>(&self, device: &Device, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |source| Error::Allocator { device: device.name().to_owned(), source };
        let pool = {
            let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = pools.iter().find(|(number, _)| *number == device.number());
            match known {
                Some((_, pool)) => Arc::clone(pool),
                None => {
                    let pool = device.memory().new_pool().map_err(failed)?;
                    device.memory().set_plain(pool.id());
                    let pool = Arc::new(pool);
                    pools.push((device.number(), Arc::clone(&pool)));
                    pool
                }
            }
        };
        let _served = pool.use_here().map_err(failed)?;
        f()
    }
}

/// The memory that the ranks of one group can read, on this rank.
#[derive(Debug, Default)]
pub(super) struct Peers {
    regions: Vec<Range<u64>>,
    copies: Copies,
}

/// The copy engines of a group.
#[derive(Debug, Default)]
enum Copies {
    #[default]
    Unknown,
    /// Not all ranks can read each other's memory.
    Impossible,
    Ready(Arc<PeerCopies>),
}

impl Peers {
    /// Whether all of a tensor is shared memory.
    pub(super) fn have(&self, tensor: &Tensor) -> bool {
        if self.regions.is_empty() {
            return false;
        }
        let (begin, bytes) = (tensor.data_ptr(), (tensor.numel() * tensor.dtype().size()) as u64);
        self.regions.iter().any(|region| region.start <= begin && begin + bytes <= region.end)
    }

    pub(super) fn copies(&self) -> Option<Arc<PeerCopies>> {
        match &self.copies {
            Copies::Ready(copies) => Some(Arc::clone(copies)),
            Copies::Unknown | Copies::Impossible => None,
        }
    }

    fn add(&mut self, new: Range<u64>) {
        self.regions.retain(|region| region.end <= new.start || new.end <= region.start);
        self.regions.push(new);
    }
}

impl ProcessGroup {
    /// A tensor without initial values in memory that the other ranks can read. On GPUs of one host, all-gathers of it
    /// and all-to-alls from it are copies by copy engines, which take no multiprocessors from kernels and no buffers of
    /// NCCL. All ranks must call this, with the same shape and type. Like `torch.distributed._symmetric_memory.empty`
    /// with `rendezvous`.
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
    /// The errors of [`Tensor::empty`]; or [`Error::Distributed`].
    pub fn empty_shared(&self, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        let is_gpu = device.gpu().is_some() || !device.has_values();
        if self.size() == 1 || !is_gpu {
            return Tensor::empty(shape, dtype, device);
        }
        let tensor = self.0.shared.memory.within(device, || Tensor::empty(shape, dtype, device))?;
        let begin = tensor.data_ptr();
        let region = begin..begin + (tensor.numel() * dtype.size()) as u64;
        match device.gpu() {
            _ if region.is_empty() => {}
            Some(gpu) => self.register(gpu, device, region)?,
            None if self.would_copy(device) => self.0.peers().add(region),
            None => {}
        }
        Ok(tensor)
    }

    /// Whether the GPUs that a simulated group stands for could read each other's memory.
    fn would_copy(&self, device: &Device) -> bool {
        let gpu = named(&device.properties().name).ok();
        self.0.hosts.hosts == 1 && gpu.is_some_and(|gpu| gpu.bandwidth.nvlink_bytes_per_s.is_some())
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
        let others: Option<Vec<Exported>> =
            all.iter().map(|rank| Exported::from_bytes(&rank[..72])).collect();
        let have_exported = all.iter().all(|rank| rank[72] == 1);
        let bytes = region.end - region.start;
        let opened =
            have_exported && others.is_some_and(|all| copies.register(region.start, bytes, &all).is_ok());
        if self.all_agree(opened)? {
            self.0.peers().add(region);
        } else {
            self.0.peers().copies = Copies::Impossible;
        }
        Ok(())
    }

    /// Opens the flags that the ranks share.
    fn join_peers(&self, gpu: &Gpu, device: &Device) -> Result<Copies> {
        const PATH_BYTES: usize = 64;
        let (rank, size) = (self.rank(), self.size());
        let is_wanted = std::env::var_os("PLIMSOLL_PEER_COPIES").is_none_or(|value| value != "0");
        let mut path = [0; PATH_BYTES];
        if rank == 0 && is_wanted {
            let name = format!("/dev/shm/plimsoll-{}-{:x}", std::process::id(), rand_name());
            let is_made = name.len() <= PATH_BYTES && PeerCopies::make_flags(name.as_ref(), size).is_ok();
            if is_made {
                path[..name.len()].copy_from_slice(name.as_bytes());
            }
        }
        let all = self.all_gather_bytes(&path, LABEL)?;
        let name = String::from_utf8_lossy(&all[0]).trim_end_matches('\0').to_owned();
        let path = PathBuf::from(&name);
        let joined =
            (is_wanted && !name.is_empty()).then(|| gpu.join_peers(&path, rank, size).ok()).flatten();
        let all_joined = self.all_agree(joined.is_some());
        if rank == 0 && !name.is_empty() {
            // Whoever opened it keeps it.
            let _ = std::fs::remove_file(&path);
        }
        Ok(match (all_joined?, joined) {
            (true, Some(copies)) => {
                let copies = Arc::new(copies);
                self.0.shared.watch(device, &Carrier::Peers(Arc::clone(&copies)));
                Copies::Ready(copies)
            }
            _ => Copies::Impossible,
        })
    }

    fn all_agree(&self, own: bool) -> Result<bool> {
        Ok(self.all_gather_bytes(&[u8::from(own)], LABEL)?.iter().all(|rank| rank[0] == 1))
    }
}

/// A number that another process does not choose.
fn rand_name() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
