//! A running job, on stderr: a live line on a terminal, a plain line per epoch elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll::{Bytes, Device};

use super::job::{Job, Watch};
use crate::output;

/// How often the live line changes.
const EVERY: Duration = Duration::from_millis(100);
/// Characters of the memory gauge.
const GAUGE: u64 = 20;

/// Shows a job running.
pub(crate) struct Progress {
    bar: ProgressBar,
    epochs: u64,
    test_images: usize,
    epoch_start: Instant,
    epoch_images: usize,
    last_shown: Option<Instant>,
}

impl Progress {
    /// Announces the job; the line comes with its first step.
    pub(crate) fn new(job: &Job, device: &Device) -> Progress {
        let images = (job.data.split.train.len() as u64).saturating_mul(job.epochs);
        // Draws on stderr, and only where that is a terminal.
        let bar = ProgressBar::new(images);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        output::progress(&format!(
            "training on {} of {}, testing on {}, batch {}, on {}",
            job.data.split.train.len(),
            job.data.name,
            job.data.split.test.len(),
            job.batch_size,
            device.name()
        ));
        Progress {
            bar,
            epochs: job.epochs,
            test_images: job.data.split.test.len(),
            epoch_start: Instant::now(),
            epoch_images: 0,
            last_shown: None,
        }
    }

    /// Takes the live line away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn images_per_second(&self) -> f64 {
        self.epoch_images as f64 / self.epoch_start.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Watch for Progress {
    fn step(&mut self, epoch: u64, images: usize, loss: Option<f32>, device: &Device) {
        self.epoch_images += images;
        self.bar.inc(images as u64);
        if self.bar.is_hidden() || self.last_shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.last_shown = Some(Instant::now());
        let loss = loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let (rate, gauge) = (self.images_per_second(), gauge(device));
        self.bar.set_message(format!(
            "epoch {}/{}  {loss}{rate:.0} images/s  {gauge}",
            epoch + 1,
            self.epochs
        ));
    }

    fn epoch(&mut self, epoch: u64, loss: Option<f64>, correct: Option<usize>, device: &Device) {
        let loss = loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let right =
            correct.map_or_else(String::new, |right| format!("test {}  ", percent(right, self.test_images)));
        let (rate, gauge) = (self.images_per_second(), gauge(device));
        let line = format!("epoch {}/{}  {loss}{right}{rate:.0} images/s  {gauge}", epoch + 1, self.epochs);
        self.bar.suspend(|| output::progress(&line));
        (self.epoch_start, self.epoch_images) = (Instant::now(), 0);
    }

    fn repeats(&mut self, epoch: u64) {
        if epoch + 1 < self.epochs {
            let line = format!("epochs {} to {} repeat earlier ones to the byte", epoch + 2, self.epochs);
            self.bar.suspend(|| output::progress(&line));
        }
    }

    fn end(&mut self, _: &Device) {}
}

/// Allocated, cached and bound: `[████▒▒▒▒            ] 8.1 MiB allocated + 12.0 MiB cached of 64.00 MiB`.
fn gauge(device: &Device) -> String {
    let (allocated, reserved) = (device.memory_allocated(), device.memory_reserved());
    let bound = device.memory_limit().unwrap_or(u64::MAX).min(device.memory_info().total_bytes).max(1);
    // Something is never drawn as nothing.
    let cells =
        |bytes: u64| (u128::from(bytes.min(bound)) * u128::from(GAUGE)).div_ceil(u128::from(bound)) as usize;
    let (full, held) = (cells(allocated), cells(reserved));
    let bar = "█".repeat(full) + &"▒".repeat(held - full) + &" ".repeat(GAUGE as usize - held);
    let (allocated, cached) = (Bytes(allocated), Bytes(reserved - allocated));
    format!("[{bar}] {allocated} allocated + {cached} cached of {}", Bytes(bound))
}

/// A share of images as people say it.
pub(crate) fn percent(part: usize, of: usize) -> String {
    if of == 0 { "no images".to_owned() } else { format!("{:.2} %", 100.0 * part as f64 / of as f64) }
}
