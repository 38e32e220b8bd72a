//! The progress of a job on stderr: a live line on a terminal, otherwise a line per epoch.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll::{Bytes, Device};

use super::job::{Job, Place};
use super::task::{Metric, Unit};
use super::watch::Watch;
use crate::output;

/// How often the live line is redrawn.
const EVERY: Duration = Duration::from_millis(100);
/// The width of the memory gauge, in characters.
const GAUGE: u64 = 20;

/// Shows the progress of a job.
pub(crate) struct Progress {
    bar: ProgressBar,
    unit: Unit,
    metric: Metric,
    tested: usize,
    epoch_start: Instant,
    last_step: Instant,
    epoch_units: u64,
    last_shown: Option<Instant>,
}

impl Progress {
    /// Announces the job. The live line appears with its first step.
    pub(crate) fn new(job: &Job, device: &Device) -> Progress {
        // The bar draws on stderr, and only if that is a terminal.
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        let (what, batch_size) = (job.task.announcement(), job.batch_size);
        output::progress(&format!("training on {what}, batch {batch_size}, on {}", job.place(device)));
        Progress {
            bar,
            unit: job.task.unit(),
            metric: job.task.metric(),
            tested: job.task.testing(1).map_or(0, |testing| testing.len()),
            epoch_start: Instant::now(),
            last_step: Instant::now(),
            epoch_units: 0,
            last_shown: None,
        }
    }

    /// Removes the live line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The training throughput of this epoch, without the test.
    fn rate(&self) -> String {
        let seconds = (self.last_step - self.epoch_start).as_secs_f64().max(1e-9);
        rate(self.epoch_units as f64 / seconds, self.unit)
    }

    /// `epoch 1/5` of a job whose epochs are passes over the data, else `step 250/2000`.
    fn place(&self, place: Place) -> String {
        match self.metric {
            Metric::Accuracy => format!("epoch {}/{}", place.epoch + 1, place.epochs),
            Metric::Loss => format!("step {}/{}", place.step, place.steps),
        }
    }

    fn line(&self, line: &str) {
        self.bar.suspend(|| output::progress(line));
    }
}

impl Watch for Progress {
    fn resumed(&mut self, place: Place) {
        let left = place.steps.saturating_sub(place.step);
        let what = if left == 0 { "nothing is left to train".to_owned() } else { format!("{left} to go") };
        self.line(&format!("resumed after step {} of {}: {what}", place.step, place.steps));
        self.bar.set_position(place.step);
        self.epoch_start = Instant::now();
    }

    fn step(&mut self, place: Place, samples: usize, loss: Option<f32>, device: &Device) {
        self.epoch_units += samples as u64 * self.unit.per_sample;
        self.last_step = Instant::now();
        if self.bar.is_hidden() || self.last_shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.last_shown = Some(Instant::now());
        self.bar.set_length(place.steps);
        self.bar.set_position(place.step);
        let loss = loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        self.bar.set_message(format!("{}  {loss}{}  {}", self.place(place), self.rate(), gauge(device)));
    }

    fn epoch(&mut self, place: Place, loss: Option<f64>, score: Option<f64>, device: &Device) {
        let loss = loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let score = score.map_or_else(String::new, |score| match self.metric {
            Metric::Accuracy => format!("test {}  ", percent(score as usize, self.tested)),
            Metric::Loss => format!("validation loss {:.4}  ", score / self.tested.max(1) as f64),
        });
        // A device that computes nothing has no throughput.
        let is_measured = self.epoch_units > 0 && device.has_values();
        let rate = if is_measured { self.rate() + "  " } else { String::new() };
        self.line(&format!("{}  {loss}{score}{rate}{}", self.place(place), gauge(device)));
        (self.epoch_start, self.epoch_units) = (Instant::now(), 0);
    }

    fn repeats(&mut self, place: Place) {
        let (what, next, last) = match self.metric {
            Metric::Accuracy => ("epochs", place.epoch + 2, place.epochs),
            Metric::Loss => ("steps", place.step + 1, place.steps),
        };
        if next <= last {
            self.line(&format!("{what} {next} to {last} make the same requests as earlier ones: skipped"));
        }
    }

    fn note(&mut self, line: &str) {
        self.line(line);
    }
}

/// Allocated, cached and bound: `[████▒▒▒▒            ] 8.1 MiB allocated + 12.0 MiB cached of 64.00 MiB`.
fn gauge(device: &Device) -> String {
    let (allocated, reserved) = (device.memory_allocated(), device.memory_reserved());
    let bound = device.memory_limit().unwrap_or(u64::MAX).min(device.memory_info().total_bytes).max(1);
    // An amount above zero always fills at least one cell.
    let cells =
        |bytes: u64| (u128::from(bytes.min(bound)) * u128::from(GAUGE)).div_ceil(u128::from(bound)) as usize;
    let (full, held) = (cells(allocated), cells(reserved));
    let bar = "█".repeat(full) + &"▒".repeat(held - full) + &" ".repeat(GAUGE as usize - held);
    let (allocated, cached) = (Bytes(allocated), Bytes(reserved - allocated));
    format!("[{bar}] {allocated} allocated + {cached} cached of {}", Bytes(bound))
}

/// A throughput as text.
pub(crate) fn rate(per_second: f64, unit: Unit) -> String {
    let digits = usize::from(per_second < 10.0);
    format!("{per_second:.digits$} {}/s", unit.plural)
}

/// A fraction of images as a percentage.
pub(crate) fn percent(part: usize, of: usize) -> String {
    if of == 0 { "no images".to_owned() } else { format!("{:.2} %", 100.0 * part as f64 / of as f64) }
}
