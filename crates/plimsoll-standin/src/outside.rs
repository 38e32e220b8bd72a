//! Charges the device memory that kernels, libraries, streams and graphs use, which the process does not request
//! explicitly. Each is charged at the call that allocates it.
//!
//! `plimsoll_gpu::outside` gives the number of bytes. NCCL's memory is charged in `nccl/memory.rs`. If a charge does not fit, the
//! call fails, as on a GPU.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_gpu::outside::{
    Basis, Figure, Library, Loading, cublas, graph_bytes, local_memory_bytes, stream_bytes,
};

use crate::argument::{Out, put_text};
use crate::error::Outcome;
use crate::gpu::{Outside, current_device, setup};
use crate::lock::locked;
use crate::memory::memory;
use crate::settings;
use crate::stream::{ExecHandle, StreamHandle, streams};

/// The owner, in the ledger, of the pool for kernels' stacks.
const LOCAL_MEMORY: &str = "local memory of kernels";

/// The owner, in the ledger, of streams.
const STREAMS: &str = "streams";

/// The owner, in the ledger, of instantiated graphs.
const GRAPHS: &str = "CUDA graphs";

/// The devices of objects that programs create and may destroy.
#[derive(Debug, Default)]
struct Made {
    streams: BTreeMap<StreamHandle, usize>,
    /// The device of each cuBLAS handle.
    blas: BTreeMap<u64, usize>,
    /// The device and the bytes of each graph that uses memory.
    graphs: BTreeMap<ExecHandle, (usize, u64)>,
}

/// The number of existing streams on each device, including NCCL's.
static STREAM_COUNTS: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

static MADE: Mutex<Made> =
    Mutex::new(Made { streams: BTreeMap::new(), blas: BTreeMap::new(), graphs: BTreeMap::new() });

/// The devices on which a kernel was launched, one bit each. A launch checks it first and usually has nothing else to do.
static LAUNCHED: AtomicU64 = AtomicU64::new(0);

/// Records the launch, on the current device, of a kernel that is compiled into a library. The first launch loads PyTorch's
/// module, whose memory is charged.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(crate) fn launched() -> Outcome {
    let device = current_device()?;
    let bit = 1_u64 << device.min(63);
    if LAUNCHED.load(Ordering::Relaxed) & bit == 0 {
        used_on(device, Library::PyTorchKernels)?;
        LAUNCHED.fetch_or(bit, Ordering::Relaxed);
    }
    Ok(())
}

/// Records that a library is used on the current device. Its first use is charged.
///
/// # Errors
///
/// `OutOfMemory` if the memory of the first use does not fit.
pub(crate) fn used(library: Library) -> Outcome {
    used_on(current_device()?, library)
}

fn used_on(device: usize, library: Library) -> Outcome {
    if setup().outside != Outside::Laws {
        return memory().uses.enter(device);
    }
    let eager = settings::text("CUDA_MODULE_LOADING").is_some_and(|text| text.eq_ignore_ascii_case("eager"));
    let loading = if eager { Loading::Eager } else { Loading::Lazy };
    memory().uses.grow(device, library.name(), library.first_use(&setup().gpu, loading))
}

/// Records that a cuBLAS handle was created on the current device.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(crate) fn made_blas(handle: u64) -> Outcome {
    let device = current_device()?;
    if setup().outside != Outside::Laws {
        return memory().uses.enter(device);
    }
    let mut made = locked(&MADE);
    let handles = made.blas.values().filter(|&&on| on == device).count() as u64 + 1;
    memory().uses.grow(device, Library::CuBlas.name(), cublas(&setup().gpu, handles))?;
    made.blas.insert(handle, device);
    Ok(())
}

/// Records that a cuBLAS handle was destroyed. Its bytes stay charged, and a later handle reuses them.
pub(crate) fn ended_blas(handle: u64) {
    locked(&MADE).blas.remove(&handle);
}

