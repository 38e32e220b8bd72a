//! Orders in which buffers are placed ([`Order`]).

use std::cmp::Reverse;

use crate::Buffer;
use crate::sections::Sections;

/// What comes first. The width of a buffer is the number of its sections, its load the highest sum of live bytes in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The highest load, then the widest.
    LoadThenWidth,
    /// The largest, then the highest load.
    SizeThenLoad,
    /// The widest, then the largest.
    WidthThenSize,
    /// The largest product of size and width, then the highest load.
    AreaThenLoad,
}

impl Order {
    /// All of them, in the order in which they are tried.
    pub(crate) const ALL: [Order; 4] =
        [Order::LoadThenWidth, Order::SizeThenLoad, Order::WidthThenSize, Order::AreaThenLoad];

    /// These buffers in this order. Equal ones stay in the order of their indices.
    pub(crate) fn sorted(self, buffers: &[Buffer], sections: &Sections, mut which: Vec<u32>) -> Vec<u32> {
        let live = sections.live(buffers);
        which.sort_by_cached_key(|&it| {
            let (buffer, span) = (&buffers[it as usize], &sections.of[it as usize]);
            let width = u128::from(span.end - span.start);
            let size = u128::from(buffer.size);
            let load = live[span.start as usize..span.end as usize].iter().copied().max().unwrap_or(0);
            let load = u128::from(load);
            Reverse(match self {
                Order::LoadThenWidth => (load, width),
                Order::SizeThenLoad => (size, load),
                Order::WidthThenSize => (width, size),
                Order::AreaThenLoad => (width * size, load),
            })
        });
        which
    }
}
