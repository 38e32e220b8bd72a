//! What an operation keeps for its derivative.
//!
//! Keeping a temporary makes it an activation until the derivative has run. A saved tensor holds values
//! only, never the graph, so nodes cannot keep each other alive in a ring.

use crate::dispatch::Data;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A tensor kept for the backward pass.
pub(crate) struct Saved {
    data: Data,
    version: u32,
}

impl Saved {
    /// Keeps the values of a tensor.
    pub(crate) fn new(tensor: &Tensor) -> Saved {
        Saved::of(tensor.data())
    }

    /// Keeps values that are not a tensor yet, such as an operation's own output.
    pub(crate) fn of(data: &Data) -> Saved {
        data.storage.save();
        Saved { data: data.clone(), version: data.storage.version() }
    }

    /// The tensor, outside the graph, for the derivative of `node`.
    ///
    /// # Errors
    /// Its storage was changed in place after it was saved.
    pub(crate) fn get(&self, node: &'static str) -> Result<Tensor> {
        let (saved, found) = (self.version, self.data.storage.version());
        if saved != found {
            return Err(Error::SavedModified { node, saved, found });
        }
        Ok(Tensor::from_data(self.data.clone()))
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.data.storage.unsave();
    }
}
