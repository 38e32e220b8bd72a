//! The rows of the device's memory that are shown, and the sentence below them.

use crate::explain::{Ledger, Part, Row};

/// The rows, without those of 0 bytes, and without the device's own rows if nothing is known about the device.
pub fn rows(ledger: &Ledger) -> Vec<Row> {
    let is_device_known = ledger.device.total.is_some() || ledger.device.free.is_some();
    let is_shown = |row: &Row| match row.part {
        Part::Reserved => true,
        Part::Total | Part::Outside | Part::Free => is_device_known,
        _ => row.bytes != Some(0),
    };
    ledger.rows().into_iter().filter(is_shown).collect()
}

/// A sentence about why other tools show more memory, if the ledger has no row for this memory.
pub fn outside(ledger: &Ledger) -> Option<String> {
    let device = ledger.device;
    if device.outside.is_some() {
        return None;
    }
    let more = if device.total.is_none() {
        "; with --device-total SIZE, the size is shown where a request failed"
    } else {
        ""
    };
    Some(format!(
        "nvidia-smi shows more: the CUDA context, libraries and other processes are outside the allocator{more}"
    ))
}
