//! Why a training ended early: [`TrainError`].

use crate::data::DataError;
use crate::serialize::SerializeError;

/// Why [`Trainer::fit`](crate::Trainer::fit) ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An operation failed; memory may have run out.
    #[error(transparent)]
    Tensor(#[from] plimsoll_tensor::Error),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] SerializeError),
    /// The trainer cannot do what it was told to do.
    #[error("{0}")]
    Options(String),
}
