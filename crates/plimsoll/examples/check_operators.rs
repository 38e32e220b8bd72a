//! Operators on an NVIDIA GPU beside the host's, values and derivatives in four types. `cargo run --example check_operators -- cuda:0
//! row_norm layer_norm`; without names all of them, as `plimsoll doctor cuda` does.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use plimsoll::suite::{Outcome, check_near, check_near_in};
use plimsoll::{DType, OPERATORS, allow_tf32_in_convolutions};
use support::Arguments;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::read();
    let device = arguments.device()?;
    // The host multiplies in 32 bits.
    allow_tf32_in_convolutions(false);
    let names: Vec<String> =
        (1..).map(|i| arguments.get(i, "")).take_while(|name| !name.is_empty()).collect();
    let (mut agree, mut missing, mut differ) = (0, 0, 0);
    for (name, cases) in
        OPERATORS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name))
    {
        for case in cases() {
            let short =
                [DType::BF16, DType::F16, DType::F64].map(|float| check_near_in(&case, &device, float));
            for outcome in [check_near(&case, &device)].into_iter().chain(short) {
                match outcome {
                    Ok(Outcome::Agrees) => agree += 1,
                    Ok(Outcome::Missing(_)) => missing += 1,
                    Err(why) => {
                        differ += 1;
                        println!("{name}: {why}");
                    }
                }
            }
        }
    }
    println!("{agree} checks agree, {missing} have no kernel, {differ} differ");
    if differ == 0 { Ok(()) } else { Err("operators differ from the host's".into()) }
}
