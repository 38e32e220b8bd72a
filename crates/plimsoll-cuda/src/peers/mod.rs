//! Collectives by copy engines, between GPUs of one host: [`PeerCopies`].
//!
//! NCCL's kernels need multiprocessors, so they wait until a running matrix product ends. Copy engines need none. NCCL
//! also needs its own buffers; here there are none, because each rank reads directly from the memory of the others.
//!
//! `actions.rs` says what a rank does in a collective.
//!
//! Note [Flags of peers]. Two flags for each pair of ranks are in host memory that all ranks map. In a collective, a
//! rank first sets `ready` for each other rank: its bytes may be read. It then waits for the `ready` of all others,
//! copies their bytes, and sets `done` for each. It ends when all ranks are done with its own bytes. Streams set flags
//! and wait for them, so the host does not wait. A rank clears a flag when it has waited for it, so that a captured
//! collective can be launched again. A flag is never set twice without a wait in between: rank r sets `ready` of the
//! next collective after rank s was done with the last one, and s cleared `ready` before it was done.

mod actions;

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::collective::Collective;
use crate::driver::{Driver, Handle};
use crate::error::{CudaError, Result};
use crate::library::functions;
use actions::{Action, Flag, actions};

functions! {
    /// The driver's functions for memory of other processes, and for flags, under the names that the library exports.
    Functions {
        cuIpcGetMemHandle(*mut IpcHandle, u64);
        cuIpcOpenMemHandle_v2(*mut u64, IpcHandle, c_uint);
        cuMemGetAddressRange_v2(*mut u64, *mut usize, u64);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint);
        cuStreamBatchMemOp_v2(Handle, c_uint, *mut FlagStep, c_uint);
    }
}

/// `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct IpcHandle([u8; 64]);

/// `CUstreamBatchMemOpParams`: a stream waits for a flag, or sets it.
#[repr(C)]
pub(crate) struct FlagStep {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    unused: u64,
}

const _: () = assert!(size_of::<FlagStep>() == 48);

/// The most steps that the driver takes in one call.
const MOST_FLAG_STEPS: usize = 256;

impl FlagStep {
    /// Waits until a flag is set.
    fn wait(address: u64) -> FlagStep {
        const WAIT_VALUE_32: c_uint = 1;
        /// `CU_STREAM_WAIT_VALUE_EQ`.
        const EQUAL: c_uint = 1;
        FlagStep { operation: WAIT_VALUE_32, address, value: 1, flags: EQUAL, alias: 0, unused: 0 }
    }

    fn set(address: u64, value: u64) -> FlagStep {
        const WRITE_VALUE_32: c_uint = 2;
        FlagStep { operation: WRITE_VALUE_32, address, value, flags: 0, alias: 0, unused: 0 }
    }
}

/// Bytes between two flags, so that each has its own cache line.
const FLAG_BYTES: usize = 64;

/// Memory of a rank that other ranks of the host may open.
///
/// ```
/// use plimsoll_cuda::Exported;
/// let exported = Exported { handle: [7; 64], offset: 512 };
/// assert_eq!(Exported::from_bytes(&exported.to_bytes()), Some(exported));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The offset of the memory in the allocation, in bytes.
    pub offset: u64,
}

impl Exported {
    /// As bytes, to send to other ranks.
    pub fn to_bytes(&self) -> [u8; 72] {
        let mut bytes = [0; 72];
        bytes[..64].copy_from_slice(&self.handle);
        bytes[64..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// From what [`Exported::to_bytes`] returned; `None` if the number of bytes is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Exported> {
        let (handle, offset) = bytes.split_first_chunk::<64>()?;
        Some(Exported { handle: *handle, offset: u64::from_le_bytes(offset.try_into().ok()?) })
    }
}

/// The flags, in a file that all ranks map.
struct Flags {
    at: *mut c_void,
    bytes: usize,
    size: usize,
}

// SAFETY: the memory is shared with the device and other processes anyway; all access is atomic.
unsafe impl Send for Flags {}
// SAFETY: as above.
unsafe impl Sync for Flags {}

impl Flags {
    fn bytes_for(size: usize) -> usize {
        ((2 * size * size + 1) * FLAG_BYTES).next_multiple_of(4096)
    }

    /// Maps the file.
    fn map(file: &File, size: usize) -> Option<Flags> {
        let bytes = Flags::bytes_for(size);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, which no Rust reference points to; the file has as many bytes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, file.as_raw_fd(), 0) };
        (at != libc::MAP_FAILED).then_some(Flags { at, bytes, size })
    }

    /// The offset, in bytes, of the flag that rank `from` sets for rank `to`.
    fn place(&self, flag: Flag, to: usize, from: usize) -> usize {
        ((flag as usize * self.size + to) * self.size + from) * FLAG_BYTES
    }

    /// A flag, for the host.
    fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place + FLAG_BYTES <= self.bytes, "flag at {place} of {} bytes", self.bytes);
        // SAFETY: inside of the mapping, aligned, and only accessed atomically.
        unsafe { &*self.at.byte_add(place).cast::<AtomicU32>() }
    }

    /// Sets all flags for a rank, from the host.
    fn set_all(&self, to: usize) {
        for flag in [Flag::Ready, Flag::Done] {
            for from in 0..self.size {
                self.word(self.place(flag, to, from)).store(1, Ordering::SeqCst);
            }
        }
    }

    /// The flag that says that a rank has ended the group's collectives before they were complete.
    fn ended(&self) -> &AtomicU32 {
        self.word(2 * self.size * self.size * FLAG_BYTES)
    }
}

