//! Errors of samplers and of a loader's saved state.

/// Why samples cannot be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A weight that is negative or not finite.
    #[error("weight {at} is {weight}; weights must be finite and not negative")]
    Weight {
        /// The sample, from 0.
        at: usize,
        /// Its weight.
        weight: f64,
    },

    /// The weights do not have a finite sum above 0, so nothing can be drawn.
    #[error("the {weights} weights sum to {total}; at least one must be above 0, and the sum finite")]
    TotalWeight {
        /// The number of weights.
        weights: usize,
        /// Their sum.
        total: f64,
    },

    /// More draws without replacement than samples with a weight.
    #[error(
        "{draws} samples cannot be drawn without replacement: {positive} have a weight above 0; draw fewer, or with \
         replacement"
    )]
    TooManyDraws {
        /// Samples to draw.
        draws: usize,
        /// Samples with a weight above 0.
        positive: usize,
    },

    /// A replica outside its group.
    #[error("rank {rank} of {replicas} replicas; ranks are numbered from 0")]
    Rank {
        /// The replica.
        rank: usize,
        /// The number of replicas.
        replicas: usize,
    },

    /// Batches that do not divide into equal parts.
    #[error(
        "batches of {batch_size} cannot be divided into {replicas} equal parts: use a multiple of {replicas}, and no batch sampler"
    )]
    Parts {
        /// Samples of a batch.
        batch_size: usize,
        /// The number of replicas.
        replicas: usize,
    },

    /// A saved position belongs to another loader.
    #[error(
        "the saved position is from a loader with a different {what}: {saved}, not {ours}; resume with the same data, \
         batch size and sampler"
    )]
    OtherLoader {
        /// The property that differs.
        what: &'static str,
        /// The value in the saved state.
        saved: u64,
        /// The value in this loader.
        ours: u64,
    },
}
