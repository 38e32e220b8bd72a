//! An explanation in forms that people read: the sentences that all of them share ([`words`], of two recordings
//! [`comparison`], of the ranks of a job [`ranks`], of several [`devices`], of [`phases`], of a [`ledger`], of memory
//! running short, [`pressure`]), those about a recording's worth ([`quality`]), and a page that
//! needs nothing but a browser ([`html`]). The program's text and JSON are its own.

pub mod comparison;
pub mod devices;
pub mod failure;
mod help;
pub mod html;
pub mod ledger;
pub mod phases;
pub mod pressure;
pub mod quality;
pub mod ranks;
pub mod remaining;
mod shapes;
pub mod words;

use crate::explain::{DeviceAnalysis, DeviceExplanation, Origins};
use crate::snapshot::Snapshot;

/// A recording, and what it tells.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The snapshot's name, as the user knows it.
    pub file: &'a str,
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// Its lines.
    pub origins: &'a Origins,
    /// What it tells of each device.
    pub devices: &'a [DeviceExplanation],
}

impl<'a> Report<'a> {
    /// One of the devices, as comparisons take it.
    pub fn analysis(&self, device: &'a DeviceExplanation) -> DeviceAnalysis<'a> {
        device.analysis(self.snapshot, self.origins)
    }
}
