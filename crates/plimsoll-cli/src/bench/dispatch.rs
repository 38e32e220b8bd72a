//! What it costs to lead one operation down the road to a device: an `add` of one element on a simulated device,
//! where nothing is computed, without and with recording.

use std::fmt::Write as _;

use clap::Args;
use plimsoll::{Device, SimConfig, Tensor};
use serde::Serialize;

use super::meter::{Cost, Meter};
use crate::exit::Failure;

#[derive(Args)]
pub(crate) struct DispatchArgs {
    /// Operations in each round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Rounds; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// One line of the result.
#[derive(Serialize)]
struct Line {
    recording: bool,
    ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<f64>,
}

/// Measures; the result is text for stdout.
pub(crate) fn run(args: &DispatchArgs) -> Result<String, Failure> {
    let mut meter = Meter::new();
    let lines = [false, true].map(|recording| {
        measure(args, &mut meter, recording).map(|cost| Line {
            recording,
            ns: cost.ns,
            instructions: cost.instructions,
        })
    });
    let [without, with] = lines;
    let lines = [without?, with?];
    if args.json {
        let json =
            serde_json::json!({ "schema": 1, "operation": "add of one element on sim", "lines": lines });
        return Ok(json.to_string());
    }
    let mut text = String::from("one add of one element on a simulated device\n");
    for line in &lines {
        let name = if line.recording { "recorded" } else { "not recorded" };
        let counted =
            line.instructions.map_or_else(String::new, |count| format!("  {count:.0} instructions"));
        let _ = writeln!(text, "  {name:<14}{:>8.0} ns{counted}", line.ns);
    }
    if let Some(why) = meter.why_no_instructions() {
        let _ = writeln!(text, "instructions are not counted: {why}");
    }
    Ok(text)
}

fn measure(args: &DispatchArgs, meter: &mut Meter, recording: bool) -> Result<Cost, Failure> {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::ones(&[1], &device)?.requires_grad_(recording)?;
    let mut best: Option<Cost> = None;
    for _ in 0..args.rounds {
        let cost = meter.second(args.operations, || -> plimsoll::Result<()> {
            for _ in 0..args.operations {
                std::hint::black_box((&x + &x)?);
            }
            Ok(())
        })?;
        best = Some(best.map_or(cost, |best| best.min(cost)));
    }
    Ok(best.unwrap_or(Cost { ns: 0.0, instructions: None }))
}
