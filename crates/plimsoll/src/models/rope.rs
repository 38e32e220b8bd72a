//! The frequencies of rotary position embeddings (RoPE) and how they change for longer sequences: [`RopeScaling`].
//!
//! The formulas are the same as in `modeling_rope_utils.py` of `transformers`.

use std::f64::consts::TAU;

use plimsoll_tensor::{Error, Result};

use super::config_json::Fields;

/// How RoPE is scaled for sequences longer than those in pretraining: `rope_scaling`, or `rope_parameters`, in
/// `transformers`.
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
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every angle is divided by `factor`.
    Linear {
        /// How many times longer sequences may be than in pretraining.
        factor: f64,
    },
    /// A larger base for sequences of more than `max_position_embeddings` tokens. The base is chosen for the longest
    /// sequence so far; a sequence shorter than the pretraining length resets it.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
        /// The sequence length in pretraining, in tokens.
        max_position_embeddings: usize,
    },
    /// Low frequencies are divided by `factor`, high ones are kept, and those in between are blended. Used by Llama 3.1
    /// and later.
    Llama3 {
        /// How many times longer sequences may be than in pretraining.
        factor: f64,
        /// A frequency is low if it makes at most this many turns within the pretraining length.
        low_freq_factor: f64,
        /// A frequency is high if it makes at least this many turns.
        high_freq_factor: f64,
        /// The sequence length in pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN: keeps high frequencies, divides low ones by `factor`, blends those in between, and scales queries and keys up.
    /// [`Yarn::default`] has the defaults of `transformers`.
    Yarn(Yarn),
    /// Each frequency is divided by its own factor; there is one list of factors for sequences up to the pretraining
    /// length and another for longer ones. Used by Phi-3 and others.
    LongRope {
        /// How many times longer sequences may be: `max_position_embeddings / original_max_position_embeddings`.
        factor: f64,
        /// The divisor of each frequency in sequences up to the pretraining length; their number is half the head
        /// width.
        short_factor: Vec<f64>,
        /// The divisor of each frequency in longer sequences.
        long_factor: Vec<f64>,
        /// The factor that multiplies queries and keys; by default it is derived from `factor`.
        attention_factor: Option<f64>,
        /// The sequence length in pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// Reads the fields of `rope_parameters`, or of `rope_scaling` in older files, where the lengths may be in the outer object.
    pub(super) fn of_fields(rope: &Fields<'_>, outer: &Fields<'_>) -> Result<Option<RopeScaling>> {
        let kind = match rope.text("rope_type")? {
            Some(kind) => kind,
            None => rope.text("type")?.unwrap_or("default"),
        };
        let length = |name: &str| Ok(rope.count_if_given(name)?.or(outer.count_if_given(name)?));
        let longest = length("max_position_embeddings")?.unwrap_or(2048);
        let original = length("original_max_position_embeddings")?.unwrap_or(longest);
        let factor = rope.number("factor", 1.0)?;
        Ok(Some(match kind {
            "default" => return Ok(None),
            "linear" => RopeScaling::Linear { factor },
            "dynamic" => RopeScaling::Dynamic { factor, max_position_embeddings: longest },
            "llama3" => RopeScaling::Llama3 {
                factor,
                low_freq_factor: rope.number("low_freq_factor", 1.0)?,
                high_freq_factor: rope.number("high_freq_factor", 4.0)?,
                original_max_position_embeddings: original,
            },
            "yarn" => {
                let default = Yarn::default();
                RopeScaling::Yarn(Yarn {
                    factor,
                    original_max_position_embeddings: original,
                    attention_factor: rope.number_if_given("attention_factor")?,
                    mscale: rope.number_if_given("mscale")?,
                    mscale_all_dim: rope.number_if_given("mscale_all_dim")?,
                    beta_fast: rope.number("beta_fast", default.beta_fast)?,
                    beta_slow: rope.number("beta_slow", default.beta_slow)?,
                    truncate: rope.flag("truncate", default.truncate)?,
                })
            }
            "longrope" => RopeScaling::LongRope {
                factor: rope.number("factor", longest as f64 / original as f64)?,
                short_factor: rope.numbers("short_factor")?,
                long_factor: rope.numbers("long_factor")?,
                attention_factor: rope.number_if_given("attention_factor")?,
                original_max_position_embeddings: original,
            },
            _ => {
                let name = if rope.given("rope_type").is_some() { "rope_type" } else { "type" };
                return rope.wrong(name, "default, linear, dynamic, llama3, yarn or longrope");
            }
        }))
    }
}

/// The parameters of [`RopeScaling::Yarn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times longer sequences may be than in pretraining.
    pub factor: f64,
    /// The sequence length in pretraining, in tokens.
    pub original_max_position_embeddings: usize,
    /// The factor that multiplies queries and keys; by default it is derived from `factor` and, if both are given, the
    /// next two fields.
    pub attention_factor: Option<f64>,
    /// The coefficient of the logarithm of `factor` by which queries and keys are multiplied.
    pub mscale: Option<f64>,
    /// The coefficient of the logarithm of `factor` by which queries and keys are divided.
    pub mscale_all_dim: Option<f64>,
    /// A frequency that makes at least this many turns within the pretraining length is kept.
    pub beta_fast: f64,
    /// A frequency that makes at most this many turns is divided by `factor`.
    pub beta_slow: f64,
    /// Whether the indices of the first and the last blended frequency are rounded to integers.
    pub truncate: bool,
}

