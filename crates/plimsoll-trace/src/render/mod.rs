//! An explanation in words: the sentences that text and page share ([`words`]; the [`verdict`]; about two recordings,
//! [`comparison`]; several [`devices`]; a job's [`ranks`]; [`phases`]; the [`ledger`]; memory [`pressure`]; advice,
//! [`help`]), the sentences about data quality ([`quality`]), and a page for a browser ([`html`]). The program
//! `plimsoll` has its own text and JSON formats.

pub mod comparison;
pub mod devices;
pub mod failure;
pub mod help;
pub mod html;
pub mod ledger;
pub mod phases;
pub mod pressure;
pub mod quality;
pub mod ranks;
pub mod remaining;
mod shapes;
pub mod verdict;
pub mod words;

use crate::explain::{DeviceAnalysis, DeviceExplanation, Origins};
use crate::snapshot::Snapshot;

/// A recording and its explanation.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The snapshot's name, as the user gave it.
    pub file: &'a str,
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The origin of each stack.
    pub origins: &'a Origins,
    /// The explanation of each device.
    pub devices: &'a [DeviceExplanation],
}

impl<'a> Report<'a> {
    /// One of the devices, as the input of comparisons.
    pub fn analysis(&self, device: &'a DeviceExplanation) -> DeviceAnalysis<'a> {
        device.analysis(self.snapshot, self.origins)
    }
}
