//! Panels: channels as the columns of tiles, and weights in the order in which tiles read them.

use super::shape::{ConvShape, Format};
use super::windows::Pass;
use crate::parallel::for_each_piece;
use crate::tile::{WIDE, panel_width};
use crate::transpose::transpose;

/// The channels of a group in panels of one width. The last columns may be unused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels {
    /// The number of channels in the group.
    pub(super) channels: usize,
    /// The channels in each panel (the last may have fewer).
    pub(super) per_panel: usize,
    /// Columns of a panel.
    pub(super) width: usize,
}

impl Panels {
    /// Chooses panels with equal numbers of channels, if there is a good size.
    pub(super) fn of(channels: usize) -> Panels {
        let least = channels.div_ceil(WIDE).max(1);
        let equal = (least..least + least.div_ceil(2)).find(|&count| channels.is_multiple_of(count));
        let per_panel = equal.map_or(WIDE, |count| channels / count).max(1);
        Panels { channels, per_panel, width: panel_width(per_panel) }
    }

    pub(super) fn count(&self) -> usize {
        self.channels.div_ceil(self.per_panel)
    }

    /// The first channel of a panel within its group, and the number of channels in it.
    pub(super) fn channels_of(&self, panel: usize) -> (usize, usize) {
        let first = panel * self.per_panel;
        (first, self.per_panel.min(self.channels - first))
    }
}

/// The packed weights of a pass: for each group and panel, a row of biases, then a row for each tap and channel of the sum,
/// in the order of the source's format: by channel first, or by tap first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    pub(super) pass: Pass,
    pub(super) groups: usize,
    pub(super) panels: Panels,
    /// The number of channels per group over which the pass sums.
    pub(super) summed: usize,
    pub(super) taps: usize,
    pub(super) order: Format,
}

/// The number of taps to transpose at a time.
const RUN: usize = 64;

impl Packing {
    pub(super) fn of(pass: Pass, s: &ConvShape, order: Format) -> Packing {
        let (columns, summed) = match pass {
            Pass::Forward => (s.group_out(), s.group_in()),
            Pass::BackwardInput => (s.group_in(), s.group_out()),
        };
        Packing { pass, groups: s.groups, panels: Panels::of(columns), summed, taps: s.taps(), order }
    }

    /// Floats of one panel.
    pub(super) fn panel_len(&self) -> usize {
        (1 + self.summed * self.taps) * self.panels.width
    }

    pub(super) fn len(&self) -> usize {
        self.groups * self.panels.count() * self.panel_len()
    }

    /// The row of a channel and tap, after the row of biases.
    fn row(&self, channel: usize, tap: usize) -> usize {
        match self.order {
            Format::ChannelsFirst => channel * self.taps + tap,
            Format::ChannelsLast => tap * self.summed + channel,
        }
    }

    /// The biases and the weights of a panel.
    pub(super) fn panel<'a>(&self, packed: &'a [f32], group: usize, panel: usize) -> (&'a [f32], &'a [f32]) {
        let len = self.panel_len();
        packed[(group * self.panels.count() + panel) * len..][..len].split_at(self.panels.width)
    }

    /// Packs filters in the layout `format`.
    pub(super) fn pack(&self, (weight, format): (&[f32], Format), bias: Option<&[f32]>, packed: &mut [f32]) {
        for_each_piece(packed, self.panel_len(), |start, piece| {
            self.pack_panel((weight, format), bias, start / self.panel_len(), piece);
        });
    }

    /// Packs one panel. Panels are numbered across all groups.
    pub(super) fn pack_panel(
        &self,
        (weight, format): (&[f32], Format),
        bias: Option<&[f32]>,
        at: usize,
        piece: &mut [f32],
    ) {
        let (panels, width) = (self.panels, self.panels.width);
        let (group, panel) = (at / panels.count(), at % panels.count());
        let (first, channels) = panels.channels_of(panel);
        let (start, rows) = piece.split_at_mut(width);
        start.fill(0.0);
        if let Some(bias) = bias {
            start[..channels].copy_from_slice(&bias[group * panels.channels + first..][..channels]);
        }
        if channels < width {
            rows.fill(0.0);
        }
        match self.pass {
            Pass::Forward => self.forward_rows(weight, format, group, (first, channels), rows),
            Pass::BackwardInput => self.backward_rows(weight, format, group, (first, channels), rows),
        }
    }

    /// Columns are filters. Each filter is a row of the weight, and its elements become rows.
    fn forward_rows(
        &self,
        weight: &[f32],
        format: Format,
        group: usize,
        (first, channels): (usize, usize),
        rows: &mut [f32],
    ) {
        let (filter, width) = (self.summed * self.taps, self.panels.width);
        let weight = &weight[(group * self.panels.channels + first) * filter..];
        if format == self.order || self.taps == 1 || self.summed == 1 {
            return transpose((channels, filter), (weight, filter), (rows, width));
        }
        let mut run = [0.0; RUN * WIDE];
        for start in (0..filter).step_by(RUN) {
            let len = RUN.min(filter - start);
            transpose((channels, len), (&weight[start..], filter), (&mut run, width));
            for (at, row) in (start..start + len).zip(run.chunks_exact(width)) {
                let to = match format {
                    Format::ChannelsFirst => self.row(at / self.taps, at % self.taps),
                    Format::ChannelsLast => self.row(at % self.summed, at / self.summed),
                };
                rows[to * width..][..channels].copy_from_slice(&row[..channels]);
            }
        }
    }

    /// Columns are channels of the filters; the order of taps is reversed.
    fn backward_rows(
        &self,
        weight: &[f32],
        format: Format,
        group: usize,
        (first, channels): (usize, usize),
        rows: &mut [f32],
    ) {
        let (taps, all, width) = (self.taps, self.panels.channels, self.panels.width);
        let mut run = [0.0; RUN * WIDE];
        for o in 0..self.summed {
            let filter = &weight[(group * self.summed + o) * all * taps..][..all * taps];
            let mut put = |tap: usize, row: &[f32]| {
                rows[self.row(o, taps - 1 - tap) * width..][..channels].copy_from_slice(&row[..channels]);
            };
            if format == Format::ChannelsLast || taps == 1 {
                (0..taps).for_each(|tap| put(tap, &filter[tap * all + first..]));
                continue;
            }
            for start in (0..taps).step_by(RUN) {
                let len = RUN.min(taps - start);
                transpose((channels, len), (&filter[first * taps + start..], taps), (&mut run, width));
                for (tap, row) in (start..start + len).zip(run.chunks_exact(width)) {
                    put(tap, row);
                }
            }
        }
    }
}
