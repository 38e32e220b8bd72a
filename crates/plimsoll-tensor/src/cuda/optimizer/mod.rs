//! Optimizers, and the norms of gradients.
//!
//! | file | contents |
//! |---|---|
//! | `table` | the arguments of kernels that work on many tensors in one launch |
//! | `step` | the rules that step all parameters at once |
//! | `adamw_8bit` | AdamW with moments in 8 bits |
//! | `one_by_one` | the rules that step one parameter at a time |
//! | `clip` | many gradients together: norms, limits |
//! | `foreach_copy` | copies of many tensors in one launch |

pub(crate) mod adamw_8bit;
pub(crate) mod clip;
pub(crate) mod foreach_copy;
pub(crate) mod one_by_one;
pub(crate) mod step;
mod table;

/// A parameter of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSlot {
    /// The number of the step, from 1.
    pub(crate) step: u64,
    /// The number of its state tensors.
    pub(crate) states: usize,
    /// The seed with which the parameter is rounded stochastically; `None` to round to nearest.
    pub(crate) seed: Option<u64>,
}

/// Eight numbers as `float`, two to a word.
fn halves(numbers: [f64; 8]) -> [u64; 4] {
    let bits = |i: usize| u64::from((numbers[i] as f32).to_bits());
    std::array::from_fn(|i| bits(2 * i) | bits(2 * i + 1) << 32)
}
