//! [`fit`]: the fastest techniques with which a job of your own stays within a memory limit, found by simulated runs.

use plimsoll_tensor::checkpoint::{Budget, Checkpointer};
use plimsoll_tensor::{Bytes, Device, Error, Result, SimConfig};

/// The techniques with which a job uses less memory. All of them keep the numbers, up to rounding.
///
/// ```
/// use plimsoll::checkpoint::Budget;
/// use plimsoll::fit::Techniques;
/// let techniques = Techniques { activations: Some(Budget::Auto), ..Techniques::default() };
/// assert_eq!(techniques.code().unwrap(), "model.checkpoint_within(Budget::Auto);");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Techniques {
    /// What the blocks may keep for the backward pass.
    pub activations: Option<Budget>,
    /// With `activations`: the most bytes of pinned memory for activations that are offloaded instead of recomputed.
    pub offload: Option<u64>,
    /// The number of parts of a batch, one after the other, whose gradients are added up.
    pub accumulate: usize,
}

impl Default for Techniques {
    /// None.
    fn default() -> Techniques {
        Techniques { activations: None, offload: None, accumulate: 1 }
    }
}

impl Techniques {
    /// The `Checkpointer` that runs the blocks: pass it to `checkpoint_within` of a model, or keep it next to your own
    /// blocks. `None` if they keep everything.
    pub fn checkpointer(&self) -> Option<Checkpointer> {
        let checkpointer = Checkpointer::new(self.activations?);
        Some(match self.offload {
            Some(host_bytes) => checkpointer.with_offload(host_bytes),
            None => checkpointer,
        })
    }

    /// The line of Rust for the blocks of a model, if they do not keep everything.
    pub fn code(&self) -> Option<String> {
        let budget = match self.activations? {
            Budget::Bytes(most) => format!("Budget::Bytes({most})"),
            Budget::Segments(count) => format!("Budget::Segments({count})"),
            Budget::Auto => "Budget::Auto".to_owned(),
        };
        Some(match self.offload {
            Some(most) => {
                format!("model.checkpoint_within(Checkpointer::new({budget}).with_offload({most}));")
            }
            None => format!("model.checkpoint_within({budget});"),
        })
    }
}

/// Which techniques a job can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitOptions {
    /// Whether blocks can be checkpointed. Default: yes.
    pub has_blocks: bool,
    /// The most bytes of pinned memory for offloaded activations. Default: none.
    pub offload: Option<u64>,
    /// The most parts of a batch, usually its size. Default: 1.
    pub most_parts: usize,
    /// Whether parts of a batch have the gradients of the whole batch. A network with batch statistics does not: it is trained in parts only if
    /// nothing else fits. Default: yes.
    pub has_exact_parts: bool,
}

impl Default for FitOptions {
    fn default() -> FitOptions {
        FitOptions { has_blocks: true, offload: None, most_parts: 1, has_exact_parts: true }
    }
}

/// The memory and time of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulated {
    /// The peak of allocated bytes.
    pub allocated_bytes: u64,
    /// The peak of reserved bytes.
    pub reserved_bytes: u64,
    /// The memory of a process outside of the allocator, if it is known.
    pub outside_bytes: u64,
    /// Its estimated time. If the device's rates are unknown, the time on another GPU, which is good only for
    /// comparisons.
    pub seconds: f64,
}

/// The fastest techniques that were found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// The techniques.
    pub techniques: Techniques,
    /// The memory and time of the job with these techniques.
    pub takes: Simulated,
    /// The number of simulated runs.
    pub runs: u32,
}

/// The first budgets that are tried, as parts of the limit.
const PARTS: [f64; 12] = [0.95, 0.85, 0.75, 0.65, 0.55, 0.45, 0.35, 0.25, 0.18, 0.12, 0.06, 0.03];
/// How often the interval between a budget that fits and a larger one that does not is halved.
const HALVINGS: u32 = 5;
/// The GPU by which times are compared if the device's own rates are unknown.
const TIMED: &str = "H200";

