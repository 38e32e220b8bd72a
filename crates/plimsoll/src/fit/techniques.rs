//! The techniques that a search combines: the table of them, and the sets ([`Techniques`]).

use std::fmt;

use plimsoll_tensor::autocast::autocast;
use plimsoll_tensor::checkpoint::{Budget, Checkpointer};
use plimsoll_tensor::{Bytes, DType, Error, Result, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::optim::{AdamW8bitOptions, AdamWOptions, Algorithm, Optimizer, OptimizerOf, step_in_backward};

/// A technique with which a job uses less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Technique {
    /// Blocks keep at most some bytes for the backward pass.
    Activations,
    /// A batch is trained on in parts, whose gradients are added up.
    Accumulate,
    /// Matrix products and convolutions are computed in `bfloat16`.
    Bfloat16,
    /// AdamW has its moments in 8 bits.
    AdamW8bit,
    /// The backward pass updates each parameter as soon as its gradient is complete, then frees the gradient.
    StepInBackward,
    /// The optimizer's state is in pinned host memory between steps.
    OffloadOptimizer,
}

/// How much techniques change losses and parameters, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbers {
    /// Bit-identical results.
    Identical,
    /// The same formulas, rounded differently.
    Rounding,
    /// Other formulas.
    Changed,
}

impl Numbers {
    /// Its name: `identical`, `rounding` or `changed`.
    pub fn name(self) -> &'static str {
        match self {
            Numbers::Identical => "identical",
            Numbers::Rounding => "rounding",
            Numbers::Changed => "changed",
        }
    }
}

/// How a search combines a technique with others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Joins {
    /// It may make a step faster: the search begins with each combination of these techniques.
    First,
    /// It only makes a step slower: it is added to sets that do not fit.
    Later,
    /// A set that does not fit gets the largest budget with which it does.
    Budget,
}

/// The facts about a technique.
struct Row {
    technique: Technique,
    name: &'static str,
    numbers: Numbers,
    joins: Joins,
    /// The options of `plimsoll train` that choose it.
    options: fn(&Techniques) -> Vec<String>,
    /// How a Rust program uses it.
    code: fn(&Techniques) -> String,
    has: fn(&Techniques) -> bool,
    /// Adds it with its usual value, or removes it.
    set: fn(&mut Techniques, bool),
    /// The techniques that it cannot be combined with, and why. Each pair is in one row only.
    excludes: &'static [(Technique, &'static str)],
}

