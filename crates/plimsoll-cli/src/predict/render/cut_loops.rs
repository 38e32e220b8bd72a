//! Sentences about DataLoader loops that ran after the training steps and did not get all of their own batches.

use crate::predict::recording::read::place;
use crate::protocol::Report;

/// Sentences about DataLoader loops that run after the training steps and did not get all of their own batches; without a
/// final period.
pub(crate) fn cut_loops(reports: &[Report]) -> Vec<String> {
    let mut said = Vec::new();
    for cut in reports.iter().flat_map(|report| &report.loops) {
        let of = cut.total.map_or_else(|| "an unknown number of".to_owned(), |total| total.to_string());
        let at = cut
            .file
            .as_ref()
            .zip(cut.line)
            .map_or_else(String::new, |(file, line)| format!(" at {}", place(file, line)));
        let sentence = match cut.is_cut {
            true => format!("a loop over a DataLoader{at}: it got {} of {of} batches", cut.given),
            false => format!(
                "a loop over a DataLoader{at}: {} of its {of} batches were copies of one",
                cut.given - cut.made
            ),
        };
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    }
    said
}
