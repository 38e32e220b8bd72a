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
    Data(Box<DataError>),
    /// A checkpoint could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(Box<SerializeError>),
    /// The options contradict each other, the model or the data.
    #[error("{0}")]
    Options(String),
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> TrainError {
        TrainError::Data(Box::new(error))
    }
}

impl From<SerializeError> for TrainError {
    fn from(error: SerializeError) -> TrainError {
        match error {
            SerializeError::Tensor(error) => TrainError::Tensor(error),
            other => TrainError::Checkpoint(Box::new(other)),
        }
    }
}
