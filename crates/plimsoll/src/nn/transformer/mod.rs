//! The transformer's blocks, as in PyTorch: attention and a perceptron, each added to what comes in and normalized.
//!
//! | file | what it has |
//! |---|---|
//! | this one | the options that all blocks share, and the perceptron |
//! | `encoder` | [`TransformerEncoderLayer`], [`TransformerEncoder`] |
//! | `decoder` | [`TransformerDecoderLayer`], [`TransformerDecoder`] |
//! | `whole` | [`Transformer`]: an encoder and a decoder |

mod decoder;
mod encoder;
mod whole;

pub use decoder::{DecoderMasks, TransformerDecoder, TransformerDecoderLayer};
pub use encoder::{EncoderMasks, TransformerEncoder, TransformerEncoderLayer};
pub use whole::Transformer;

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Activation, Result, Tensor};

use super::{Dropout, LayerNorm, Linear, Module, MultiheadAttention, MultiheadAttentionOptions, Scope};

/// How a transformer's block is made. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerOptions {
    /// Width inside of the perceptron.
    pub dim_feedforward: usize,
    /// The probability of dropping: an element that a part adds, one inside of the perceptron, a weight of attention.
    pub dropout: f64,
    /// The perceptron's activation.
    pub activation: Activation,
    /// Added to the variance of a normalization.
    pub layer_norm_eps: f64,
    /// Whether tensors are `[batch, length, width]`, and not `[length, batch, width]`.
    pub batch_first: bool,
    /// Whether each part normalizes what comes in, and not the sum.
    pub norm_first: bool,
}

impl Default for TransformerOptions {
    fn default() -> Self {
        TransformerOptions {
            dim_feedforward: 2048,
            dropout: 0.1,
            activation: Activation::Relu,
            layer_norm_eps: 1e-5,
            batch_first: false,
            norm_first: false,
        }
    }
}

impl TransformerOptions {
    fn attention(&self, scope: &Scope, d_model: usize, nhead: usize) -> Result<MultiheadAttention> {
        let options = MultiheadAttentionOptions {
            dropout: self.dropout,
            batch_first: self.batch_first,
            ..MultiheadAttentionOptions::default()
        };
        MultiheadAttention::new(scope, d_model, nhead, options)
    }

    fn norm(&self, scope: &Scope, d_model: usize) -> Result<LayerNorm> {
        Ok(LayerNorm::new(scope, d_model)?.eps(self.layer_norm_eps))
    }

    /// A part of a block: `x + part(norm(x))`, or `norm(x + part(x))`.
    fn part(
        &self,
        norm: &LayerNorm,
        dropout: &Dropout,
        x: &Tensor,
        part: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if self.norm_first {
            return dropout.forward_add(&part(&norm.forward(x)?)?, x);
        }
        norm.forward(&dropout.forward_add(&part(x)?, x)?)
    }
}

/// The perceptron: `linear2(dropout(activation(linear1(x))))`. Where nothing is dropped, the activation's output is not kept.
fn feed_forward(
    label: LabelId,
    activation: Activation,
    [linear1, linear2]: [&Linear; 2],
    dropout: &Dropout,
    x: &Tensor,
) -> Result<Tensor> {
    let up = linear1.forward(x)?;
    if dropout.is_dropping() {
        let active = {
            let _owner = Span::layer(label);
            activation.of(&up)?
        };
        drop(up);
        return linear2.forward(&dropout.forward(&active)?);
    }
    let _owner = Span::layer(linear2.label());
    up.activation_linear(activation, linear2.weight(), linear2.bias().map(|bias| &**bias))
}
