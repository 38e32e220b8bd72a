//! What a job does to use less memory: [`Techniques`], as options of the command line.

use plimsoll::checkpoint::Budget;
pub(crate) use plimsoll::fit::Techniques;

use crate::bytes;

/// The options that choose these techniques.
pub(crate) fn options(techniques: &Techniques) -> Vec<String> {
    let activations = techniques.activations.map(|budget| match budget {
        Budget::Bytes(most) => format!("--activations {}", bytes::exact(most)),
        _ => "--activations auto".to_owned(),
    });
    let offload = techniques.offload.filter(|_| activations.is_some());
    let offload = offload.map(|most| format!("--offload {}", bytes::exact(most)));
    let accumulate = (techniques.accumulate > 1).then(|| format!("--accumulate {}", techniques.accumulate));
    activations.into_iter().chain(offload).chain(accumulate).collect()
}

/// For each technique: the set without it, its option, and how a Rust program uses it.
pub(super) fn without_each(techniques: &Techniques) -> Vec<(String, String, Techniques)> {
    let mut all = Vec::new();
    let named = |only: Techniques| options(&only).join(" ");
    if let Some(code) = techniques.code() {
        let only = Techniques { accumulate: 1, ..*techniques };
        all.push((named(only), code, Techniques { activations: None, ..*techniques }));
    }
    if techniques.accumulate > 1 {
        let only = Techniques { activations: None, ..*techniques };
        let code = "(loss * (part_rows / batch_rows))?.backward()?; for each part, then optimizer.step()?;";
        all.push((named(only), code.to_owned(), Techniques { accumulate: 1, ..*techniques }));
    }
    all
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
pub(crate) struct Chosen {
    pub(crate) limit_bytes: u64,
    /// The number of simulated runs.
    pub(crate) runs: u32,
    /// A step's estimated time, divided by the time with enough memory.
    pub(crate) times_as_long: f64,
}
