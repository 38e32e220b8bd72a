//! The tables of cosines and sines of rotary position embeddings.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Device, Result, Tensor, is_inference_mode_enabled};

use super::rope::{self, RopeScaling, Turns};
use crate::nn::Scope;

/// The tables of a model. They are made once, so that a training step copies no values from the program and can be captured. The
/// number of positions in each is a power of two. No table is dropped before the model, since a captured step may read it. Clones
/// share the tables.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    label: LabelId,
    base: f64,
    width: usize,
    scaling: Option<RopeScaling>,
    longest: Arc<LongestSequence>,
    made: Arc<Mutex<Vec<[Tensor; 2]>>>,
}

impl Tables {
    /// Tables for heads of this width; none are made yet.
    pub(super) fn new(scope: &Scope, base: f64, width: usize, scaling: Option<RopeScaling>) -> Tables {
        Tables { label: scope.label(), base, width, scaling, longest: Arc::default(), made: Arc::default() }
    }

    /// Cosines and sines for sequences of this many tokens.
    pub(super) fn of(&self, length: usize, device: &Device) -> Result<[Tensor; 2]> {
        let longest = self.longest.of(self.scaling.as_ref(), length);
        let depends_on_length = match self.scaling {
            Some(RopeScaling::Dynamic { max_position_embeddings: most, .. }) => longest > most,
            Some(RopeScaling::LongRope { original_max_position_embeddings: most, .. }) => length > most,
            _ => false,
        };
        // A training step cannot save tensors made in inference mode.
        if depends_on_length || is_inference_mode_enabled() {
            return self.make(length, longest, device);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |[cos, _]: &&[Tensor; 2]| cos.shape()[0] >= length && cos.device() == device;
        if made.iter().find(fits).is_none() {
            made.push(self.make(length.next_power_of_two(), length, device)?);
        }
        let Some([cos, sin]) = made.iter().find(fits) else { unreachable!("made above") };
        if cos.shape()[0] == length {
            return Ok([cos.clone(), sin.clone()]);
        }
        Ok([cos.narrow(0, 0, length)?, sin.narrow(0, 0, length)?])
    }

    /// Makes tables of this many rows, for sequences of `length` tokens.
    fn make(&self, rows: usize, length: usize, device: &Device) -> Result<[Tensor; 2]> {
        let _owner = Span::layer(self.label);
        let Turns { frequencies, scale } = rope::turns(self.base, self.width, self.scaling.as_ref(), length);
        let (cos, sin) = Tensor::rotary_tables_of(rows, &frequencies, device)?;
        if scale != 1.0 {
            cos.mul_scalar_(scale)?;
            sin.mul_scalar_(scale)?;
        }
        Ok([cos, sin])
    }
}

/// The length that the dynamic base is computed for: the longest sequence so far, until a sequence is shorter than the
/// pretraining length. Like `dynamic_rope_update` of `transformers`.
#[derive(Debug, Default)]
struct LongestSequence(AtomicUsize);

impl LongestSequence {
    /// Returns the length to use for a sequence of this many tokens.
    fn of(&self, scaling: Option<&RopeScaling>, length: usize) -> usize {
        let Some(&RopeScaling::Dynamic { max_position_embeddings: original, .. }) = scaling else {
            return length;
        };
        let next = |longest: usize| {
            let longest = longest.max(original);
            if length < original { original } else { longest.max(length) }
        };
        let before = self.0.fetch_update(Relaxed, Relaxed, |longest| Some(next(longest)));
        next(before.unwrap_or_else(|longest| longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_base_is_that_of_the_longest_sequence_until_a_short_one_comes() {
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 };
        let longest = LongestSequence::default();
        let lengths = [4, 12, 9, 8, 20, 10, 7, 8, 9];
        let found = lengths.map(|length| longest.of(Some(&dynamic), length));
        assert_eq!(found, [8, 12, 12, 12, 20, 20, 8, 8, 9]);
        assert_eq!(longest.of(None, 3), 3);
    }
}
