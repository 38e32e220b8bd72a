//! What a job does to take less memory: [`Techniques`].

use plimsoll::checkpoint::Budget;

use crate::bytes;

/// The techniques that are options of every training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Techniques {
    /// What the blocks may keep for the backward pass.
    pub(crate) activations: Option<Budget>,
    /// The number of parts of a batch, one after the other.
    pub(crate) accumulate: usize,
}

impl Techniques {
    /// The options that choose these techniques.
    pub(crate) fn options(&self) -> Vec<String> {
        let activations = self.activations.map(|budget| match budget {
            Budget::Bytes(most) => format!("--activations {}", bytes::exact(most)),
            _ => "--activations auto".to_owned(),
        });
        let accumulate = (self.accumulate > 1).then(|| format!("--accumulate {}", self.accumulate));
        activations.into_iter().chain(accumulate).collect()
    }

    /// These techniques without each one of them, with its option, and how a Rust program uses it.
    pub(super) fn without_each(&self) -> Vec<(String, String, Techniques)> {
        let mut all = Vec::new();
        let named = |techniques: Techniques| techniques.options().concat();
        if let Some(budget) = self.activations {
            let only = Techniques { accumulate: 1, ..*self };
            let code = match budget {
                Budget::Bytes(most) => format!("model.checkpoint_within(Budget::Bytes({most}));"),
                _ => "model.checkpoint_within(Budget::Auto);".to_owned(),
            };
            all.push((named(only), code, Techniques { activations: None, ..*self }));
        }
        if self.accumulate > 1 {
            let only = Techniques { activations: None, ..*self };
            let code =
                "(loss * (part_rows / batch_rows))?.backward()?; for each part, then optimizer.step()?;";
            let code = code.to_owned();
            all.push((named(only), code, Techniques { accumulate: 1, ..*self }));
        }
        all
    }
}

/// Reads `--activations`: a size, or `auto`.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    match text {
        "auto" => Ok(Budget::Auto),
        size => bytes::parse_positive(size).map(Budget::Bytes).map_err(|why| format!("{why}; or `auto`")),
    }
}

/// How a job was made to fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fitted {
    pub(crate) limit_bytes: u64,
    /// The number of simulated runs.
    pub(crate) runs: u32,
    /// A step's estimated time, divided by that with enough memory.
    pub(crate) times_as_long: f64,
}
