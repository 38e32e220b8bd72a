//! Compares three training steps of small models with PyTorch's from the same initial values: `cargo run --example check_models
//! -- cuda:0`.
//!
//! Arguments: a device, and names of models; without names, all models. For each model it prints its losses and PyTorch's, and
//! the largest difference, relative to the tolerance of the tests on the host. On a GPU the tolerance is four times as large,
//! because sums have a different order there.

#![allow(clippy::print_stdout, reason = "an example")]

#[path = "../tests/recorded_steps/mod.rs"]
mod recorded_steps;
mod support;

use plimsoll::allow_tf32_in_convolutions;
use support::{Arguments, Failure};

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read();
    let device = arguments.device()?;
    // PyTorch's results were computed in 32 bits.
    allow_tf32_in_convolutions(false);
    let names: Vec<String> =
        (1..).map(|i| arguments.get(i, "")).take_while(|name| !name.is_empty()).collect();
    let most = if device.name() == "cpu" { 1.0 } else { 4.0 };
    let (mut agree, mut differ) = (0, 0);
    for program in recorded_steps::programs() {
        if !names.is_empty() && !names.iter().any(|name| name == program.name) {
            continue;
        }
        let compared = (program.run)(&device)?;
        let losses = compared.losses.iter().map(|loss| format!("{:.6} ({:.6})", loss.got, loss.recorded));
        println!("{}: losses (PyTorch's) {}", program.name, losses.collect::<Vec<_>>().join(" "));
        let worst = compared.worst();
        println!(
            "    {} numbers compared; most different is {}: {:.7}, PyTorch's {:.7}, {:.2} of what is allowed",
            compared.losses.len() + compared.others.len(),
            worst.what,
            worst.got,
            worst.recorded,
            worst.share()
        );
        let counted = if worst.share() <= most { &mut agree } else { &mut differ };
        *counted += 1;
    }
    println!("{agree} models learn PyTorch's steps on {device}, {differ} do not");
    if differ == 0 { Ok(()) } else { Err("models differ from PyTorch's".into()) }
}
