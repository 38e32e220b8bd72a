//! The content of the screen, and the effect of keys. It does no I/O, so that a test can examine the cells.

use std::time::{Duration, Instant};

use plimsoll::memory::live::Sample;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Sparkline};

use super::gauge::MemoryGauge;
use super::palette::Palette;
use super::{job, text};
use crate::bytes;

/// Smaller screens show the plain text, as much as fits.
const LEAST: (u16, u16) = (78, 22);
/// The shortest time over which steps per second are measured.
const RATE_OVER: Duration = Duration::from_secs(2);

/// The user's wish after a key: to quit, or not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stay,
    Leave,
}

/// The screen's state.
pub(super) struct View {
    /// The newest samples, by rank; at least one.
    newest: Vec<Sample>,
    /// The samples that are shown instead while paused.
    paused: Option<Vec<Sample>>,
    /// The process that is shown. For a job, it is the one with the least room until the user selects
    /// another.
    shown: Option<u32>,
    /// Whole bytes rather than MiB and GiB.
    whole: bool,
    palette: Palette,
    /// The time at which the newest samples arrived.
    heard: Instant,
    /// The time and number of steps at which the current measurement of steps per second began.
    counted: (Instant, u64),
    /// The last measured rate.
    steps_per_second: Option<f64>,
}

impl View {
    pub(super) fn new(first: Vec<Sample>, whole: bool, palette: Palette, now: Instant) -> View {
        let counted = (now, steps(&first));
        View {
            newest: first,
            paused: None,
            shown: None,
            whole,
            palette,
            heard: now,
            counted,
            steps_per_second: None,
        }
    }

    /// Takes new samples.
    pub(super) fn take(&mut self, samples: Vec<Sample>, now: Instant) {
        let (since, before) = self.counted;
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= RATE_OVER {
            let steps = steps(&samples);
            self.steps_per_second = Some(steps.saturating_sub(before) as f64 / elapsed.as_secs_f64());
            self.counted = (now, steps);
        }
        (self.newest, self.heard) = (samples, now);
    }

    /// The newest samples, even if others are shown.
    pub(super) fn into_newest(self) -> Vec<Sample> {
        self.newest
    }

