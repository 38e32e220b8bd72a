//! Counts instructions if the processor's counters cannot be read. For each mix, the program runs itself
//! again under `valgrind --tool=callgrind`, which counts the instructions of the measured loop.

use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;

use super::meter::Meter;
use super::mixes::{History, Mix};
use crate::exit::{Exit, Failure};

/// The number of requests of a mix under callgrind, which is about fifty times slower. It is enough for the
/// allocator's state to settle: the result differs by less than 1 % from that of the complete mix.
pub(super) const REQUESTS: u32 = 200_000;

/// Clap's name for the subcommand of [`MixArgs`].
const VERB: &str = "allocator-mix";

/// `plimsoll bench allocator-mix`, a hidden subcommand: runs one mix without output, under callgrind.
#[derive(Args)]
pub(crate) struct MixArgs {
    /// Its name in the table
    mix: Mix,
    /// At most this many requests
    requests: u32,
    history: History,
}

/// Runs the mix that callgrind measures.
pub(crate) fn run(args: &MixArgs) -> Result<String, Failure> {
    let mix = args.mix.at_most(args.requests);
    match mix.cost(&mut Meter::new(), &Mix::device(), args.history) {
        Ok(_) => Ok(String::new()),
        Err(why) => Err(Failure::new(Exit::OutOfMemory, why.to_string())),
    }
}

/// The instructions of one request, counted by callgrind while `program` (a build of this one) runs the mix, or
/// why they could not be counted.
pub(super) fn instructions(program: &Path, mix: Mix, history: History) -> Result<f64, String> {
    let history = if history == History::On { "on" } else { "off" };
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={}", Meter::WORK_SYMBOL))
        .arg(program)
        .args(["bench", VERB, &mix.name(), &mix.requests.to_string(), history])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("valgrind: {why}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let said = |line: &&str| line.contains("error") || line.contains("unhandled instruction");
        return Err(format!("valgrind: {}: {}", output.status, log.lines().find(said).unwrap_or_default()));
    }
    match collected(&log) {
        Some(0) => Err("valgrind: the program has no symbols".to_owned()),
        Some(all) => Ok(all as f64 / f64::from(mix.requests)),
        None => Err("valgrind: no line `Collected`".to_owned()),
    }
}

/// The number at the end of `==1234== Collected : 5678`.
fn collected(log: &str) -> Option<u64> {
    log.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_sum_is_read_from_its_log() {
        let log = "==7== Callgrind, a call-graph\n==7== Events    : Ir\n==7== Collected : 5678\n";
        assert_eq!(collected(log), Some(5678));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn a_program_that_fails_is_a_reason_for_no_number() {
        let mix = super::super::mixes::MIXES[0];
        let why = instructions(Path::new("/no/such/program"), mix, History::Off).expect_err("not there");
        assert!(why.starts_with("valgrind: "), "{why}");
    }
}
