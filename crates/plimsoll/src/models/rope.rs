//! The frequencies by which positions turn queries and keys, and how they change for longer sequences: [`RopeScaling`].
//!
//! The formulas are those of `modeling_rope_utils.py` of `transformers`.

use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Device, Error, Result, Tensor, is_inference_mode_enabled};

use crate::nn::Scope;

/// How a model reads sequences longer than those of its pretraining: `rope_scaling`, or `rope_parameters`, of `transformers`.
///
/// ```
/// use plimsoll::models::{LlamaConfig, RopeScaling};
/// // Llama 3.1.
/// let scaling = RopeScaling::Llama3 {
///     factor: 8.0,
///     low_freq_factor: 1.0,
///     high_freq_factor: 4.0,
///     original_max_position_embeddings: 8192,
/// };
/// let config = LlamaConfig { rope_theta: 500_000.0, rope_scaling: Some(scaling), ..LlamaConfig::default() };
/// # drop(config);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every angle divided by `factor`.
    Linear {
        /// How many times longer sequences may be.
        factor: f64,
    },
    /// A larger base of the angles for sequences of more than `max_position_embeddings` tokens, by the length of each batch.
    /// `transformers` keeps the base of the longest sequence so far until one comes that needs none; here each batch has its own.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
        /// Tokens in a sequence of the pretraining.
        max_position_embeddings: usize,
    },
    /// Low frequencies divided by `factor`, high ones kept, those between mixed: Llama 3.1 and later.
    Llama3 {
        /// How many times longer sequences may be.
        factor: f64,
        /// Turns in a sequence of the pretraining up to which a frequency is low.
        low_freq_factor: f64,
        /// Turns from which it is high.
        high_freq_factor: f64,
        /// Tokens in a sequence of the pretraining.
        original_max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// Rejects numbers without a meaning, for heads of this width.
    pub(super) fn check(&self, width: usize) -> Result<()> {
        let (factor, length) = match *self {
            RopeScaling::Linear { factor } => (factor, 1),
            RopeScaling::Dynamic { factor, max_position_embeddings } => (factor, max_position_embeddings),
            RopeScaling::Llama3 { factor, original_max_position_embeddings, .. } => {
                (factor, original_max_position_embeddings)
            }
        };
        let wrong = |message: String| Err(Error::Argument { op: "rope_scaling", message });
        if !(factor >= 1.0 && factor.is_finite()) {
            return wrong(format!("factor is {factor}; it must be 1 or more"));
        }
        if length == 0 {
            return wrong("the pretraining's sequences have 0 positions; give 1 or more".to_owned());
        }
        match *self {
            RopeScaling::Dynamic { .. } if width <= 2 => {
                wrong(format!("heads of width {width}; a dynamic base needs 4 or more"))
            }
            RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. }
                if !(low > 0.0 && low < high && high.is_finite()) =>
            {
                wrong(format!(
                    "low_freq_factor is {low} and high_freq_factor {high}; the first must be above 0 and below the second"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The tables of a model, which are made once, so that a training step reads no values of the program and can be captured. Each has
/// a power of two of positions, and none is dropped before the model, since a captured step may read it. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    label: LabelId,
    base: f64,
    width: usize,
    scaling: Option<RopeScaling>,
    made: Arc<Mutex<Vec<[Tensor; 2]>>>,
}

impl Tables {
    /// For heads of this width; none are made yet.
    pub(super) fn new(scope: &Scope, base: f64, width: usize, scaling: Option<RopeScaling>) -> Tables {
        Tables { label: scope.label(), base, width, scaling, made: Arc::default() }
    }

    /// Cosines and sines for sequences of so many tokens.
    pub(super) fn of(&self, length: usize, device: &Device) -> Result<[Tensor; 2]> {
        let depends_on_length = match self.scaling {
            Some(RopeScaling::Dynamic { max_position_embeddings: most, .. }) => length > most,
            _ => false,
        };
        // A training step cannot keep tensors of inference mode.
        if depends_on_length || is_inference_mode_enabled() {
            return self.make(length, length, device);
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

    /// Tables of so many rows, for sequences of `length` tokens.
    fn make(&self, rows: usize, length: usize, device: &Device) -> Result<[Tensor; 2]> {
        let _owner = Span::layer(self.label);
        let frequencies = frequencies(self.base, self.width, self.scaling, length);
        Tensor::rotary_tables_of(rows, &frequencies, device).map(<[Tensor; 2]>::from)
    }
}

/// The frequency of each pair of a head of this width, in sequences of `length` tokens.
fn frequencies(base: f64, width: usize, scaling: Option<RopeScaling>, length: usize) -> Vec<f64> {
    let plain = |base: f64| (0..width / 2).map(move |i| base.powf(-2.0 * i as f64 / width as f64));
    match scaling {
        None => plain(base).collect(),
        Some(RopeScaling::Linear { factor }) => plain(base).map(|frequency| frequency / factor).collect(),
        Some(RopeScaling::Dynamic { factor, max_position_embeddings }) => {
            let times = length.max(max_position_embeddings) as f64 / max_position_embeddings as f64;
            let exponent = width as f64 / (width as f64 - 2.0);
            plain(base * (factor * times - (factor - 1.0)).powf(exponent)).collect()
        }
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        }) => {
            let scaled = |frequency: f64| {
                let turns = original_max_position_embeddings as f64 * frequency / TAU;
                // 0 where it is low, 1 where it is high.
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            };
            plain(base).map(scaled).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        let check = |scaling: RopeScaling, message: &str| {
            let error = scaling.check(2).unwrap_err().to_string();
            assert_eq!(error, format!("rope_scaling: {message}"));
        };
        check(RopeScaling::Linear { factor: 0.5 }, "factor is 0.5; it must be 1 or more");
        check(RopeScaling::Linear { factor: f64::NAN }, "factor is NaN; it must be 1 or more");
        let dynamic = |max_position_embeddings| RopeScaling::Dynamic { factor: 2.0, max_position_embeddings };
        check(dynamic(0), "the pretraining's sequences have 0 positions; give 1 or more");
        check(dynamic(8), "heads of width 2; a dynamic base needs 4 or more");
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        check(
            llama3,
            "low_freq_factor is 4 and high_freq_factor 4; the first must be above 0 and below the second",
        );
    }

    #[test]
    fn a_dynamic_base_grows_only_beyond_the_pretrainings_length() {
        let dynamic = Some(RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 });
        assert_eq!(frequencies(1e4, 8, dynamic, 8), frequencies(1e4, 8, None, 8));
        assert!(frequencies(1e4, 8, dynamic, 9)[1] < frequencies(1e4, 8, None, 9)[1]);
    }
}
