//! The memory of three training steps of common models on a simulated H200, compared with PyTorch's.
//!
//! Both sides run the same program: batch, model, optimizer, type. `pytorch.py` in this folder measured PyTorch's peaks and
//! wrote `pytorch.json`; `programs.rs` has our programs.

mod programs;

use std::fmt::Write as _;

use clap::Args;
use plimsoll::{DType, Device, SimConfig, Tensor, autocast};
use serde::{Deserialize, Serialize};

use self::programs::Program;
use crate::exit::{Exit, Failure};
use crate::output::{BOLD, RESET};

#[derive(Args)]
pub(crate) struct ModelsArgs {
    /// Only programs whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The file that `pytorch.py` wrote.
#[derive(Deserialize)]
struct Recorded {
    versions: Versions,
    rows: Vec<Reference>,
}

#[derive(Deserialize)]
struct Versions {
    torch: String,
}

/// PyTorch's peak of a program.
#[derive(Deserialize)]
struct Reference {
    model: String,
    optimizer: String,
    dtype: String,
    peak_bytes: u64,
}

/// One line of the result.
#[derive(Serialize)]
struct Row {
    model: String,
    program: &'static str,
    optimizer: String,
    dtype: String,
    pytorch_peak_bytes: u64,
    peak_bytes: u64,
    ratio: f64,
}

/// Measures. Returns the text for stdout.
pub(crate) fn run(args: &ModelsArgs) -> Result<String, Failure> {
    let recorded = recorded();
    let wanted = |row: &&Reference| args.only.as_ref().is_none_or(|only| row.model.contains(only.as_str()));
    let mut rows = Vec::new();
    for reference in recorded.rows.iter().filter(wanted) {
        if let Some(program) = programs::named(&reference.model) {
            rows.push(row(reference, program)?);
        }
    }
    if rows.is_empty() {
        let names: Vec<&str> = programs::PROGRAMS.iter().map(|program| program.name).collect();
        let message = format!("no program's name contains that; known: {}", names.join(", "));
        return Err(Failure::new(Exit::Usage, message));
    }
    let version = recorded.versions.torch.split('+').next().unwrap_or_default();
    if args.json {
        let json =
            serde_json::json!({ "schema": 1, "gpu": "H200", "steps": 3, "pytorch": version, "rows": rows });
        return Ok(json.to_string());
    }
    let mut text = format!(
        "{BOLD}peak memory of three training steps{RESET} on a simulated H200, compared with PyTorch {version}'s (GB allocated)\n\
         {:<34}{:<7}{:<15}{:>8}{:>10}{:>7}\n",
        "program", "steps", "type", "PyTorch", "Plimsoll", "ratio"
    );
    for row in &rows {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let _ = writeln!(
            text,
            "{:<34}{:<7}{:<15}{:>8.3}{:>10.3}{:>7.2}",
            row.program,
            row.optimizer,
            row.dtype,
            gb(row.pytorch_peak_bytes),
            gb(row.peak_bytes),
            row.ratio
        );
    }
    Ok(text)
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("pytorch.json"))
        .unwrap_or_else(|error| unreachable!("pytorch.json is part of this program: {error}"))
}

fn row(reference: &Reference, program: &Program) -> plimsoll::Result<Row> {
    let amp = (reference.dtype != "f32").then_some(DType::BF16);
    let peak_bytes = peak_bytes(program, &reference.optimizer, amp)?;
    Ok(Row {
        model: reference.model.clone(),
        program: program.title,
        optimizer: reference.optimizer.clone(),
        dtype: reference.dtype.clone(),
        pytorch_peak_bytes: reference.peak_bytes,
        peak_bytes,
        ratio: peak_bytes as f64 / reference.peak_bytes as f64,
    })
}

/// Runs three steps of a new model. Returns the peak of the allocated bytes.
fn peak_bytes(program: &Program, optimizer: &str, amp: Option<DType>) -> plimsoll::Result<u64> {
    let device = Device::sim(SimConfig::like("H200")?);
    let model = (program.build)(&device)?;
    let mut optimizer = programs::optimizer(optimizer, model.parameters);
    // As in a Python loop, a batch is freed only after the next one exists.
    let mut batch: Option<(Tensor, Tensor)> = None;
    for _ in 0..3 {
        let (x, y) = batch.insert((program.batch)(&device)?);
        let loss = autocast::autocast(amp, || (model.loss)(x, y))?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
    }
    Ok(device.max_memory_allocated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_takes_more_memory_than_pytorch() {
        for reference in &recorded().rows {
            let Some(program) = programs::named(&reference.model) else { continue };
            let row = row(reference, program).unwrap();
            let limit = if matches!(row.model.as_str(), "gpt2" | "llama") { 0.6 } else { 1.0 };
            assert!(row.ratio <= limit, "{} {}: {} of {limit}", row.model, row.dtype, row.ratio);
        }
    }
}