/// All techniques. Their order is that of lines of code: what makes an optimizer comes before what changes it.
static ROWS: [Row; 6] = [
    Row {
        technique: Technique::Activations,
        name: "activations",
        numbers: Numbers::Rounding,
        joins: Joins::Budget,
        options: |set| {
            let budget = match set.activations {
                Some(Budget::Bytes(most)) => Bytes(most).exact(),
                _ => "auto".to_owned(),
            };
            let offload = set.offload.map(|most| format!("--offload {}", Bytes(most).exact()));
            [format!("--activations {budget}")].into_iter().chain(offload).collect()
        },
        code: |set| {
            let budget = match set.activations {
                Some(Budget::Bytes(most)) => format!("Budget::Bytes({most})"),
                Some(Budget::Segments(count)) => format!("Budget::Segments({count})"),
                _ => "Budget::Auto".to_owned(),
            };
            let budget = match set.offload {
                Some(most) => format!("Checkpointer::new({budget}).with_offload({most})"),
                None => budget,
            };
            format!("model.checkpoint_within({budget});")
        },
        has: |set| set.activations.is_some(),
        set: |set, on| set.activations = on.then_some(Budget::Auto),
        excludes: &[],
    },
    Row {
        technique: Technique::Accumulate,
        name: "accumulate",
        numbers: Numbers::Rounding,
        joins: Joins::Later,
        options: |set| vec![format!("--accumulate {}", set.accumulate)],
        code: |set| {
            format!("let loss = backward_in_parts(&batch, {}, |part| model.loss(part))?;", set.accumulate)
        },
        has: |set| set.accumulate > 1,
        set: |set, on| set.accumulate = if on { 2 } else { 1 },
        excludes: &[(
            Technique::StepInBackward,
            "a step in the backward pass frees gradients before those of the next part are added",
        )],
    },
    Row {
        technique: Technique::Bfloat16,
        name: "bfloat16",
        numbers: Numbers::Changed,
        joins: Joins::First,
        options: |_| vec!["--dtype bfloat16".to_owned()],
        code: |_| "let loss = autocast(DType::BF16, || model.loss(&batch))?;".to_owned(),
        has: |set| set.bfloat16,
        set: |set, on| set.bfloat16 = on,
        excludes: &[],
    },
    Row {
        technique: Technique::AdamW8bit,
        name: "adamw8bit",
        numbers: Numbers::Changed,
        joins: Joins::First,
        options: |_| vec!["--optimizer adamw8bit".to_owned()],
        code: |set| {
            match set.step_in_backward {
            true => "let options = AdamW8bitOptions { lr, ..AdamW8bitOptions::default() };".to_owned(),
            false => {
                "let mut adamw = AdamW8bit::new(model.parameters(), AdamW8bitOptions { lr, ..AdamW8bitOptions::default() });"
                    .to_owned()
            }
        }
        },
        has: |set| set.adamw_8bit,
        set: |set, on| set.adamw_8bit = on,
        excludes: &[],
    },
    Row {
        technique: Technique::StepInBackward,
        name: "step-in-backward",
        numbers: Numbers::Identical,
        joins: Joins::Later,
        options: |_| vec!["--step-in-backward".to_owned()],
        code: |_| "let optimizer = step_in_backward(&model.parameters(), options)?;".to_owned(),
        has: |set| set.step_in_backward,
        set: |set, on| set.step_in_backward = on,
        excludes: &[],
    },
    Row {
        technique: Technique::OffloadOptimizer,
        name: "offload-optimizer",
        numbers: Numbers::Identical,
        joins: Joins::Later,
        options: |_| vec!["--offload-optimizer".to_owned()],
        code: |_| "let optimizer = optimizer.with_offloaded_state();".to_owned(),
        has: |set| set.offload_optimizer,
        set: |set, on| set.offload_optimizer = on,
        excludes: &[],
    },
];

impl Technique {
    /// All techniques, in the order in which options and lines of code are printed.
    pub fn all() -> impl DoubleEndedIterator<Item = Technique> {
        ROWS.iter().map(|row| row.technique)
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its name: `step-in-backward`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// How much it changes losses and parameters.
    pub fn numbers(self) -> Numbers {
        self.row().numbers
    }

    /// The techniques that join sets in this way, in the order of the table.
    pub(super) fn that_join(joins: Joins) -> impl Iterator<Item = Technique> {
        ROWS.iter().filter(move |row| row.joins == joins).map(|row| row.technique)
    }

    /// The options of `plimsoll train` that choose it as this set has it.
    pub fn options(self, set: &Techniques) -> Vec<String> {
        (self.row().options)(set)
    }

    /// How a Rust program uses it as this set has it: a line.
    pub fn code(self, set: &Techniques) -> String {
        (self.row().code)(set)
    }
}

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of techniques. A job applies the ones that it can: see [`FitOptions`](super::FitOptions).
///
/// ```
/// use plimsoll::checkpoint::Budget;
/// use plimsoll::fit::{Numbers, Techniques};
/// let techniques = Techniques { activations: Some(Budget::Auto), step_in_backward: true, ..Techniques::default() };
/// assert_eq!(techniques.code(), [
///     "model.checkpoint_within(Budget::Auto);",
///     "let optimizer = step_in_backward(&model.parameters(), options)?;",
/// ]);
/// assert_eq!(techniques.options(), ["--activations auto", "--step-in-backward"]); // of `plimsoll train`
/// assert_eq!(techniques.numbers(), Numbers::Rounding);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Techniques {
    /// What the blocks may keep for the backward pass.
    #[serde(serialize_with = "write_budget", deserialize_with = "read_budget")]
    pub activations: Option<Budget>,
    /// With `activations`: the most bytes of pinned memory for activations that are offloaded instead of recomputed.
    pub offload: Option<u64>,
    /// The number of parts of a batch, one after the other, whose gradients are added up.
    pub accumulate: usize,
    /// Whether matrix products and convolutions are computed in `bfloat16`.
    pub bfloat16: bool,
    /// Whether AdamW has its moments in 8 bits.
    pub adamw_8bit: bool,
    /// Whether the backward pass updates parameters and frees their gradients.
    pub step_in_backward: bool,
    /// Whether the optimizer's state is in pinned host memory between steps.
    pub offload_optimizer: bool,
}