/// Memory that all ranks have registered.
struct Region {
    /// This rank's addresses.
    own: Range<u64>,
    /// Where the region of each rank begins, as this rank's device sees it.
    begins: Vec<u64>,
}

/// One rank of a group of GPUs of one host that read each other's memory. What it has opened stays open until the process ends,
/// because queued or captured work may still use it.
pub struct PeerCopies {
    driver: Arc<Driver>,
    functions: Functions,
    context: Handle,
    rank: usize,
    flags: Arc<Flags>,
    /// Where the device finds the flags.
    device_flags: u64,
    regions: Mutex<Vec<Region>>,
    /// The allocations of other ranks that are open.
    opened: Mutex<BTreeMap<IpcHandle, u64>>,
    is_aborted: AtomicBool,
}

impl fmt::Debug for PeerCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCopies(rank {} of {})", self.rank, self.flags.size)
    }
}

/// Calls a function of the driver and checks its result.
macro_rules! call {
    ($peers:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: device addresses, streams and handles are numbers that the driver checks; pointers are to locals, or to the
        // mapping of the flags.
        let code = unsafe { ($peers.functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err($peers.driver.error(stringify!($name), code)) }
    }};
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(call: &'static str, path: &Path, error: &std::io::Error) -> CudaError {
    refused(call, "system error", format!("{}: {error}", path.display()))
}

fn refused(call: &'static str, name: &str, text: String) -> CudaError {
    CudaError::Call { call, name: name.to_owned(), text, is_sticky: false }
}

impl PeerCopies {
    /// Makes the file for the flags of a group, which must not exist yet. One rank makes it before all of them join:
    /// [`Gpu::join_peers`](crate::Gpu::join_peers).
    ///
    /// # Errors
    /// [`CudaError::Call`] with the system's reason.
    pub fn make_flags(path: &Path, size: usize) -> Result<()> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let sized = made.and_then(|file| file.set_len(Flags::bytes_for(size) as u64));
        sized.map_err(|error| failed("open", path, &error))
    }

    /// Opens the file for the flags. The device's context must be current on this thread.
    pub(crate) fn open(
        driver: &Arc<Driver>,
        context: Handle,
        path: &Path,
        (rank, size): (usize, usize),
    ) -> Result<PeerCopies> {
        const PORTABLE_AND_MAPPED: c_uint = 3;
        let functions = Functions::load(driver.library())?;
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| failed("open", path, &error))?;
        let flags = Flags::map(&file, size);
        let flags = flags.ok_or_else(|| failed("mmap", path, &std::io::Error::last_os_error()))?;
        let (regions, opened, is_aborted) = Default::default();
        let (driver, flags, device_flags) = (Arc::clone(driver), Arc::new(flags), 0);
        let mut peers =
            PeerCopies { driver, functions, context, rank, flags, device_flags, regions, opened, is_aborted };
        let Flags { at, bytes, .. } = *peers.flags;
        call!(peers, cuMemHostRegister_v2(at, bytes, PORTABLE_AND_MAPPED))?;
        call!(peers, cuMemHostGetDevicePointer_v2(&raw mut peers.device_flags, at, 0))?;
        Ok(peers)
    }

    /// Lets other ranks of the host read the memory at this address, which must be in an allocation of `cuMemAlloc`.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn export(&self, address: u64) -> Result<Exported> {
        self.driver.bind(self.context)?;
        let (mut base, mut bytes, mut handle) = (0, 0, IpcHandle([0; 64]));
        call!(self, cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address))?;
        call!(self, cuIpcGetMemHandle(&raw mut handle, base))?;
        Ok(Exported { handle: handle.0, offset: address - base })
    }

    /// Opens what all ranks have exported, in rank order: `bytes` bytes on each. Collectives on this memory are then
    /// possible, until it is freed.
    ///
    /// # Errors
    /// The driver's errors: for example, GPUs that cannot read each other's memory.
    pub fn register(&self, own: u64, bytes: u64, exported: &[Exported]) -> Result<()> {
        self.driver.bind(self.context)?;
        let mut opened = lock(&self.opened);
        let mut begins = Vec::with_capacity(exported.len());
        for (rank, Exported { handle, offset }) in exported.iter().enumerate() {
            if rank == self.rank {
                begins.push(own);
                continue;
            }
            let handle = IpcHandle(*handle);
            let base = match opened.get(&handle) {
                Some(base) => *base,
                None => {
                    /// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
                    const LAZY_PEER_ACCESS: c_uint = 1;
                    let mut base = 0;
                    call!(self, cuIpcOpenMemHandle_v2(&raw mut base, handle, LAZY_PEER_ACCESS))?;
                    opened.insert(handle, base);
                    base
                }
            };
            begins.push(base + offset);
        }
        let mut regions = lock(&self.regions);
        let new = own..own + bytes;
        // Memory that was freed and allocated again.
        regions.retain(|region| region.own.end <= new.start || new.end <= region.own.start);
        regions.push(Region { own: new, begins });
        Ok(())
    }

    /// For each rank, the address of the memory that others read in this collective; `None` if it is not registered.
    fn begins(&self, collective: Collective) -> Option<Vec<u64>> {
        let (address, part_bytes) = match collective {
            Collective::AllGather { buffer, part_bytes } => (buffer, part_bytes),
            Collective::AllToAll { send, part_bytes, .. } => (send, part_bytes),
            Collective::Broadcast { .. } => return None,
        };
        let end = address + part_bytes * self.flags.size as u64;
        let regions = lock(&self.regions);
        let region = regions.iter().find(|region| region.own.start <= address && end <= region.own.end)?;
        Some(region.begins.iter().map(|begin| begin + (address - region.own.start)).collect())
    }

    /// Where the device finds the flag that rank `from` sets for rank `to`.
    fn address(&self, flag: Flag, to: usize, from: usize) -> u64 {
        self.device_flags + self.flags.place(flag, to, from) as u64
    }

    /// Queues a collective on a stream.
    pub(crate) fn run(&self, collective: Collective, stream: Handle) -> Result<()> {
        if self.is_aborted.load(Ordering::SeqCst) {
            let text = "this group was ended because a rank is lost".to_owned();
            return Err(refused("cuMemcpyAsync", "rank lost", text));
        }
        let Some(begins) = self.begins(collective) else {
            let text = format!("{collective:x?} is not in registered memory");
            return Err(refused("cuMemcpyAsync", "invalid address", text));
        };
        let mut flags = Vec::new();
        for action in actions(collective, self.rank, self.flags.size) {
            match action {
                Action::Set(flag, other) => {
                    flags.push(FlagStep::set(self.address(flag, other, self.rank), 1));
                }
                Action::Wait(flag, other) => {
                    let at = self.address(flag, self.rank, other);
                    flags.extend([FlagStep::wait(at), FlagStep::set(at, 0)]);
                }
                Action::Copy { to, of, offset, bytes } => {
                    self.queue(&mut flags, stream)?;
                    self.driver.copy(to, begins[of] + offset, bytes, stream)?;
                }
            }
        }
        self.queue(&mut flags, stream)
    }

    /// Queues the steps of flags in few calls of the driver: a stream's queue holds about a thousand commands.
    fn queue(&self, flags: &mut Vec<FlagStep>, stream: Handle) -> Result<()> {
        for some in flags.chunks_mut(MOST_FLAG_STEPS) {
            let count = some.len() as c_uint; // at most 256
            call!(self, cuStreamBatchMemOp_v2(stream, count, some.as_mut_ptr(), 0))?;
        }
        flags.clear();
        Ok(())
    }

    /// Ends collectives that are waiting for a lost rank, so that the device's work ends too, with wrong values. Later
    /// calls return an error, and the other ranks of the group learn of it: [`PeerCopies::has_ended`].
    pub fn abort(&self) {
        if self.is_aborted.swap(true, Ordering::SeqCst) {
            return;
        }
        // Before other ranks can go on with wrong values.
        self.flags.ended().store(1, Ordering::SeqCst);
        self.flags.set_all(self.rank);
        let (flags, rank) = (Arc::clone(&self.flags), self.rank);
        let sets = move || {
            loop {
                flags.set_all(rank);
                thread::sleep(Duration::from_millis(1));
            }
        };
        // The device clears a flag that it has waited for, so they are set until the process ends.
        let _ = thread::Builder::new().name("plimsoll abort".to_owned()).spawn(sets);
    }

    /// Whether a rank of the group has aborted it: values that arrived since then may be wrong.
    pub fn has_ended(&self) -> bool {
        self.flags.ended().load(Ordering::SeqCst) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_a_cache_line_of_its_own() {
        let path = std::env::temp_dir().join(format!("plimsoll-flags-{}", std::process::id()));
        PeerCopies::make_flags(&path, 8).unwrap();
        assert!(PeerCopies::make_flags(&path, 8).is_err(), "the file exists");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let flags = Flags::map(&file, 8).unwrap();
        let both = [Flag::Ready, Flag::Done];
        let pairs = |flag| (0..8).flat_map(move |to| (0..8).map(move |from| (flag, to, from)));
        let places = both.into_iter().flat_map(pairs).map(|(flag, to, from)| flags.place(flag, to, from));
        let mut places: Vec<usize> = places.collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == FLAG_BYTES));
        assert!(places.last().unwrap() + FLAG_BYTES <= file.metadata().unwrap().len() as usize);
        flags.set_all(3);
    }
}
