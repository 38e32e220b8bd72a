//! [`fit`]: the fastest techniques with which a job of your own stays within a memory limit, found by simulated runs.
//!
//! `techniques.rs` has the table of techniques and sets of them, and `search.rs` decides which sets are simulated. `worlds.rs`
//! tests it on random jobs.

mod search;
mod techniques;
#[cfg(test)]
mod worlds;

use plimsoll_tensor::{Bytes, Device, Error, Result, SimConfig};

pub use search::{Searched, Tried, search};
pub use techniques::{Numbers, Technique, Techniques};

/// Which techniques a search may add.
///
/// ```
/// use plimsoll::fit::{FitOptions, Numbers, Technique};
/// // A job that calls `Techniques::adamw`, `autocast` and `checkpointer`, and whose user accepts other numbers.
/// let options = FitOptions { techniques: Technique::all().collect(), numbers: Numbers::Changed, ..FitOptions::default() };
/// assert!(options.adds(Technique::AdamW8bit) && !options.adds(Technique::Accumulate)); // `most_parts` is 1
/// assert!(!FitOptions::default().adds(Technique::AdamW8bit));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FitOptions {
    /// The techniques that the job applies if a set has them. Default: [`Technique::Activations`] and
    /// [`Technique::Accumulate`].
    pub techniques: Vec<Technique>,
    /// The set that all others extend. If its `offload` is given, blocks with a budget also move activations to the host.
    /// Default: none.
    pub base: Techniques,
    /// How much added techniques may change losses and parameters. Default: rounding.
    pub numbers: Numbers,
    /// The most parts of a batch, usually its size. Default: 1.
    pub most_parts: usize,
    /// Whether parts of a batch have the gradients of the whole batch. A network with batch statistics does not: it is trained in parts only if
    /// nothing else fits. Default: yes.
    pub has_exact_parts: bool,
}

impl Default for FitOptions {
    fn default() -> FitOptions {
        FitOptions {
            techniques: vec![Technique::Activations, Technique::Accumulate],
            base: Techniques::default(),
            numbers: Numbers::Rounding,
            most_parts: 1,
            has_exact_parts: true,
        }
    }
}

impl FitOptions {
    /// Whether a search may add this technique: to [`FitOptions::base`], or to sets that can be combined with it.
    pub fn adds(&self, technique: Technique) -> bool {
        let is_possible = match technique {
            Technique::Accumulate => self.most_parts > 1,
            _ => true,
        };
        let is_in_base = self.base.has(technique);
        is_possible
            && !is_in_base
            && technique.numbers() <= self.numbers
            && self.techniques.contains(&technique)
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
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The techniques.
    pub techniques: Techniques,
    /// The memory and time of the job with these techniques.
    pub takes: Simulated,
    /// The number of simulated runs.
    pub runs: u32,
    /// All sets that were tried: the fastest that fits first (by [`Tried::cost_s`]), then those that do not fit, the smallest
    /// first.
    pub tried: Vec<Tried>,
}

/// The GPU by which times are compared if the device's own rates are unknown.
const TIMED: &str = "H200";

/// Finds the fastest techniques with which a job reserves at most `limit_bytes` on a device like `gpu`. `job` makes the model and the optimizer on a device
/// and trains for some steps with the given techniques: at least two, because the first one creates the optimizer's state. It runs some dozen
/// times on simulated devices, at most some hundred times, which takes seconds, and has no side effects if it writes no files. With a budget, the first step also measures the blocks,
/// which counts as time: train for some steps if times are to be compared closely.
///
/// ```
/// use plimsoll::fit::{FitOptions, Technique, fit};
/// use plimsoll::models::{Gpt2, Gpt2Config};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::optim::AdamWOptions;
/// use plimsoll::{SimConfig, Tensor, backward_in_parts};
///
/// let h200 = SimConfig::like("H200")?;
/// let options = FitOptions { techniques: Technique::all().collect(), most_parts: 4, ..FitOptions::default() };
/// let fitted = fit(&h200, 2 << 30, &options, |device, techniques| {
///     let mut model = Gpt2::new(&Scope::new(device, 1), Gpt2Config::small())?;
///     model.checkpoint_within(techniques.checkpointer());
///     let mut adamw = techniques.adamw(model.parameters(), AdamWOptions::default())?;
///     for _step in 0..2 {
///         adamw.zero_grad();
///         let tokens = Tensor::from_slice(&[7i64; 4 * 512], &[4, 512], device)?;
///         backward_in_parts(&[tokens], techniques.accumulate, |part| {
///             techniques.autocast(|| model.loss(&part[0], &part[0]))
///         })?;
///         adamw.step()?;
///     }
///     Ok(())
/// })?;
/// assert!(fitted.takes.reserved_bytes <= 2 << 30);
/// for line in fitted.techniques.code() {
///     println!("{line}"); // let optimizer = step_in_backward(…
/// }
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// The errors of the job, except out of memory under the limit. If nothing fits, the least that the job reserves.
pub fn fit(
    gpu: &SimConfig,
    limit_bytes: u64,
    options: &FitOptions,
    mut job: impl FnMut(&Device, &Techniques) -> Result<()>,
) -> Result<Fitted> {
    let searched = search(limit_bytes, options, |techniques, limit| {
        match simulated(gpu, limit, techniques, &mut job) {
            Ok(takes) => Ok(Some(takes)),
            Err(error) if is_too_little(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })?;
    let Some(least) = searched.least() else {
        let message = "a budget in `base` is below what the blocks need: use a larger one, or `Budget::Auto`";
        return Err(Error::argument("fit", message));
    };
    let with: Vec<String> = least.techniques.code().iter().map(|line| format!("`{line}`")).collect();
    let message = format!(
        "the job does not fit in {}: it reserves {}{}{}; make the batch or the model smaller",
        Bytes(limit_bytes),
        Bytes(least.takes.reserved_bytes),
        if with.is_empty() { "" } else { " with " },
        with.join(" and ")
    );
    searched.fitted().ok_or(Error::Argument { op: "fit", message })
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