/// Records the launch of a kernel with this many bytes of stack per thread. If needed, the pool of local memory grows.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(crate) fn stack(device: usize, stack_bytes: u32) -> Outcome {
    if setup().outside == Outside::Nothing {
        return Ok(());
    }
    let pool = |stack_bytes| local_memory_bytes(&setup().gpu, stack_bytes);
    memory().uses.grow(device, LOCAL_MEMORY, derived(pool(stack_bytes) - pool(0)))
}

/// Records that `count` streams were created on a device.
///
/// # Errors
///
/// `OutOfMemory` if they do not fit.
pub(crate) fn made_streams(device: usize, count: u64) -> Outcome {
    if setup().outside != Outside::Laws {
        return memory().uses.enter(device);
    }
    let mut counts = locked(&STREAM_COUNTS);
    let streams = counts.entry(device).or_default();
    memory().uses.grow(device, STREAMS, derived(stream_bytes(&setup().gpu, *streams + count)))?;
    *streams += count;
    Ok(())
}

/// Records that `count` streams were destroyed. Their bytes stay charged, and later streams reuse them.
pub(crate) fn ended_streams(device: usize, count: u64) {
    if let Some(streams) = locked(&STREAM_COUNTS).get_mut(&device) {
        *streams = streams.saturating_sub(count);
    }
}

/// Creates a stream on the current device.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(crate) fn create_stream(priority: c_int) -> Outcome<StreamHandle> {
    let device = current_device()?;
    made_streams(device, 1)?;
    let stream = streams().create(priority);
    locked(&MADE).streams.insert(stream, device);
    Ok(stream)
}

/// Destroys a stream.
///
/// # Errors
///
/// `InvalidHandle` if there is no such stream.
pub(crate) fn destroy_stream(stream: StreamHandle) -> Outcome {
    streams().destroy(stream)?;
    if let Some(device) = locked(&MADE).streams.remove(&stream) {
        ended_streams(device, 1);
    }
    Ok(())
}

/// Records that a graph with this many nodes was instantiated on the current device.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(crate) fn made_graph(exec: ExecHandle, nodes: u64) -> Outcome {
    let device = current_device()?;
    let bytes = graph_bytes(nodes);
    if setup().outside == Outside::Laws && bytes > 0 {
        memory().uses.charge(device, GRAPHS, "", derived(bytes))?;
        locked(&MADE).graphs.insert(exec, (device, bytes));
    }
    Ok(())
}

/// Records that an instantiated graph was destroyed.
pub(crate) fn ended_graph(exec: ExecHandle) {
    let graph = locked(&MADE).graphs.remove(&exec);
    if let Some((device, bytes)) = graph {
        memory().uses.discharge_part(device, GRAPHS, "", bytes);
    }
}

fn derived(bytes: u64) -> Figure {
    Figure { bytes, basis: Basis::Derived }
}

/// The peak of the bytes that this process has requested on a device. For hooks inside the process.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_most_bytes(device: c_int) -> u64 {
    memory().uses.requested_bytes(number(device)).1
}

/// The bytes that this process currently has requested on a device. For hooks inside the process.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_requested_bytes(device: c_int) -> u64 {
    memory().uses.requested_bytes(number(device)).0
}

/// Whether the process has created a stream, through PyTorch or directly. For hooks inside the process.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_has_streams() -> c_int {
    c_int::from(!locked(&MADE).streams.is_empty())
}

/// Writes the memory that this process used on a device at its peak as a zero-terminated text, as far as there is room, and
/// returns the length of the full text. `ledger.rs` describes the lines. For hooks inside the process.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_outside(device: c_int, text: Out<c_char>, room: usize) -> usize {
    let found = memory().uses.text(number(device));
    // A caller that only needs the length passes no room.
    let _only_the_length = put_text(text, room, &found);
    found.len()
}

/// The device's index. A negative number becomes an index that no device has, for which no use is recorded.
fn number(device: c_int) -> usize {
    usize::try_from(device).unwrap_or(usize::MAX)
}
