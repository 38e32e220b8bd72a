//! NCCL: collectives between GPUs, which usually belong to several processes.
//!
//! NCCL only moves bytes. Sums are computed by kernels of `plimsoll-tensor`, so that their bits do not depend on NCCL.
//! Its memory is outside the allocator; `plimsoll-gpu` computes how much it is.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

use crate::collective::Collective;
use crate::driver::Handle;
use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions};
use crate::search::Search;

/// The size of NCCL's communicator id.
const ID_BYTES: usize = 128;
/// `ncclInt8`: sizes are in bytes.
const BYTES: c_int = 0;
/// `ncclInProgress`.
const IN_PROGRESS: c_int = 7;
/// `ncclRemoteError`: another rank failed.
const REMOTE_ERROR: c_int = 6;
/// The oldest version whose functions are used.
const OLDEST: c_int = 21_400;

const NCCL: Wanted = Wanted {
    library: "NCCL",
    names: &["libnccl.so.2"],
    advice: "`pip install nvidia-nccl-cu13` brings it (`nvidia-nccl-cu12` for CUDA 12), and so does `torch`",
};

/// The id of a new communicator. One rank makes it and sends it to the others.
///
/// ```
/// use plimsoll_cuda::NcclId;
/// let id = NcclId([7; 128]);
/// assert_eq!(id.0.len(), 128);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NcclId(pub [u8; ID_BYTES]);

functions! {
    /// NCCL's functions, with the arguments of `nccl.h`. Communicators and streams are opaque pointers.
    Functions {
        ncclGetUniqueId(*mut NcclId);
        ncclCommInitRank(*mut Handle, c_int, NcclId, c_int);
        ncclCommDestroy(Handle);
        ncclCommAbort(Handle);
        ncclCommGetAsyncError(Handle, *mut c_int);
        ncclGroupStart();
        ncclGroupEnd();
        ncclAllGather(*const c_void, *mut c_void, usize, c_int, Handle, Handle);
        ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
        ncclSend(*const c_void, usize, c_int, c_int, Handle, Handle);
        ncclRecv(*mut c_void, usize, c_int, c_int, Handle, Handle);
    }
}

/// The open library.
pub(crate) struct Nccl {
    library: Library,
    functions: Functions,
    last_error: Option<LastError>,
    /// The version in NCCL's encoding; 0 if it is unknown.
    version: c_int,
}

/// `ncclGetLastError`.
type LastError = unsafe extern "C" fn(Handle) -> *const c_char;

/// The version that `ncclGetVersion` at this address writes.
fn version_by(address: *mut c_void) -> c_int {
    let mut version = 0;
    // SAFETY: the function with this name writes one int, to a local here, and returns an int; the library is never
    // closed.
    let code = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(address)(
            &raw mut version,
        )
    };
    if code == 0 { version } else { 0 }
}

/// A version as text, such as `2.28.9`.
fn shown(version: c_int) -> String {
    let (major, rest) = (version / 10_000, version % 10_000);
    if version == 0 { "unknown".to_owned() } else { format!("{major}.{}.{}", rest / 100, rest % 100) }
}

impl Nccl {
    /// Opens the library.
    ///
    /// # Errors
    /// If the library is missing or too old.
    pub(crate) fn open(search: &Search) -> Result<Arc<Nccl>> {
        without_multicast();
        let library = Library::open(NCCL, search)?;
        let functions = Functions::load(&library)?;
        let version = library.function(c"ncclGetVersion").ok().map_or(0, version_by);
        if (1..OLDEST).contains(&version) {
            let path = library.path().display().to_string();
            let why = format!("version {} is too old; needs 2.14: {}", shown(version), NCCL.advice);
            return Err(CudaError::WrongVersion { library: NCCL.library, path, why });
        }
        let last_error = library.function(c"ncclGetLastError").ok();
        // SAFETY: the function with this name takes a communicator and returns one of NCCL's strings; the library is
        // never closed.
        let last_error =
            last_error.map(|address| unsafe { std::mem::transmute::<*mut c_void, LastError>(address) });
        Ok(Arc::new(Nccl { library, functions, last_error, version }))
    }

    pub(crate) fn path(&self) -> &Path {
        self.library.path()
    }

    /// The version, such as `2.28.9`.
    pub(crate) fn version(&self) -> String {
        shown(self.version)
    }

    /// A new id, for all ranks of a communicator.
    pub(crate) fn unique_id(&self) -> Result<NcclId> {
        let mut id = NcclId([0; ID_BYTES]);
        // SAFETY: it writes 128 bytes to a local of that size.
        let code = unsafe { (self.functions.ncclGetUniqueId)(&raw mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL keeps the string alive, and null is checked.
        let text = self.last_error.and_then(|last_error| unsafe { last_error(0).as_ref() });
        // SAFETY: as above; it is NUL-terminated.
        let text = text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned());
        let text =
            text.filter(|text| !text.is_empty()).unwrap_or_else(|| "NCCL_DEBUG=WARN says more".to_owned());
        Err(CudaError::Call { call, name: name_of(code), text, is_sticky: false })
    }
}

/// Turns NVLink multicast off, unless the user has set the variable. A program that uses multicast can disable GPUs
/// that others share, and our collectives do not need it.
fn without_multicast() {
    const NAME: &str = "NCCL_NVLS_ENABLE";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(NAME).is_none() {
            // SAFETY: the variable must not be read concurrently by C code. Only NCCL reads it, and it is not open yet.
            unsafe { std::env::set_var(NAME, "0") };
        }
    });
}