    /// The index of the sample that is shown.
    fn place(&self, samples: &[Sample]) -> usize {
        let chosen = self.shown.and_then(|pid| samples.iter().position(|it| it.pid == pid));
        chosen.or_else(|| job::fullest(samples)).unwrap_or(0)
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Leave,
            KeyCode::Char('p') => {
                self.paused = if self.paused.is_some() { None } else { Some(self.newest.clone()) };
            }
            KeyCode::Char('b') => self.whole = !self.whole,
            KeyCode::Char('r') => {
                let next = (self.place(&self.newest) + 1) % self.newest.len().max(1);
                self.shown = self.newest.get(next).map(|it| it.pid);
            }
            _ => {}
        }
        Wish::Stay
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let samples = self.paused.as_ref().unwrap_or(&self.newest);
        let Some(sample) = samples.get(self.place(samples)) else { return };
        let area = frame.area();
        if area.width < LEAST.0 || area.height < LEAST.1 {
            frame.render_widget(Paragraph::new(job::render(samples, self.whole)), area);
            return;
        }
        let below = 5 + (area.height.saturating_sub(24) / 2).min(7);
        let [head, middle, below, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(15),
            Constraint::Length(below),
            Constraint::Length(1),
        ])
        .areas(area);
        let [left, right] = Layout::horizontal([Constraint::Length(24), Constraint::Min(0)]).areas(middle);
        let [bars, categories] = Layout::vertical([Constraint::Length(7), Constraint::Min(0)]).areas(right);
        self.head(frame, head, sample, now);
        frame.render_widget(MemoryGauge { sample, whole: self.whole, palette: self.palette }, left);
        self.bars(frame, bars, sample);
        self.categories(frame, categories, sample);
        self.course(frame, below, sample);
        self.foot(frame, foot, sample);
    }

    /// The process's identity, and whether the sample is old.
    fn head(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample, now: Instant) {
        let silent = now.saturating_duration_since(self.heard).as_secs();
        let state = match (&self.paused, silent) {
            (Some(_), _) => " paused ".to_owned(),
            (None, 3..) => format!(" no answer for {silent} s "),
            _ => String::new(),
        };
        let [name, note] = Layout::horizontal([
            Constraint::Min(0),
            Constraint::Length(u16::try_from(state.len()).unwrap_or(u16::MAX)),
        ])
        .areas(area);
        frame.render_widget(Line::styled(format!(" {}", text::process(sample)), self.palette.strong), name);
        frame.render_widget(Line::styled(state, self.palette.strong.add_modifier(Modifier::REVERSED)), note);
    }

    fn bars(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let block = framed(&text::bound_name(sample, self.whole));
        let inside = block.inner(area);
        let styles = [self.palette.live, self.palette.cached, self.palette.others, Style::new()];
        let symbols = ["█", "▒", "░", "·"];
        let rows = text::of_bound(sample).into_iter().zip(symbols.into_iter().zip(styles));
        let of = sample.bound_bytes();
        let mut lines: Vec<Line<'_>> = rows
            .map(|((name, bytes), (symbol, style))| self.bar(name, bytes, of, inside.width, symbol, style))
            .collect();
        lines.push(Line::from(text::peaks(sample, self.whole)));
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn categories(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let block = framed("Live, by category");
        let inside = block.inner(area);
        let rows = text::of_live(sample).into_iter();
        let of = sample.allocated_bytes;
        let lines = rows.map(|(name, bytes)| self.bar(name, bytes, of, inside.width, "█", self.palette.live));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
    }

    /// A row, with a bar in the remaining part of its line. An amount above zero always fills at least one cell.
    fn bar(&self, name: &str, bytes: u64, of: u64, width: u16, symbol: &str, style: Style) -> Line<'static> {
        let row = text::row(name, bytes, of, self.whole) + "  ";
        let room = u128::from(width).saturating_sub(row.len() as u128);
        let cells = (u128::from(bytes.min(of)) * room).div_ceil(u128::from(of.max(1)));
        let bar = symbol.repeat(usize::try_from(cells).unwrap_or(0));
        Line::from(vec![Span::raw(row), Span::styled(bar, style)])
    }

    /// The memory levels between steps, the newest on the right.
    fn course(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let inside = framed("").inner(area);
        let [graph, words] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(inside);
        let levels = &sample.step_levels;
        let shown = &levels[levels.len().saturating_sub(usize::from(graph.width))..];
        let title = match (shown.iter().min(), shown.iter().max()) {
            (Some(&least), Some(&most)) => {
                let [least, most] = [least, most].map(|level| bytes::shown(level, self.whole));
                format!("Live between steps, last {}: {least} to {most}", shown.len())
            }
            _ => "Live between steps".to_owned(),
        };
        frame.render_widget(framed(&title), area);
        let (heights, top) = heights(shown);
        frame.render_widget(Sparkline::default().data(heights).max(top).style(self.palette.live), graph);
        let rate = self.steps_per_second.map_or_else(String::new, |rate| format!(", {rate:.1} steps/s"));
        frame.render_widget(Line::from(text::course(sample, self.whole) + &rate), words);
    }

    fn foot(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let keys = match self.newest.len() {
            1 => " q quit  p pause  b bytes ".to_owned(),
            ranks => format!(" q quit  p pause  b bytes  r next of {ranks} ranks "),
        };
        let [left, right] =
            Layout::horizontal([Constraint::Length(keys.len() as u16), Constraint::Min(0)]).areas(area);
        frame.render_widget(Line::styled(keys, self.palette.strong), left);
        frame.render_widget(Line::from(text::trouble(sample, self.whole) + " ").right_aligned(), right);
    }
}

/// The steps of the process that is furthest ahead.
fn steps(samples: &[Sample]) -> u64 {
    samples.iter().map(|it| it.steps).max().unwrap_or(0)
}

fn framed(title: &str) -> Block<'static> {
    Block::bordered().border_type(BorderType::Rounded).title(format!(" {title} "))
}

/// The heights of bars for these levels, and the height of a full bar. The lowest level gets a quarter of the full
/// height. The range of levels counts as at least a twentieth of the highest level, so that small changes stay
/// small.
fn heights(levels: &[u64]) -> (Vec<u64>, u64) {
    let (least, most) =
        (levels.iter().min().copied().unwrap_or(0), levels.iter().max().copied().unwrap_or(0));
    let rise = (most - least).max(most / 20).max(4);
    let foot = rise / 3;
    (levels.iter().map(|level| level - least + foot).collect(), rise + foot)
}

#[cfg(test)]
mod tests;
