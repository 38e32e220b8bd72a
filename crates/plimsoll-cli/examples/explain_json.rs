//! Reads the program's JSON answer from another program: `cargo run -p plimsoll-cli --example explain_json SNAPSHOT`.
//! It runs the `plimsoll` that Cargo built, or the one in PATH.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::error::Error;
use std::process::Command;

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let snapshot = std::env::args_os().nth(1).ok_or("usage: explain_json SNAPSHOT")?;
    let built = std::env::current_exe()?.parent().and_then(|it| it.parent()).map(|it| it.join("plimsoll"));
    let program = built.filter(|it| it.is_file()).unwrap_or_else(|| "plimsoll".into());
    let output = Command::new(program).args(["explain", "--json"]).arg(snapshot).output()?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    // A failure is also JSON, and has a summary.
    let sentence = answer["verdict"]["text"].as_str().or(answer["summary"].as_str());
    println!("{}", sentence.unwrap_or("no answer"));
    for row in answer["devices"][0]["held"]["by_line"].as_array().into_iter().flatten().take(5) {
        println!("{:>14} {} {}", row["bytes"], row["line"]["file"], row["line"]["line"]);
    }
    Ok(())
}
