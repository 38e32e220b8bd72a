//! What an operation keeps for its derivative.
//!
//! Keeping a temporary makes it an activation until the derivative has run. A saved tensor holds values
//! only, never the graph, so nodes cannot keep each other alive in a ring.

use crate::data::Data;
use crate::error::{Error, Result};

/// A tensor kept for the backward pass.
pub(crate) struct Saved {
    data: Data,
    version: u32,
}

impl Saved {
    /// Keeps these values.
    pub(crate) fn new(data: &Data) -> Saved {
        data.storage.save();
        Saved { data: data.clone(), version: data.storage.version() }
    }

    /// The values, for the derivative of `node`.
    ///
    /// # Errors
    /// Their storage was changed in place after they were saved.
    pub(crate) fn get(&self, node: &'static str) -> Result<&Data> {
        let (saved, found) = (self.version, self.data.storage.version());
        if saved != found {
            return Err(Error::SavedModified { node, saved, found });
        }
        Ok(&self.data)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.data.storage.unsave();
    }
}
