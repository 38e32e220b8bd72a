//! Memory that grows from step to step: [`growth`], and [`assert_no_growth`] for tests.
//!
//! After each step, the live blocks are summed by owner, operation and line of the program. The allocator knows these of each block, so
//! nothing has to be recorded.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_tensor::caller::Line;
use plimsoll_tensor::history::{self, LabelId, StackId};
use plimsoll_tensor::{BlockState, Bytes, Category, Device, label};

/// The first steps make gradients and optimizer state, so their ends are not compared.
const WARM_UP: usize = 1;
/// The fewest steps that can be compared.
const LEAST_STEPS: usize = 4;

/// Memory that grew from step to step: the result of [`growth`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The number of steps that ran.
    pub steps: usize,
    /// What grew, by owner and line: most bytes first.
    pub grown: Vec<Grown>,
}

/// One owner's memory that grew, and where it was requested: see [`Growth`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grown {
    /// The owner: a layer, a parameter or an operation.
    pub label: String,
    /// The purpose of the bytes.
    pub category: Category,
    /// The operation that requested the bytes.
    pub op: String,
    /// The line of the program that called it; `None` if it is not known.
    pub at: Option<Line>,
    /// The mean growth, bytes per step.
    pub bytes_per_step: u64,
    /// The live bytes after each compared step: those from the second on.
    pub levels: Vec<u64>,
}

impl Growth {
    /// The growth of everything that grew, bytes per step.
    pub fn bytes_per_step(&self) -> u64 {
        self.grown.iter().map(|grown| grown.bytes_per_step).sum()
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.grown.is_empty() {
            return write!(f, "memory did not grow in {} steps", self.steps);
        }
        write!(f, "memory grows by {} per step ({} steps ran)", Bytes(self.bytes_per_step()), self.steps)?;
        self.grown.iter().try_for_each(|grown| write!(f, "\n  {grown}"))
    }
}

impl fmt::Display for Grown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grown { label, category, op, at, bytes_per_step, .. } = self;
        write!(f, "{label} ({}): {} per step, ", category.name(), Bytes(*bytes_per_step))?;
        match at {
            Some(at) => write!(f, "requested by {op} at {}:{}", at.file(), at.line()),
            None => write!(f, "requested by {op} at an unknown line"),
        }
    }
}

/// Runs `step` this many times, at least four, and reports what grew: owner, line, bytes per step. The first step, which creates
/// gradients and optimizer state, does not count. Memory grew if no level in the second half of the others is below a level in the
/// first half, and the second half grew too. So a cache that fills once is not growth.
///
/// The line is the innermost one of the program: a call to a tensor's method, a layer, `backward` or an optimizer's `step`.
///
/// ```
/// use plimsoll::{Device, Error, SimConfig, Tensor, memory};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::ones(&[1024], &device)?;
/// let mut log = Vec::new();
/// let growth = memory::growth(&device, 6, || {
///     log.push(x.exp()?); // kept by mistake
///     Ok::<(), Error>(())
/// })?;
/// assert_eq!((growth.grown[0].label.as_str(), growth.bytes_per_step()), ("exp", 4096));
/// println!("{growth}");
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The first error of `step`.
pub fn growth<E>(
    device: &Device,
    steps: usize,
    mut step: impl FnMut() -> Result<(), E>,
) -> Result<Growth, E> {
    let steps = steps.max(LEAST_STEPS);
    let mut levels: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    for number in 0..steps {
        step()?;
        if let Some(compared) = number.checked_sub(WARM_UP) {
            for (key, bytes) in live(device) {
                let of_key = levels.entry(key).or_default();
                of_key.resize(compared, 0);
                of_key.push(bytes);
            }
        }
    }
    let compared = steps - WARM_UP;
    let mut grown: Vec<Grown> = levels
        .into_iter()
        .filter_map(|(key, mut levels)| {
            levels.resize(compared, 0);
            grew(&levels).map(|bytes_per_step| key.grown(bytes_per_step, levels))
        })
        .collect();
    grown.sort_by_key(|grown| std::cmp::Reverse(grown.bytes_per_step));
    Ok(Growth { steps, grown })
}

/// Runs `step` this many times, and panics if memory of the device grew: for tests of training programs. The message has the owner,
/// the line and the bytes per step of each growth. [`growth`] explains what counts as growth, and returns it instead.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::{Device, Tensor, memory};
/// let device = Device::cpu_with(Default::default());
/// let (model, x) = (Linear::new(&Scope::new(&device, 1), 4, 4)?, Tensor::ones(&[2, 4], &device)?);
/// memory::assert_no_growth(&device, 6, || model.forward(&x)?.sum()?.backward());
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Panics
/// If memory grew, or `step` returned an error.
#[track_caller]
pub fn assert_no_growth<E: fmt::Display>(device: &Device, steps: usize, step: impl FnMut() -> Result<(), E>) {
    match growth(device, steps, step) {
        Ok(growth) => assert!(growth.grown.is_empty(), "{growth}"),
        Err(error) => panic!("a step failed: {error}"),
    }
}

/// The key by which blocks are summed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    label: LabelId,
    category: Category,
    op: String,
    at: Option<Line>,
}

impl Key {
    fn grown(self, bytes_per_step: u64, levels: Vec<u64>) -> Grown {
        let Key { label, category, op, at } = self;
        Grown { label: label::text(label), category, op, at, bytes_per_step, levels }
    }
}

/// The live bytes by key.
fn live(device: &Device) -> BTreeMap<Key, u64> {
    let mut sums: BTreeMap<(LabelId, Category, Option<StackId>), u64> = BTreeMap::new();
    for block in device.memory_snapshot().iter().flat_map(|segment| &segment.blocks) {
        if block.state == BlockState::Active {
            *sums.entry((block.tag.label, block.tag.category, block.stack)).or_default() += block.bytes;
        }
    }
    let mut by_key: BTreeMap<Key, u64> = BTreeMap::new();
    for ((label, category, stack), bytes) in sums {
        let op = stack.map(history::operation).unwrap_or_default();
        let key = Key { label, category, op, at: stack.and_then(history::line) };
        *by_key.entry(key).or_default() += bytes;
    }
    by_key
}

/// The mean growth per step, if no level of the second half is below one of the first half, and the second half grows too.
fn grew(levels: &[u64]) -> Option<u64> {
    let (first, second) = levels.split_at(levels.len() / 2);
    let (highest, lowest) = (first.iter().max()?, second.iter().min()?);
    let (start, end) = (first.first()?, second.last()?);
    let goes_on = second.len() < 2 || end > second.first()?;
    (lowest >= highest && end > start && goes_on).then(|| (end - start) / (levels.len() as u64 - 1))
}

#[cfg(test)]
mod tests {
    use super::grew;

    #[test]
    fn a_level_that_rises_grows_and_one_that_varies_does_not() {
        assert_eq!(grew(&[0, 10, 20]), Some(10));
        assert_eq!(grew(&[100, 110, 120, 130, 140]), Some(10));
        assert_eq!(grew(&[10, 10, 20, 20, 30, 30]), Some(4), "every second step");
        assert_eq!(grew(&[10, 30, 20, 30, 10]), None);
        assert_eq!(grew(&[0, 8, 8, 8, 8, 8]), None, "a cache that fills once");
        assert_eq!(grew(&[0, 0, 0, 8, 8, 8]), None, "later");
        assert_eq!(grew(&[7, 7, 7]), None);
    }
}
