//! The transformer's blocks, as in PyTorch: attention and an MLP, each with a residual connection and a normalization.
//!
//! | file | contents |
//! |---|---|
//! | this one | the options that all blocks share, and the MLP |
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

/// The options of a transformer block. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerOptions {
    /// Hidden width of the MLP.
    pub dim_feedforward: usize,
    /// Dropout probability of sublayer outputs, inside the MLP, and of attention weights.
    pub dropout: f64,
    /// Activation function of the MLP.
    pub activation: Activation,
    /// Epsilon added to the variance in layer normalization.
    pub layer_norm_eps: f64,
    /// Whether tensors are `[batch, length, width]` instead of `[length, batch, width]`.
    pub batch_first: bool,
    /// Whether each sublayer normalizes its input instead of the sum.
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

    /// A sublayer of a block: `x + part(norm(x))`, or `norm(x + part(x))`.
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

/// The MLP: `linear2(dropout(activation(linear1(x))))`. Without dropout, the activation's output is not kept.
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