fn name_of(code: c_int) -> String {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
    ];
    let name = usize::try_from(code).ok().and_then(|code| names.get(code));
    name.map_or_else(|| format!("error {code}"), |name| (*name).to_owned())
}

/// One rank of a group of GPUs. Dropping it frees its memory.
pub struct NcclCommunicator {
    nccl: Arc<Nccl>,
    handle: Handle,
    rank: usize,
    size: usize,
    /// NCCL allows one call at a time on a communicator.
    turn: Mutex<()>,
    is_aborted: AtomicBool,
}

impl fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclCommunicator(rank {} of {})", self.rank, self.size)
    }
}

/// Calls an NCCL function and checks its result.
macro_rules! call {
    ($nccl:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: an open communicator; addresses of device memory and streams that the caller has; other pointers are to locals.
        let code = unsafe { ($nccl.functions.$name)($($argument),*) };
        $nccl.check(stringify!($name), code)
    }};
}

impl NcclCommunicator {
    /// Joins the other ranks, which make the same call with the same id, and waits for them. The device's context must
    /// be current on this thread.
    pub(crate) fn join(nccl: &Arc<Nccl>, id: NcclId, rank: usize, size: usize) -> Result<NcclCommunicator> {
        let mut handle = 0;
        call!(nccl, ncclCommInitRank(&raw mut handle, int(size), id, int(rank)))?;
        Ok(NcclCommunicator {
            nccl: Arc::clone(nccl),
            handle,
            rank,
            size,
            turn: Mutex::new(()),
            is_aborted: AtomicBool::new(false),
        })
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Queues a collective on a stream.
    pub(crate) fn run(&self, collective: Collective, stream: Handle) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_aborted.load(Ordering::SeqCst) {
            let (name, text) =
                (name_of(REMOTE_ERROR), "this group was ended because a rank is lost".to_owned());
            return Err(CudaError::Call { call: "ncclCommAbort", name, text, is_sticky: false });
        }
        self.check_earlier()?;
        let (nccl, comm) = (&self.nccl, self.handle);
        match collective {
            Collective::AllGather { buffer, part_bytes } => {
                let own = buffer + self.rank as u64 * part_bytes;
                call!(nccl, ncclAllGather(at(own), at(buffer), count(part_bytes), BYTES, comm, stream))
            }
            Collective::Broadcast { buffer, bytes, root } => {
                let (buffer, root) = (at(buffer), int(root));
                call!(nccl, ncclBroadcast(buffer, buffer, count(bytes), BYTES, root, comm, stream))
            }
            Collective::AllToAll { send, receive, part_bytes, keeps_own } => {
                call!(nccl, ncclGroupStart())?;
                let mut peers = (0..self.size).filter(|peer| keeps_own || *peer != self.rank);
                let sent = peers.try_for_each(|peer| {
                    let place = Collective::place(peer, self.rank, keeps_own);
                    let (to, from) = (at(send + peer as u64 * part_bytes), at(receive + place * part_bytes));
                    call!(nccl, ncclSend(to, count(part_bytes), BYTES, int(peer), comm, stream))?;
                    call!(nccl, ncclRecv(from, count(part_bytes), BYTES, int(peer), comm, stream))
                });
                // The group must be closed even after an error.
                let ended = call!(nccl, ncclGroupEnd());
                sent.and(ended)
            }
        }
    }

    /// Ends collectives that are waiting for a lost rank, so that the device's work ends too. Later calls on this
    /// communicator return an error. NCCL may itself wait forever in this call, so a detached thread makes the call.
    pub fn abort(self: &Arc<NcclCommunicator>) {
        if self.is_aborted.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = Arc::clone(self);
        thread::spawn(move || call!(this.nccl, ncclCommAbort(this.handle)));
    }

    /// An error in an earlier collective that NCCL found after the call.
    fn check_earlier(&self) -> Result<()> {
        let mut code = 0;
        call!(self.nccl, ncclCommGetAsyncError(self.handle, &raw mut code))?;
        self.nccl.check("ncclCommGetAsyncError", code)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        // After an error, NCCL may wait forever for a lost rank; the memory is freed when the process ends.
        if !self.is_aborted.load(Ordering::SeqCst) && self.check_earlier().is_ok() {
            let _ = call!(self.nccl, ncclCommDestroy(self.handle));
        }
    }
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn count(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(count(address))
}
