//! Rearranges channels into pixels and back: `pixel_shuffle`, `pixel_unshuffle`, `channel_shuffle`. Each is a reshaped and
//! permuted view, gathered once.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The last three sizes, `[…, channels, height, width]`, and the sizes before them.
fn image<'a>(op: &'static str, x: &'a Tensor) -> Result<(&'a [usize], [usize; 3])> {
    match x.shape() {
        [lead @ .., c, h, w] => Ok((lead, [*c, *h, *w])),
        shape => Err(Error::shape(op, format!("{shape:?}: needs […, channels, height, width]"))),
    }
}

/// Views `x` as `lead` followed by `sizes`, permutes those by `order`, and reshapes to `lead` followed by `to`.
#[track_caller]
fn exchanged(x: &Tensor, lead: &[usize], sizes: &[usize], order: &[usize], to: &[usize]) -> Result<Tensor> {
    let order: Vec<isize> =
        (0..lead.len()).chain(order.iter().map(|&at| lead.len() + at)).map(|at| at as isize).collect();
    x.reshape([lead, sizes].concat().as_slice())?.permute(&order)?.reshape([lead, to].concat().as_slice())
}

impl Tensor {
    /// Rearranges `[…, c · r², h, w]` into `[…, c, h · r, w · r]`. Like `torch.nn.functional.pixel_shuffle`.
    ///
    /// # Errors
    /// If the number of channels is not divisible by `r²`, or memory runs out.
    #[track_caller]
    pub fn pixel_shuffle(&self, upscale_factor: usize) -> Result<Tensor> {
        const NAME: &str = "pixel_shuffle";
        let (r, (lead, [c, h, w])) = (upscale_factor, image(NAME, self)?);
        if r == 0 || c % (r * r) != 0 {
            return Err(Error::shape(NAME, format!("{c} channels are not a multiple of {r} · {r}")));
        }
        let c = c / (r * r);
        exchanged(self, lead, &[c, r, r, h, w], &[0, 3, 1, 4, 2], &[c, h * r, w * r])
    }

    /// The inverse of [`Tensor::pixel_shuffle`]. Like `torch.nn.functional.pixel_unshuffle`.
    ///
    /// # Errors
    /// If the sizes are not divisible by `r`, or memory runs out.
    #[track_caller]
    pub fn pixel_unshuffle(&self, downscale_factor: usize) -> Result<Tensor> {
        const NAME: &str = "pixel_unshuffle";
        let (r, (lead, [c, h, w])) = (downscale_factor, image(NAME, self)?);
        if r == 0 || h % r != 0 || w % r != 0 {
            return Err(Error::shape(NAME, format!("{h} × {w} are not multiples of {r}")));
        }
        let (h, w) = (h / r, w / r);
        exchanged(self, lead, &[c, h, r, w, r], &[0, 2, 4, 1, 3], &[c * r * r, h, w])
    }

    /// Interleaves the channels of `groups` equal groups of `[batch, channels, …]`. Like `torch.nn.functional.channel_shuffle`.
    ///
    /// # Errors
    /// If the number of channels is not divisible by the number of groups, or memory runs out.
    #[track_caller]
    pub fn channel_shuffle(&self, groups: usize) -> Result<Tensor> {
        const NAME: &str = "channel_shuffle";
        let [batch, channels, rest @ ..] = self.shape() else {
            return Err(Error::shape(NAME, format!("{:?}: needs [batch, channels, …]", self.shape())));
        };
        if groups == 0 || channels % groups != 0 {
            return Err(Error::shape(
                NAME,
                format!("{channels} channels are not a multiple of {groups} groups"),
            ));
        }
        let sizes = [&[*batch, groups, channels / groups][..], rest].concat();
        self.reshape(sizes.as_slice())?.transpose(1, 2)?.reshape(self.shape())
    }
}
