//! The places in the program that made requests, for the history: [`Locations`].

use std::collections::BTreeMap;
use std::panic::Location;

use crate::request::StackId;

/// The places in the program that made requests, numbered in order of first use.
#[derive(Default)]
pub(super) struct Locations {
    ids: BTreeMap<&'static Location<'static>, StackId>,
    places: Vec<&'static Location<'static>>,
}

impl Locations {
    /// The number of a place.
    #[inline(never)] // places are rarely recorded
    pub(super) fn id(&mut self, place: &'static Location<'static>) -> StackId {
        let next = StackId(self.places.len() as u32);
        let id = *self.ids.entry(place).or_insert(next);
        if id == next {
            self.places.push(place);
        }
        id
    }

    /// The place with this number.
    pub(super) fn place(&self, id: StackId) -> Option<&'static Location<'static>> {
        self.places.get(id.0 as usize).copied()
    }
}
