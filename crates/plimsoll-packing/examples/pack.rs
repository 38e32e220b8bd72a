//! Packs the buffers of CSV files, and prints the arena of each: `cargo run --release -p plimsoll-packing --example pack FILE…`.
//!
//! Columns are `id,lower,upper,size`; a name that ends in `.gz` is unpacked. If a name has a number between two dots
//! (`A.1048576.csv`), it is a capacity, and the search ends with the first packing within it. `STEPS=N` changes the limit of the search.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::time::Instant;

use flate2::read::GzDecoder;
use plimsoll_packing::{Buffer, Effort, lower_bound, pack, pack_within};

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<20} {:>7} {:>14} {:>14} {:>8} {:>8}",
        "file", "buffers", "lower bound", "bytes", "ratio", "seconds"
    );
    let steps = std::env::var("STEPS").ok().and_then(|text| text.parse().ok());
    let effort = steps.map_or(Effort::default(), |steps| Effort { steps });
    for path in std::env::args().skip(1) {
        let buffers = read(&path)?;
        let bound = lower_bound(&buffers)?;
        let name = path.rsplit('/').next().unwrap_or(&path);
        let capacity = name.split('.').nth(1).and_then(|text| text.parse().ok());
        let began = Instant::now();
        let packing = match capacity {
            Some(capacity) => pack_within(&buffers, capacity, effort)?,
            None => Some(pack(&buffers, effort)?),
        };
        let seconds = began.elapsed().as_secs_f64();
        let Some(packing) = packing else {
            println!(
                "{name:<20} {:>7} {bound:>14} {:>14} {:>8} {seconds:>8.3}",
                buffers.len(),
                "none found",
                ""
            );
            continue;
        };
        packing.check(&buffers)?;
        let ratio = packing.bytes as f64 / bound as f64;
        println!(
            "{name:<20} {:>7} {bound:>14} {:>14} {ratio:>8.5} {seconds:>8.3}",
            buffers.len(),
            packing.bytes
        );
    }
    Ok(())
}

fn read(path: &str) -> Result<Vec<Buffer>, Box<dyn Error>> {
    let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let mut source: Box<dyn Read> =
        if path.ends_with(".gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let mut text = String::new();
    source.read_to_string(&mut text).map_err(|error: io::Error| format!("{path}: {error}"))?;
    text.lines()
        .skip(1)
        .map(|line| buffer(line).ok_or(format!("{path}: not a buffer: {line}").into()))
        .collect()
}

fn buffer(line: &str) -> Option<Buffer> {
    let mut fields = line.split(',').skip(1).map(|field| field.trim().parse().ok());
    Some(Buffer { lower: fields.next()??, upper: fields.next()??, size: fields.next()?? })
}
