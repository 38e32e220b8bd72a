//! An encoder and a decoder: [`Transformer`].

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Result, Tensor};

use super::super::{Module, Scope};
use super::{DecoderMasks, EncoderMasks, TransformerDecoder, TransformerEncoder, TransformerOptions};
use crate::members;

/// An encoder, and a decoder that attends to its output; both end with a normalization. Like `torch.nn.Transformer`,
/// except for the initial values: matrices keep those of the layers and are not redrawn by `xavier_uniform_`.
///
/// ```
/// use plimsoll::nn::{DecoderMasks, EncoderMasks, Scope, Transformer, TransformerOptions};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let model = Transformer::new(&Scope::new(&device, 1), 16, 2, [1, 1], TransformerOptions::default())?;
/// let (source, target) = (Tensor::randn(&[7, 3, 16], &device)?, Tensor::randn(&[5, 3, 16], &device)?);
/// let causal = DecoderMasks { tgt_is_causal: true, ..DecoderMasks::default() };
/// assert_eq!(model.forward(&source, &target, EncoderMasks::default(), causal)?.shape(), [5, 3, 16]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct Transformer {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

impl Transformer {
    /// A transformer for tokens of `d_model` numbers, with these numbers of encoder and decoder layers.
    ///
    /// # Errors
    /// The same errors as [`super::TransformerEncoderLayer::new`].
    pub fn new(
        scope: &Scope,
        d_model: usize,
        nhead: usize,
        [encoder_layers, decoder_layers]: [usize; 2],
        options: TransformerOptions,
    ) -> Result<Transformer> {
        let (to, from) = (scope.at("encoder"), scope.at("decoder"));
        let encoder = TransformerEncoder::new(&to, encoder_layers, d_model, nhead, options)?;
        let decoder = TransformerDecoder::new(&from, decoder_layers, d_model, nhead, options)?;
        Ok(Transformer {
            encoder: encoder.with_norm(options.norm(&to.at("norm"), d_model)?),
            decoder: decoder.with_norm(options.norm(&from.at("norm"), d_model)?),
        })
    }

    /// The decoder's output for a source and a target. Like `torch.nn.Transformer.forward`.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward(
        &self,
        src: &Tensor,
        tgt: &Tensor,
        of_source: EncoderMasks<'_>,
        of_target: DecoderMasks<'_>,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let memory = self.encoder.forward_masked(src, of_source)?;
        self.decoder.forward(tgt, &memory, of_target)
    }
}

impl Module for Transformer {
    members!(encoder, decoder);
}