impl Default for Techniques {
    /// None.
    fn default() -> Techniques {
        Techniques {
            activations: None,
            offload: None,
            accumulate: 1,
            bfloat16: false,
            adamw_8bit: false,
            step_in_backward: false,
            offload_optimizer: false,
        }
    }
}

impl Techniques {
    /// The techniques in this set.
    pub fn iter(&self) -> impl Iterator<Item = Technique> {
        ROWS.iter().filter(|row| (row.has)(self)).map(|row| row.technique)
    }

    /// Whether the set has this technique.
    pub fn has(&self, technique: Technique) -> bool {
        (technique.row().has)(self)
    }

    /// The set and this technique: with [`Budget::Auto`], and in two parts.
    #[must_use]
    pub fn with(mut self, technique: Technique) -> Techniques {
        (technique.row().set)(&mut self, true);
        self
    }

    /// The set without this technique.
    #[must_use]
    pub fn without(mut self, technique: Technique) -> Techniques {
        (technique.row().set)(&mut self, false);
        self
    }

    /// The techniques of this set that `base` does not have.
    #[must_use]
    pub fn beyond(self, base: &Techniques) -> Techniques {
        base.iter().fold(self, Techniques::without)
    }

    /// The options of `plimsoll train` that choose these techniques.
    pub fn options(&self) -> Vec<String> {
        self.iter().flat_map(|technique| technique.options(self)).collect()
    }

    /// How a Rust program uses these techniques: a line for each.
    pub fn code(&self) -> Vec<String> {
        self.iter().map(|technique| technique.code(self)).collect()
    }

    /// How much the techniques change losses and parameters.
    pub fn numbers(&self) -> Numbers {
        self.iter().map(Technique::numbers).max().unwrap_or(Numbers::Identical)
    }

    /// Two techniques of the set that cannot be combined, and why.
    pub fn conflict(&self) -> Option<(Technique, Technique, &'static str)> {
        self.iter().find_map(|one| {
            let (other, why) = one.row().excludes.iter().find(|(other, _)| self.has(*other))?;
            Some((one, *other, *why))
        })
    }

    /// The `Checkpointer` that runs the blocks: pass it to `checkpoint_within` of a model, or keep it next to your own
    /// blocks. `None` if they keep everything.
    pub fn checkpointer(&self) -> Option<Checkpointer> {
        let checkpointer = Checkpointer::new(self.activations?);
        Some(match self.offload {
            Some(host_bytes) => checkpointer.with_offload(host_bytes),
            None => checkpointer,
        })
    }

    /// Runs the forward pass: under autocast to `bfloat16`, or as it is.
    ///
    /// # Errors
    /// The errors of `forward`.
    pub fn autocast<T>(&self, forward: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.bfloat16 { autocast(DType::BF16, forward) } else { forward() }
    }

