//! A block in use: [`Block`].

use std::collections::BTreeSet;

use super::arena::ArenaKey;
use super::gaps::Extent;
use super::stitched::RangeNumber;
use crate::event::LiveBlock;
use crate::request::StreamId;

#[derive(Debug)]
pub(super) struct Block {
    pub(super) live: LiveBlock,
    pub(super) key: ArenaKey,
    pub(super) place: Place,
    /// Other streams that use it.
    pub(super) uses: BTreeSet<StreamId>,
}

/// The memory of a block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Home(Extent),
    Stitched(RangeNumber),
}
