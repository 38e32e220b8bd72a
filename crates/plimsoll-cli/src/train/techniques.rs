//! What a job does to use less memory: [`Techniques`], and how they were found.

use plimsoll::checkpoint::Budget;
pub(crate) use plimsoll::fit::Techniques;
use plimsoll::fit::Tried;

use crate::bytes;

/// Reads `--activations`: a size, or `auto`.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    match text {
        "auto" => Ok(Budget::Auto),
        size => bytes::parse_positive(size).map(Budget::Bytes).map_err(|why| format!("{why}; or `auto`")),
    }
}

/// How a job was made to fit.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) limit_bytes: u64,
    /// The number of simulated runs.
    pub(crate) runs: u32,
    /// A step's estimated time, divided by the time with enough memory.
    pub(crate) times_as_long: f64,
    /// The techniques that the job had before.
    pub(crate) base: Techniques,
    /// All sets that were tried.
    pub(crate) tried: Vec<Tried>,
}