    /// An optimizer with these options, which steps in the backward pass and keeps its state on the host if the techniques say
    /// so. Call `zero_grad` and `step` as usual: if the backward pass steps, they do nothing.
    ///
    /// ```
    /// use plimsoll::fit::Techniques;
    /// use plimsoll::nn::{Linear, Module, Scope};
    /// use plimsoll::optim::SgdOptions;
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let model = Linear::new(&Scope::new(&device, 1), 4, 1)?;
    /// let techniques = Techniques { step_in_backward: true, ..Techniques::default() };
    /// let mut sgd = techniques.optimizer(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    /// sgd.zero_grad();
    /// techniques.autocast(|| model.forward(&Tensor::ones(&[2, 4], &device)?)?.mean())?.backward()?;
    /// sgd.step()?;
    /// assert!(model.parameters().iter().all(|parameter| parameter.grad().is_none()));
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`step_in_backward`].
    pub fn optimizer<O: Algorithm>(&self, parameters: Vec<Tensor>, options: O) -> Result<Box<dyn Optimizer>> {
        if self.step_in_backward {
            let steps = step_in_backward(&parameters, options)?;
            return Ok(Box::new(if self.offload_optimizer { steps.with_offloaded_state() } else { steps }));
        }
        let steps = OptimizerOf::new(parameters, options);
        Ok(Box::new(if self.offload_optimizer { steps.with_offloaded_state() } else { steps }))
    }

    /// AdamW, with its moments in 8 bits if the techniques say so. Otherwise as [`Techniques::optimizer`].
    ///
    /// # Errors
    /// The errors of [`step_in_backward`]; `amsgrad` or `maximize` with moments in 8 bits.
    pub fn adamw(&self, parameters: Vec<Tensor>, options: AdamWOptions) -> Result<Box<dyn Optimizer>> {
        if !self.adamw_8bit {
            return self.optimizer(parameters, options);
        }
        let AdamWOptions { lr, betas, eps, weight_decay, amsgrad, maximize } = options;
        if amsgrad || maximize {
            let message = "with moments in 8 bits, there is no `amsgrad` and no `maximize`";
            return Err(Error::argument(AdamW8bitOptions::NAME, message));
        }
        let options = AdamW8bitOptions { lr, betas, eps, weight_decay, ..AdamW8bitOptions::default() };
        self.optimizer(parameters, options)
    }
}

/// A [`Budget`] as it is serialized.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Budget")]
enum Serialized {
    Segments(usize),
    Bytes(u64),
    Auto,
}

#[derive(Serialize, Deserialize)]
struct Written(#[serde(with = "Serialized")] Budget);

fn write_budget<S: Serializer>(budget: &Option<Budget>, to: S) -> std::result::Result<S::Ok, S::Error> {
    budget.map(Written).serialize(to)
}

fn read_budget<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Budget>, D::Error> {
    Ok(Option::<Written>::deserialize(from)?.map(|Written(budget)| budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_technique_is_at_its_place_in_the_table_and_can_be_added_and_removed() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!(row.technique as usize, place, "{}", row.name);
            let set = Techniques::default().with(row.technique);
            assert_eq!(set.iter().collect::<Vec<_>>(), [row.technique]);
            assert_eq!((set.options().len(), set.code().len(), set.numbers()), (1, 1, row.numbers));
            assert_eq!(set.without(row.technique), Techniques::default());
            for (other, _) in row.excludes {
                assert!(other.row().excludes.iter().all(|(it, _)| *it != row.technique), "stated twice");
                assert!(set.with(*other).conflict().is_some());
            }
        }
    }

    #[test]
    fn a_set_is_read_back() {
        for activations in [None, Some(Budget::Auto), Some(Budget::Bytes(7)), Some(Budget::Segments(3))] {
            let set = Techniques { activations, accumulate: 4, ..Techniques::default() };
            let set = set.with(Technique::AdamW8bit);
            let text = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<Techniques>(&text).unwrap(), set, "{text}");
        }
    }
}
