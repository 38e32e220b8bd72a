//! `plimsoll diff`: what changed at the peak from one recording to another.

mod json;
mod text;

use std::path::PathBuf;

use clap::Args;
use plimsoll_trace::explain::{Comparison, DeviceExplanation, Options};

use crate::exit::{Exit, Failure};
use crate::explained::Explained;
use crate::shown::Shown;

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The snapshot before: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The snapshot after
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    #[command(flatten)]
    shown: Shown,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Two recordings, before and after.
struct Both {
    files: [Explained; 2],
    /// What is compared: a device of each.
    pairs: Vec<Pair>,
    /// Devices that only one of the files has: which file, and which device.
    alone: Vec<(usize, i32)>,
}

/// One device of each, by their places among those of the files.
struct Pair {
    places: [usize; 2],
    comparison: Comparison,
}

impl Both {
    fn of(files: [Explained; 2]) -> Result<Both, Failure> {
        let [a, b] = &files;
        let number = |device: &DeviceExplanation| device.timeline.device;
        let places: Vec<[usize; 2]> = if let ([_], [_]) = (a.devices.as_slice(), b.devices.as_slice()) {
            // The same program may have run elsewhere.
            vec![[0, 0]]
        } else {
            let there = |wanted: i32| b.devices.iter().position(|device| number(device) == wanted);
            let of = |(nth, device)| there(number(device)).map(|other| [nth, other]);
            a.devices.iter().enumerate().filter_map(of).collect()
        };
        if places.is_empty() {
            let numbers = |file: &Explained| {
                let numbers: Vec<String> =
                    file.devices.iter().map(|device| number(device).to_string()).collect();
                numbers.join(", ")
            };
            let message =
                format!("no device is in both: {} has {}, {} has {}", a.file, numbers(a), b.file, numbers(b));
            return Err(Failure::new(Exit::Usage, message));
        }
        let alone = files.iter().enumerate().flat_map(|(side, file)| {
            let is_alone = |place: &usize| !places.iter().any(|pair| pair[side] == *place);
            let alone: Vec<_> = (0..file.devices.len())
                .filter(is_alone)
                .map(|place| (side, number(&file.devices[place])))
                .collect();
            alone
        });
        let alone = alone.collect();
        let compared = |places: [usize; 2]| {
            let comparison = Comparison::of(a.known(&a.devices[places[0]]), b.known(&b.devices[places[1]]));
            Pair { places, comparison }
        };
        let pairs = places.into_iter().map(compared).collect();
        Ok(Both { files, pairs, alone })
    }

    /// The devices of a pair.
    fn devices(&self, pair: &Pair) -> [&DeviceExplanation; 2] {
        [0, 1].map(|side| &self.files[side].devices[pair.places[side]])
    }
}

/// Compares, device by device; the result is text for stdout.
pub(crate) fn run(args: &DiffArgs) -> Result<String, Failure> {
    let open = |file| Explained::open(file, args.device, Options::default());
    let both = Both::of([open(&args.before)?, open(&args.after)?])?;
    Ok(if args.json { json::render(&both) } else { text::render(&both, args) })
}
