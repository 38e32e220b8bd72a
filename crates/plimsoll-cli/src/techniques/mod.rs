//! Techniques that make a PyTorch program use less memory, applied to the unmodified program: [`TECHNIQUES`], [`Set`].
//!
//! | file | contents |
//! |---|---|
//! | `set.rs` | the set of a `--with` |
//! | `../../python/plimsoll/techniques/` | the Python package that applies them inside the user's Python, a technique a file |

mod set;

pub(crate) use self::set::Set;

/// A technique.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Technique {
    /// The name in `--with`.
    pub(crate) name: &'static str,
    pub(crate) numbers: Numbers,
    pub(crate) value: Value,
    /// How much of a program an engineer changes to do the same by hand: from 1, a setting, to 4.
    pub(crate) effort: u32,
    /// What it does, for the help.
    pub(crate) about: &'static str,
}

/// What a technique does to losses and parameters, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbers {
    /// The same bits.
    Identical,
    /// The same formulas, rounded differently.
    Rounding,
    /// Other formulas.
    Changed,
}

impl Numbers {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Numbers::Identical => "identical",
            Numbers::Rounding => "rounding",
            Numbers::Changed => "changed",
        }
    }
}

/// The value of a technique in `--with`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// None.
    Nothing,
    /// A number of blocks or rows, at least 1; may be left out.
    Count,
    /// A number of parts, at least 2.
    Parts,
    /// A percentage from 1 to 100; may be left out.
    Percent,
}

/// All techniques, in the order of the help.
pub(crate) const TECHNIQUES: [Technique; 17] = [
    Technique {
        name: "expandable",
        numbers: Numbers::Identical,
        value: Value::Nothing,
        effort: 1,
        about: "expandable segments of the allocator: less fragmentation",
    },
    Technique {
        name: "free-grads",
        numbers: Numbers::Identical,
        value: Value::Nothing,
        effort: 1,
        about: "free gradients before the forward pass, not after it",
    },
    Technique {
        name: "step-in-backward",
        numbers: Numbers::Identical,
        value: Value::Nothing,
        effort: 4,
        about: "update each parameter as soon as its gradient is complete, and free the gradient",
    },
    Technique {
        name: "checkpoint",
        numbers: Numbers::Identical,
        value: Value::Count,
        effort: 2,
        about: "recompute activations of the model's repeated blocks in the backward pass; =K: of the first K blocks",
    },
    Technique {
        name: "checkpoint-nested",
        numbers: Numbers::Identical,
        value: Value::Count,
        effort: 2,
        about: "the same for the repeated blocks inside those blocks, such as the blocks of a network's stages",
    },
    Technique {
        name: "offload",
        numbers: Numbers::Identical,
        value: Value::Percent,
        effort: 2,
        about: "move tensors saved for the backward pass to the host; =PERCENT of their bytes [95]",
    },
    Technique {
        name: "chunked-loss",
        numbers: Numbers::Rounding,
        value: Value::Count,
        effort: 3,
        about: "compute the last linear layer and its cross-entropy in chunks; =ROWS: of this many rows",
    },
    Technique {
        name: "no-foreach",
        numbers: Numbers::Rounding,
        value: Value::Nothing,
        effort: 1,
        about: "update one parameter at a time, without temporary copies of all",
    },
    Technique {
        name: "fused",
        numbers: Numbers::Rounding,
        value: Value::Nothing,
        effort: 1,
        about: "update in one fused kernel, without temporary copies",
    },
    Technique {
        name: "accumulate",
        numbers: Numbers::Rounding,
        value: Value::Parts,
        effort: 3,
        about: "run the batch in N parts, forward and backward, if the model returns its loss",
    },
    Technique {
        name: "split",
        numbers: Numbers::Rounding,
        value: Value::Parts,
        effort: 3,
        about: "run the batch in N parts inside the model, each recomputed in the backward pass",
    },
    Technique {
        name: "compile",
        numbers: Numbers::Rounding,
        value: Value::Percent,
        effort: 1,
        about: "compile the model with torch.compile, and keep only a part of its activations; =PERCENT of them [50]",
    },
    Technique {
        name: "memory-budget",
        numbers: Numbers::Rounding,
        value: Value::Percent,
        effort: 1,
        about: "make the program's own torch.compile keep only a part of the activations; =PERCENT of them [50]",
    },
    Technique {
        name: "no-compile",
        numbers: Numbers::Rounding,
        value: Value::Nothing,
        effort: 1,
        about: "switch off the program's own torch.compile, so that other techniques can act",
    },
    Technique {
        name: "fsdp",
        numbers: Numbers::Rounding,
        value: Value::Nothing,
        effort: 4,
        about: "shard parameters, gradients and optimizer states over --devices GPUs; each computes a part of the batch",
    },
    Technique {
        name: "adam-8bit",
        numbers: Numbers::Changed,
        value: Value::Nothing,
        effort: 2,
        about: "keep the moments of Adam and AdamW in 8 bits",
    },
    Technique {
        name: "bf16",
        numbers: Numbers::Changed,
        value: Value::Nothing,
        effort: 2,
        about: "run the model under bf16 autocast",
    },
];

/// The technique of this name.
pub(crate) fn named(name: &str) -> Option<&'static Technique> {
    TECHNIQUES.iter().find(|technique| technique.name == name)
}

/// The list for a help text.
pub(crate) fn help() -> String {
    let width = TECHNIQUES.iter().map(|it| it.name.len()).max().unwrap_or(0);
    let line = |it: &Technique| {
        let value = match it.value {
            Value::Parts => "=N",
            _ => "",
        };
        format!(
            "  {:<width$}  {:<9}  {}\n",
            format!("{}{value}", it.name),
            it.numbers.name(),
            it.about,
            width = width + 2
        )
    };
    TECHNIQUES.iter().map(line).collect()
}