impl Default for Yarn {
    fn default() -> Yarn {
        Yarn {
            factor: 1.0,
            original_max_position_embeddings: 2048,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
        }
    }
}

impl Yarn {
    fn attention_factor(&self) -> f64 {
        let scale = |by: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * by * self.factor.ln() + 1.0 };
        let given = |x: Option<f64>| x.filter(|&x| x != 0.0);
        self.attention_factor.unwrap_or_else(|| match (given(self.mscale), given(self.mscale_all_dim)) {
            (Some(above), Some(below)) => scale(above) / scale(below),
            _ => scale(1.0),
        })
    }

    /// The weight of the original value of each frequency in the blend.
    fn kept(&self, base: f64, width: usize) -> impl Iterator<Item = f64> {
        let place = |turns: f64| {
            let tokens = self.original_max_position_embeddings as f64;
            width as f64 * (tokens / (turns * TAU)).ln() / (2.0 * base.ln())
        };
        let (low, high) = (place(self.beta_fast), place(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(width as f64 - 1.0));
        let high = if low == high { high + 0.001 } else { high };
        (0..width / 2).map(move |i| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0))
    }
}

/// How positions are rotated: the frequency of each pair of elements in a head, and the factor that multiplies cosines
/// and sines.
#[derive(Debug, PartialEq)]
pub(super) struct Turns {
    pub(super) frequencies: Vec<f64>,
    pub(super) scale: f64,
}

