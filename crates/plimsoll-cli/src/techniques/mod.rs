//! Techniques that make a PyTorch program use less memory, applied to the unmodified program: [`Technique`], [`Set`].
//!
//! | file | contents |
//! |---|---|
//! | `technique.rs` | the names of the techniques in Rust |
//! | `row.rs` | what is known of a technique |
//! | `table.rs` | the rows of all techniques, each of which is a file of its own |
//! | `set.rs` | the set of a `--with` |
//! | `python.rs` | a set as the Python package reads it |
//! | `../../python/plimsoll/techniques/` | the Python package that applies them inside the user's Python, a technique a file |

mod accumulate;
mod adam_8bit;
mod bf16;
mod checkpoint;
mod checkpoint_nested;
mod chunked_loss;
mod compile;
mod expandable;
mod free_grads;
mod fsdp;
mod fused;
mod memory_budget;
mod no_compile;
mod no_foreach;
mod offload;
mod offload_optimizer;
mod python;
mod row;
mod set;
mod split;
mod step_in_backward;
mod table;
mod technique;

pub(crate) use self::row::{Alone, Joins, Levels, Operators, Programs, Shown, Time, Value};
pub(crate) use self::set::Set;
pub(crate) use self::table::help;
pub(crate) use self::technique::{Numbers, Technique};

/// The files of the Python package.
pub(crate) const PYTHON: [(&str, &str); 29] = [
    ("__init__.py", include_str!("../../python/plimsoll/techniques/__init__.py")),
    ("accumulate.py", include_str!("../../python/plimsoll/techniques/accumulate.py")),
    ("adam_8bit.py", include_str!("../../python/plimsoll/techniques/adam_8bit.py")),
    ("again.py", include_str!("../../python/plimsoll/techniques/again.py")),
    ("autocast.py", include_str!("../../python/plimsoll/techniques/autocast.py")),
    ("blocks.py", include_str!("../../python/plimsoll/techniques/blocks.py")),
    ("checkpoint.py", include_str!("../../python/plimsoll/techniques/checkpoint.py")),
    ("chunked_loss.py", include_str!("../../python/plimsoll/techniques/chunked_loss.py")),
    ("compile.py", include_str!("../../python/plimsoll/techniques/compile.py")),
    ("context.py", include_str!("../../python/plimsoll/techniques/context.py")),
    ("count.py", include_str!("../../python/plimsoll/techniques/count.py")),
    ("each.py", include_str!("../../python/plimsoll/techniques/each.py")),
    ("expandable.py", include_str!("../../python/plimsoll/techniques/expandable.py")),
    ("free_grads.py", include_str!("../../python/plimsoll/techniques/free_grads.py")),
    ("fsdp.py", include_str!("../../python/plimsoll/techniques/fsdp.py")),
    ("lane.py", include_str!("../../python/plimsoll/techniques/lane.py")),
    ("frameworks.py", include_str!("../../python/plimsoll/techniques/frameworks.py")),
    ("lazy_logits.py", include_str!("../../python/plimsoll/techniques/lazy_logits.py")),
    ("memory_budget.py", include_str!("../../python/plimsoll/techniques/memory_budget.py")),
    ("no_compile.py", include_str!("../../python/plimsoll/techniques/no_compile.py")),
    ("observers.py", include_str!("../../python/plimsoll/techniques/observers.py")),
    ("offload.py", include_str!("../../python/plimsoll/techniques/offload.py")),
    ("optimizers.py", include_str!("../../python/plimsoll/techniques/optimizers.py")),
    ("parts.py", include_str!("../../python/plimsoll/techniques/parts.py")),
    ("ranks.py", include_str!("../../python/plimsoll/techniques/ranks.py")),
    ("roots.py", include_str!("../../python/plimsoll/techniques/roots.py")),
    ("rows.py", include_str!("../../python/plimsoll/techniques/rows.py")),
    ("split.py", include_str!("../../python/plimsoll/techniques/split.py")),
    ("step_in_backward.py", include_str!("../../python/plimsoll/techniques/step_in_backward.py")),
];
