//! The time that each kernel takes on a GPU: a program's work by operator and kernel, slowest first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_cuda::{Float, Gpu, Matrix, Step};

/// The time that one operator spent in one kernel, product or copy.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The operator.
    pub op: &'static str,
    /// The kernel with its launch, or the sizes of the product.
    pub work: String,
    /// The number of runs.
    pub count: u64,
    /// Milliseconds on the device, summed over all runs.
    pub total_ms: f64,
}

static IS_ON: AtomicBool = AtomicBool::new(false);

type Times = BTreeMap<(&'static str, String), (u64, f64)>;

static TIMES: Mutex<Times> = Mutex::new(BTreeMap::new());

fn times() -> MutexGuard<'static, Times> {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` and measures every kernel, product and copy that it queues on NVIDIA GPUs in this process. Returns the times,
/// slowest first. The host waits for each one, so the program as a whole runs slower.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, cuda_kernel_times};
/// let (sum, times) = cuda_kernel_times(|| Tensor::ones(&[4], &Device::cpu()).and_then(|x| x.sum()));
/// assert!(sum.is_ok() && times.is_empty()); // no GPU took part
/// ```
pub fn cuda_kernel_times<T>(f: impl FnOnce() -> T) -> (T, Vec<KernelTime>) {
    times().clear();
    IS_ON.store(true, Ordering::Relaxed);
    let result = f();
    IS_ON.store(false, Ordering::Relaxed);
    let found = std::mem::take(&mut *times()).into_iter();
    let row = |((op, work), (count, total_ms))| KernelTime { op, work, count, total_ms };
    let mut rows: Vec<KernelTime> = found.map(row).collect();
    rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    (result, rows)
}

/// Queues a piece of an operator's work, and measures it within [`cuda_kernel_times`].
pub(crate) fn run(
    gpu: &Gpu,
    op: &'static str,
    step: Step,
    on: plimsoll_alloc::StreamId,
    number: u64,
) -> plimsoll_cuda::Result<()> {
    // Captured work does not run yet.
    if !IS_ON.load(Ordering::Relaxed) || gpu.is_capturing() {
        return gpu.run(step, on, number);
    }
    let work = described(&step);
    let ms = gpu.time(on, || gpu.run(step, on, number))?;
    let mut times = times();
    let (count, total_ms) = times.entry((op, work)).or_default();
    *count += 1;
    *total_ms += f64::from(ms);
    Ok(())
}

fn described(step: &Step) -> String {
    match step {
        Step::Launch(launch) => {
            let of = |name: &str| launch.source.defines.iter().find(|(known, _)| *known == name);
            let pass = of("PASS").map_or(String::new(), |(_, pass)| format!(" pass {pass}"));
            format!("{:?} x {}{pass}", launch.grid, launch.block)
        }
        Step::Product(product) => {
            let bias = if product.bias.is_some() { " bias" } else { "" };
            let sum = if product.beta == 0.0 { "" } else { " added" };
            let Matrix { row: a_row, .. } = product.a;
            let Matrix { row: b_row, .. } = product.b;
            let (a, b) = (if a_row == 1 { "t" } else { "n" }, if b_row == 1 { "t" } else { "n" });
            let tf32 = if product.tf32 && product.c.float == Float::F32 { " tf32" } else { "" };
            format!("{} [{} {} {}] {a}{b}{bias}{sum}{tf32}", product.batch, product.m, product.n, product.k)
        }
        Step::Convolution(step) => {
            let of = &step.convolution;
            format!("{:?} {:?} by {:?}", of.pass, of.x.sizes, of.w.sizes)
        }
        Step::Collective(step) => format!("{:?}", step.collective),
        Step::Clear { bytes, .. } => format!("{bytes} zero bytes"),
    }
}