impl RopeScaling {
    /// Rejects invalid parameters, for heads of this width.
    pub(super) fn check(&self, width: usize) -> Result<()> {
        let (factor, length) = match *self {
            RopeScaling::Linear { factor } => (factor, 1),
            RopeScaling::Dynamic { factor, max_position_embeddings } => (factor, max_position_embeddings),
            RopeScaling::Yarn(Yarn { factor, original_max_position_embeddings, .. })
            | RopeScaling::LongRope { factor, original_max_position_embeddings, .. }
            | RopeScaling::Llama3 { factor, original_max_position_embeddings, .. } => {
                (factor, original_max_position_embeddings)
            }
        };
        let wrong = |message: String| Err(Error::Argument { op: "rope_scaling", message });
        if !(factor >= 1.0 && factor.is_finite()) {
            return wrong(format!("factor is {factor}; it must be 1 or more"));
        }
        if length == 0 {
            return wrong("the pretraining length is 0; it must be 1 or more".to_owned());
        }
        match self {
            RopeScaling::Dynamic { .. } if width <= 2 => {
                wrong(format!("heads of width {width}; a dynamic base needs 4 or more"))
            }
            &RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. }
                if !(low > 0.0 && low < high && high.is_finite()) =>
            {
                wrong(format!(
                    "low_freq_factor is {low} and high_freq_factor {high}; low_freq_factor must be above 0 and below high_freq_factor"
                ))
            }
            &RopeScaling::Yarn(Yarn { beta_fast: fast, beta_slow: slow, .. })
                if !(slow > 0.0 && slow <= fast && fast.is_finite()) =>
            {
                wrong(format!(
                    "beta_slow is {slow} and beta_fast {fast}; beta_slow must be above 0 and at most beta_fast"
                ))
            }
            RopeScaling::LongRope { short_factor, long_factor, .. } => {
                for (name, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if factors.len() != width / 2 {
                        let message =
                            format!("{name} has {} numbers for heads of width {width}", factors.len());
                        return wrong(format!("{message}; it needs {}", width / 2));
                    }
                    if let Some(bad) = factors.iter().find(|&&factor| !(factor > 0.0 && factor.is_finite())) {
                        return wrong(format!("{name} contains {bad}; its numbers must be above 0"));
                    }
                }
                match factor > 1.0 && length == 1 {
                    true => wrong("the pretraining length is 1; it must be 2 or more".to_owned()),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The rotation for heads of this width, in sequences of `length` tokens.
pub(super) fn turns(base: f64, width: usize, scaling: Option<&RopeScaling>, length: usize) -> Turns {
    let plain = |base: f64| (0..width / 2).map(move |i| base.powf(-2.0 * i as f64 / width as f64));
    let unscaled = |frequencies| Turns { frequencies, scale: 1.0 };
    match scaling {
        None => unscaled(plain(base).collect()),
        Some(RopeScaling::Linear { factor }) => {
            unscaled(plain(base).map(|frequency| frequency / factor).collect())
        }
        Some(&RopeScaling::Dynamic { factor, max_position_embeddings }) => {
            let times = length.max(max_position_embeddings) as f64 / max_position_embeddings as f64;
            let exponent = width as f64 / (width as f64 - 2.0);
            unscaled(plain(base * (factor * times - (factor - 1.0)).powf(exponent)).collect())
        }
        Some(&RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        }) => {
            let scaled = |frequency: f64| {
                let turns = original_max_position_embeddings as f64 * frequency / TAU;
                // 0 if the frequency is low, 1 if it is high.
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            };
            unscaled(plain(base).map(scaled).collect())
        }
        Some(RopeScaling::Yarn(yarn)) => {
            let mixed =
                |(frequency, kept): (f64, f64)| frequency / yarn.factor * (1.0 - kept) + frequency * kept;
            let frequencies = plain(base).zip(yarn.kept(base, width)).map(mixed).collect();
            Turns { frequencies, scale: yarn.attention_factor() }
        }
        Some(RopeScaling::LongRope {
            factor,
            short_factor,
            long_factor,
            attention_factor,
            original_max_position_embeddings,
        }) => {
            let long = length > *original_max_position_embeddings;
            let factors = if long { long_factor } else { short_factor };
            let usual = match *factor > 1.0 {
                true => (1.0 + factor.ln() / (*original_max_position_embeddings as f64).ln()).sqrt(),
                false => 1.0,
            };
            let frequencies = plain(base).zip(factors).map(|(frequency, by)| frequency / by).collect();
            Turns { frequencies, scale: attention_factor.unwrap_or(usual) }
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
        check(dynamic(0), "the pretraining length is 0; it must be 1 or more");
        check(dynamic(8), "heads of width 2; a dynamic base needs 4 or more");
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        check(
            llama3,
            "low_freq_factor is 4 and high_freq_factor 4; low_freq_factor must be above 0 and below high_freq_factor",
        );
    }

    #[test]
    fn a_dynamic_base_grows_only_beyond_the_pretrainings_length() {
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 };
        let frequencies = |scaling, length| turns(1e4, 8, scaling, length).frequencies;
        assert_eq!(frequencies(Some(&dynamic), 8), frequencies(None, 8));
        assert!(frequencies(Some(&dynamic), 9)[1] < frequencies(None, 9)[1]);
    }

    #[test]
    fn lists_of_another_length_and_turns_in_the_wrong_order_are_refused() {
        let long = |short_factor: Vec<f64>| RopeScaling::LongRope {
            factor: 4.0,
            short_factor,
            long_factor: vec![2.0; 4],
            attention_factor: None,
            original_max_position_embeddings: 8,
        };
        let error = |scaling: RopeScaling| scaling.check(8).unwrap_err().to_string();
        let expected = "rope_scaling: short_factor has 3 numbers for heads of width 8; it needs 4";
        assert_eq!(error(long(vec![1.0; 3])), expected);
        let expected = "rope_scaling: short_factor contains 0; its numbers must be above 0";
        assert_eq!(error(long(vec![1.0, 0.0, 1.0, 1.0])), expected);
        assert!(long(vec![1.0; 4]).check(8).is_ok());
        let yarn = RopeScaling::Yarn(Yarn { beta_slow: 40.0, ..Yarn::default() });
        let expected = "beta_slow is 40 and beta_fast 32; beta_slow must be above 0 and at most beta_fast";
        assert_eq!(error(yarn), format!("rope_scaling: {expected}"));
    }
}
