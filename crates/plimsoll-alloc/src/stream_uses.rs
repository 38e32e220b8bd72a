//! The uses of blocks on streams other than their own: [`StreamUses`], and each block's share of that list: [`Waits`].
//!
//! A use is recorded with the block while it is allocated. When the block is freed, each use becomes an event that the
//! block waits for: `pending.rs`.

use std::num::NonZeroU32;

use crate::request::StreamId;

/// Whether a use was recorded during a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    Eagerly,
    InCapture,
}

/// The events and uses that a block waits for before it can be cached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    /// Recorded events that are not done.
    events: u32,
    /// The first of its uses for which no event is recorded yet.
    uses: Option<UseId>,
}

impl Waits {
    /// Nothing to wait for.
    pub(crate) const NONE: Self = Self { events: 0, uses: None };

    /// Whether there are uses without an event.
    #[inline]
    pub(crate) fn has_uses(self) -> bool {
        self.uses.is_some()
    }

    /// The number of events that are not done.
    pub(crate) fn events(self) -> u32 {
        self.events
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_over(self) -> bool {
        self.events == 0 && self.uses.is_none()
    }

    /// Records that one event is done.
    pub(crate) fn event_is_done(&mut self) {
        self.events -= 1;
    }
}

/// An index into the list of uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UseId(NonZeroU32);

impl UseId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug, Clone, Copy)]
struct Use {
    stream: StreamId,
    recorded: Recorded,
    next: Option<UseId>,
}

/// The uses for which no event is recorded yet: a list for each block, sorted by stream.
#[derive(Debug, Default)]
pub(crate) struct StreamUses {
    uses: Vec<Use>,
    vacant: Vec<UseId>,
}

impl StreamUses {
    /// Adds a use to a block's list. Each stream is listed once.
    pub(crate) fn add(&mut self, waits: &mut Waits, stream: StreamId, recorded: Recorded) {
        let (mut before, mut at) = (None, waits.uses);
        while let Some(id) = at.filter(|id| self.uses[id.index()].stream < stream) {
            (before, at) = (Some(id), self.uses[id.index()].next);
        }
        if at.is_some_and(|id| self.uses[id.index()].stream == stream) {
            return;
        }
        let new = Some(self.insert(Use { stream, recorded, next: at }));
        match before {
            Some(before) => self.uses[before.index()].next = new,
            None => waits.uses = new,
        }
    }

    fn insert(&mut self, new: Use) -> UseId {
        if let Some(id) = self.vacant.pop() {
            self.uses[id.index()] = new;
            return id;
        }
        self.uses.push(new);
        let number = u32::try_from(self.uses.len()).ok().and_then(NonZeroU32::new);
        UseId(number.expect("fewer than 2^32 uses of blocks on other streams at one time"))
    }

    fn remove(&mut self, id: UseId) -> Option<UseId> {
        self.vacant.push(id);
        self.uses[id.index()].next
    }

    /// The first stream in a block's list.
    pub(crate) fn first(&self, waits: Waits) -> Option<StreamId> {
        Some(self.uses[waits.uses?.index()].stream)
    }

    /// Counts an event for the first use in a block's list, and removes that use.
    pub(crate) fn make_event_of_first(&mut self, waits: &mut Waits) {
        let first = waits.uses.expect("an event is recorded for a use");
        waits.uses = self.remove(first);
        waits.events += 1;
    }

    /// Removes the uses that were recorded during a capture.
    pub(crate) fn drop_captured(&mut self, waits: &mut Waits) {
        let mut at = waits.uses.take();
        while let Some(id) = at {
            let Use { stream, recorded, .. } = self.uses[id.index()];
            at = self.remove(id);
            if recorded == Recorded::Eagerly {
                self.add(waits, stream, recorded);
            }
        }
    }

    /// The streams in a block's list.
    pub(crate) fn streams(&self, waits: Waits) -> impl Iterator<Item = StreamId> + '_ {
        let uses = std::iter::successors(waits.uses, |id| self.uses[id.index()].next);
        uses.map(|id| self.uses[id.index()].stream)
    }
}
