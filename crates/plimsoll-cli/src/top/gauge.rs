//! The waterline: a gauge of how full the memory bound is, with the Plimsoll line at the top.

use plimsoll::memory::live::Sample;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::Style;
use ratatui::widgets::{Block, BorderType, Widget};

use super::palette::Palette;
use super::text;
use crate::bytes;

/// Blocks of one to eight eighths of a cell, from below.
const EIGHTHS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The gauge for one sample.
pub(super) struct MemoryGauge<'a> {
    pub(super) sample: &'a Sample,
    pub(super) whole: bool,
    pub(super) palette: Palette,
}

impl Widget for MemoryGauge<'_> {
    fn render(self, area: Rect, cells: &mut Buffer) {
        let Self { sample, whole, palette } = self;
        let bound = sample.bound_bytes();
        let full = 100.0 * sample.reserved_bytes as f64 / bound.max(1) as f64;
        let block = Block::bordered().border_type(BorderType::Rounded).title(" waterline ");
        let block = block.title_bottom(format!(" {full:.1} % reserved "));
        let inside = block.inner(area);
        block.render(area, cells);
        if inside.height < 2 || inside.width < 4 {
            return;
        }
        line(inside, cells, palette.line);
        let rows = inside.height - 1;
        for row in 0..rows {
            let y = inside.bottom() - 1 - row;
            let (symbol, style) = layer(sample, u64::from(row), u64::from(rows), palette);
            for x in inside.left()..inside.right() {
                cells[(x, y)].set_symbol(symbol).set_style(style);
            }
        }
        let peak = sample.peak_allocated_bytes.min(bound);
        let above = u128::from(peak) * u128::from(rows) / u128::from(bound.max(1));
        let row = u16::try_from(above).unwrap_or(rows).min(rows - 1);
        let label = format!(" peak {} ", bytes::shown(sample.peak_allocated_bytes, whole));
        let at = Rect { y: inside.bottom() - 1 - row, height: 1, ..inside };
        ratatui::text::Line::from(label).alignment(Alignment::Center).style(palette.strong).render(at, cells);
    }
}

/// The Plimsoll line across the top.
fn line(inside: Rect, cells: &mut Buffer, style: Style) {
    let middle = inside.left() + inside.width / 2;
    for x in inside.left()..inside.right() {
        cells[(x, inside.top())].set_symbol(if x == middle { "⊖" } else { "─" }).set_style(style);
    }
}

/// The symbol of a row, counted from the bottom. An amount above zero always shows.
fn layer(sample: &Sample, row: u64, rows: u64, palette: Palette) -> (&'static str, Style) {
    let bound = u128::from(sample.bound_bytes().max(1));
    // In units that make the height of a row equal to the bound in bytes.
    let height = |bytes: u64| u128::from(bytes) * u128::from(rows);
    let (low, high) = (bound * u128::from(row), bound * u128::from(row + 1));
    let [(_, live), (_, cached), (_, others), _] = text::of_bound(sample);
    let (live, reserved) = (height(live), height(live.saturating_add(cached)));
    if live >= high {
        (EIGHTHS[7], palette.live)
    } else if live > low {
        let eighth = usize::try_from((live - low) * 8 / bound).unwrap_or(7).clamp(1, 8);
        (EIGHTHS[eighth - 1], palette.live)
    } else if reserved > low {
        ("▒", palette.cached)
    } else if reserved + height(others) > low {
        ("░", palette.others)
    } else {
        (" ", Style::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_from_the_bottom_live_then_cached_then_others() {
        let sample = Sample {
            limit_bytes: None,
            capacity_bytes: 80,
            device_free_bytes: 20,
            reserved_bytes: 40,
            allocated_bytes: 15,
            ..text::tests::sample()
        };
        let symbols: Vec<_> = (0..8).map(|row| layer(&sample, row, 8, Palette::plain()).0).collect();
        assert_eq!(symbols, ["█", "▄", "▒", "▒", "░", "░", " ", " "]);
        // Even a single byte shows.
        let little = Sample { allocated_bytes: 1, reserved_bytes: 1, device_free_bytes: 79, ..sample };
        assert_eq!(layer(&little, 0, 8, Palette::plain()).0, "▁");
    }
}