/// Finds the fastest techniques with which a job reserves at most `limit_bytes` on a device like `gpu`. `job` makes the model and the optimizer on a device
/// and trains for some steps with the given techniques: at least two, because the first one creates the optimizer's state. It runs some dozen
/// times on simulated devices, which takes seconds, and has no side effects if it writes no files. With a budget, the first step also measures the blocks,
/// which counts as time: train for some steps if times are to be compared closely.
///
/// ```
/// use plimsoll::fit::{FitOptions, fit};
/// use plimsoll::models::{Gpt2, Gpt2Config};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::{SimConfig, Tensor};
///
/// let h200 = SimConfig::like("H200")?;
/// let options = FitOptions { most_parts: 4, ..FitOptions::default() };
/// let fitted = fit(&h200, 3 << 30, options, |device, techniques| {
///     let mut model = Gpt2::new(&Scope::new(device, 1), Gpt2Config::small())?;
///     model.checkpoint_within(techniques.checkpointer());
///     let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
///     for _step in 0..2 {
///         adamw.zero_grad();
///         for _part in 0..techniques.accumulate {
///             let rows = 4 / techniques.accumulate;
///             let tokens = Tensor::from_slice(&vec![7i64; rows * 512], &[rows, 512], device)?;
///             (model.loss(&tokens, &tokens)? / techniques.accumulate as f64)?.backward()?;
///         }
///         adamw.step()?;
///     }
///     Ok(())
/// })?;
/// assert!(fitted.takes.reserved_bytes <= 3 << 30);
/// println!("{}", fitted.techniques.code().unwrap_or_default()); // model.checkpoint_within(…);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// The errors of the job, except out of memory under the limit. If nothing fits, the least that the job reserves.
pub fn fit(
    gpu: &SimConfig,
    limit_bytes: u64,
    options: FitOptions,
    mut job: impl FnMut(&Device, &Techniques) -> Result<()>,
) -> Result<Fitted> {
    let found = search(limit_bytes, options, |techniques| {
        match simulated(gpu, Some(limit_bytes), techniques, &mut job) {
            Ok(takes) => Ok(Some(takes)),
            Err(error) if is_too_little(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })?;
    if let Some(found) = found {
        return Ok(found);
    }
    let activations = options.has_blocks.then_some(Budget::Auto);
    let least = Techniques { activations, offload: options.offload, accumulate: options.most_parts.max(1) };
    let needs = simulated(gpu, None, &least, &mut job)?.reserved_bytes;
    let tried = [
        least.activations.map(|_| "`Budget::Auto`".to_owned()),
        (least.accumulate > 1).then(|| format!("each batch in {} parts", least.accumulate)),
    ];
    let tried: Vec<String> = tried.into_iter().flatten().collect();
    let with = if tried.is_empty() { String::new() } else { format!(" with {}", tried.join(" and ")) };
    let message = format!(
        "the job does not fit in {}: it reserves {}{with}; make the batch or the model smaller",
        Bytes(limit_bytes),
        Bytes(needs)
    );
    Err(Error::Argument { op: "fit", message })
}

/// Runs a job on a device like `gpu`, of any size, that reserves at most this many bytes.
fn simulated(
    gpu: &SimConfig,
    limit_bytes: Option<u64>,
    techniques: &Techniques,
    job: &mut impl FnMut(&Device, &Techniques) -> Result<()>,
) -> Result<Simulated> {
    let device = of_any_size(gpu.clone());
    device.set_memory_limit(limit_bytes);
    job(&device, techniques)?;
    let seconds = match device.estimated_time() {
        Some(time) => time,
        None => {
            let timed = of_any_size(SimConfig::like(TIMED)?);
            job(&timed, techniques)?;
            timed.estimated_time().unwrap_or_default()
        }
    };
    Ok(Simulated {
        allocated_bytes: device.max_memory_allocated(),
        reserved_bytes: device.max_memory_reserved(),
        outside_bytes: 0,
        seconds: seconds.as_secs_f64(),
    })
}

fn of_any_size(mut gpu: SimConfig) -> Device {
    gpu.capacity_bytes = u64::MAX / 4;
    Device::sim(gpu)
}

/// Whether memory ran out, or a budget is below the minimum that any schedule keeps.
pub fn is_too_little(error: &Error) -> bool {
    error.out_of_memory().is_some() || matches!(error, Error::Argument { op: "checkpoint_sequential", .. })
}

/// The search of [`fit`] for runs of any kind: `run` returns the memory and time of the job with these techniques, or
/// `None` if the job needs more than `limit_bytes`.
///
/// ```
/// use plimsoll::checkpoint::Budget;
/// use plimsoll::fit::{FitOptions, Simulated, search};
/// // Blocks that keep 800 MiB; each 8 MiB less takes a percent more time. Everything else takes 400 MiB.
/// let found = search(800 << 20, FitOptions::default(), |techniques| {
///     let kept = match techniques.activations {
///         Some(Budget::Bytes(bytes)) => bytes.min(800 << 20),
///         Some(_) => 100 << 20,
///         None => 800 << 20,
///     };
///     let reserved_bytes = kept + (400 << 20);
///     let seconds = 1.0 + ((800 << 20) - kept) as f64 / (800 << 20) as f64;
///     Ok::<_, plimsoll::Error>((reserved_bytes <= 800 << 20).then_some(Simulated { reserved_bytes, seconds, ..Simulated::default() }))
/// })?;
/// let takes = found.expect("400 MiB of activations fit").takes;
/// assert!(takes.reserved_bytes > 780 << 20 && takes.seconds < 1.53);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// The errors of `run`.
pub fn search<E>(
    limit_bytes: u64,
    options: FitOptions,
    run: impl FnMut(&Techniques) -> std::result::Result<Option<Simulated>, E>,
) -> std::result::Result<Option<Fitted>, E> {
    let mut search = Search { limit_bytes, options, run, runs: 0, best: None };
    let most = options.most_parts.max(1);
    let mut accumulate = 1;
    loop {
        // Without batch statistics, parts of a batch give the same gradients. With them, they are the last resort.
        let is_needed = search.best.is_none() || options.has_exact_parts;
        if !is_needed || search.all_of(accumulate)? || accumulate == most {
            break;
        }
        accumulate = (2 * accumulate).min(most);
    }
    let Search { runs, best, .. } = search;
    Ok(best.map(|(techniques, takes)| Fitted { techniques, takes, runs }))
}

struct Search<R> {
    limit_bytes: u64,
    options: FitOptions,
    run: R,
    runs: u32,
    best: Option<(Techniques, Simulated)>,
}

impl<E, R: FnMut(&Techniques) -> std::result::Result<Option<Simulated>, E>> Search<R> {
    /// Tries what fits with batches in this many parts. Returns whether more parts cannot be faster, because these fit without any
    /// other technique.
    fn all_of(&mut self, accumulate: usize) -> std::result::Result<bool, E> {
        if self.fits(Techniques { accumulate, ..Techniques::default() })? {
            return Ok(true);
        }
        if !self.options.has_blocks {
            return Ok(false);
        }
        let offload = self.options.offload;
        let with = |budget: Budget| Techniques { activations: Some(budget), offload, accumulate };
        // The largest budget that fits recomputes the least.
        let (mut most, mut least) = (self.limit_bytes, 0);
        for part in PARTS {
            let bytes = (self.limit_bytes as f64 * part) as u64;
            if self.fits(with(Budget::Bytes(bytes)))? {
                least = bytes;
                break;
            }
            most = bytes;
        }
        if least == 0 {
            self.fits(with(Budget::Auto))?;
            return Ok(false);
        }
        for _ in 0..HALVINGS {
            let middle = (least + (most - least) / 2).next_multiple_of(1 << 20).min(most);
            if self.fits(with(Budget::Bytes(middle)))? { least = middle } else { most = middle }
        }
        Ok(false)
    }

    /// Whether the job fits with these techniques. If so, they may be the best so far.
    fn fits(&mut self, techniques: Techniques) -> std::result::Result<bool, E> {
        self.runs += 1;
        let Some(takes) = (self.run)(&techniques)? else { return Ok(false) };
        if self.best.as_ref().is_none_or(|(_, best)| takes.seconds < best.seconds) {
            self.best = Some((techniques, takes));
        }
        Ok(true)
    }
}
