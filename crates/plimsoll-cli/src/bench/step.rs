//! One training step of a network on one fixed batch (`nets.rs`).
//!
//! Without peers it runs in this process. With peers, each command (including this program) runs in its own
//! process, in turn, for several rounds, so that changes in the machine's speed affect all equally. A peer
//! prints one line of JSON like ours: `{"ms": …, "ms_min": …, …}`.

use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use plimsoll::{Device, memory};

use super::floor::Floor;
use super::measured::Measured;
use super::nets::Net;
use super::table;
use crate::exit::{Exit, Failure};
use crate::output;

#[derive(Args)]
pub(crate) struct StepArgs {
    /// The network
    #[arg(long, value_enum, default_value_t = Net::Lenet)]
    model: Net,
    /// Number of timed steps
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Untimed warmup steps before the timed ones
    #[arg(long, value_name = "N", default_value_t = 10)]
    warmup: u32,
    /// Another program to compare with, as NAME=COMMAND; it must print one line of JSON with `ms` and `ms_min`
    #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = peer)]
    peers: Vec<Peer>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A program to compare with.
#[derive(Clone, Debug)]
struct Peer {
    name: String,
    command: String,
}

fn peer(text: &str) -> Result<Peer, String> {
    let (name, command) = text.split_once('=').ok_or("write NAME=COMMAND")?;
    if name.is_empty() || command.trim().is_empty() {
        return Err("write NAME=COMMAND".to_owned());
    }
    Ok(Peer { name: name.to_owned(), command: command.to_owned() })
}

/// Measures. Returns the text for stdout.
pub(crate) fn run(args: &StepArgs) -> Result<String, Failure> {
    let work = args.model.work();
    if args.peers.is_empty() {
        let measured = measure(args.model, args.steps, args.warmup)?;
        return Ok(if args.json {
            line(&measured)
        } else {
            table::alone(&measured, work, Floor::measure()?)
        });
    }
    let us = Peer { name: "plimsoll".to_owned(), command: ourselves(args)? };
    let mut rows: Vec<(String, Vec<Measured>)> = Vec::new();
    for round in 1..=args.rounds {
        for peer in [&us].into_iter().chain(&args.peers) {
            output::progress(&format!("round {round}/{}: {}", args.rounds, peer.name));
            let measured = ask(peer)?;
            match rows.iter_mut().find(|(name, _)| *name == peer.name) {
                Some((_, all)) => all.push(measured),
                None => rows.push((peer.name.clone(), vec![measured])),
            }
        }
    }
    let floor = Floor::measure()?;
    Ok(if args.json { table::json(&rows, work, floor) } else { table::beside(&rows, work, floor) })
}

fn measure(net: Net, steps: u32, warmup: u32) -> plimsoll::Result<Measured> {
    let hwm_start_mib = high_water_mib();
    let mut ready = net.build(&Device::cpu())?;
    let params = ready.parameters.iter().map(|parameter| parameter.numel() as u64).sum();
    let mut step = || -> plimsoll::Result<f32> {
        let loss = (ready.loss)()?;
        ready.optimizer.zero_grad();
        loss.backward()?;
        ready.optimizer.step()?;
        loss.item()
    };
    let loss_first = step()?;
    for _ in 1..warmup {
        step()?;
    }
    let (mut times, mut loss_last) = (Vec::new(), loss_first);
    for _ in 0..steps {
        let start = Instant::now();
        loss_last = step()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let ms = table::median(&mut times);
    Ok(Measured {
        peer: "plimsoll".to_owned(),
        model: net.name().to_owned(),
        ms,
        ms_min: times[0],
        per_s: net.work().items as f64 * 1e3 / ms,
        hwm_mib: high_water_mib(),
        hwm_start_mib,
        loss_first: loss_first.into(),
        loss_last: loss_last.into(),
        params,
    })
}

/// One line of JSON, as every peer prints it.
fn line(measured: &Measured) -> String {
    serde_json::to_string(measured).unwrap_or_else(|error| unreachable!("plain numbers have JSON: {error}"))
}

/// The command that runs this benchmark alone.
fn ourselves(args: &StepArgs) -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Exit::Unreadable, format!("cannot find the path of this program: {error}"))
    })?;
    let quoted = program.display().to_string().replace('\'', r"'\''");
    let (model, steps, warmup) = (args.model.name(), args.steps, args.warmup);
    Ok(format!("'{quoted}' bench step --json --model {model} --steps {steps} --warmup {warmup}"))
}

/// Runs a peer and reads the line that it prints.
fn ask(peer: &Peer) -> Result<Measured, Failure> {
    let failed = |why: String| Failure::new(Exit::Program, format!("peer {}: {why}", peer.name));
    let answer = Command::new("sh")
        .args(["-c", &peer.command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !answer.status.success() {
        return Err(failed(format!("{} from: {}", answer.status, peer.command)));
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    let json = text.lines().find(|line| line.starts_with('{'));
    let json = json.ok_or_else(|| failed("printed no line of JSON".to_owned()))?;
    serde_json::from_str(json).map_err(|error| failed(format!("{error} in: {json}")))
}

/// The peak resident memory of this process in MiB, or 0 if the system does not report it.
fn high_water_mib() -> f64 {
    memory::max_process_resident_bytes().unwrap_or(0) as f64 / f64::from(1 << 20)
}
