//! The pooling methods of tensors.

use super::average::AvgPool;
use super::max::MaxPool;
use super::options::{AvgPoolOptions, MaxPoolOptions, three};
use super::places;
use super::spec::{Kind, Spec};
use crate::cpu::kernels::pool::average::Divisor;
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

#[track_caller]
fn max_pool(x: &Tensor, spec: Spec) -> Result<Tensor> {
    Ok(call(MaxPool(spec), &[x])?.remove(0))
}

#[track_caller]
fn max_pool_with_indices(x: &Tensor, spec: Spec) -> Result<(Tensor, Tensor)> {
    let mut outs = call(MaxPool(spec), &[x])?;
    let index = outs.remove(1);
    Ok((outs.remove(0), places::of_image(spec, x, &index)?))
}

#[track_caller]
fn avg_pool<const D: usize>(x: &Tensor, options: AvgPoolOptions<D>) -> Result<Tensor> {
    let divisor = match (options.divisor_override, options.count_include_pad) {
        (Some(0), _) => return Err(Error::argument("avg_pool", "divisor_override must not be 0")),
        (Some(n), _) => Divisor::Fixed(n),
        (None, true) => Divisor::Padded,
        (None, false) => Divisor::Inside,
    };
    call_one(AvgPool { spec: sliding(options.windows()), divisor }, &[x])
}

#[track_caller]
fn adaptive_avg<const D: usize>(x: &Tensor, out: [usize; D]) -> Result<Tensor> {
    let is_image = x.rank() == D + 1 || x.rank() == D + 2;
    if out == [1; D] && is_image && x.dtype().is_float() && x.numel() > 0 {
        // The mean over an entire image, which is summed in blocks.
        let dims: Vec<isize> = (1..=D as isize).map(|dim| -dim).collect();
        return x.mean_keepdim(&dims);
    }
    call_one(AvgPool { spec: adaptive(out), divisor: Divisor::Inside }, &[x])
}

fn sliding<const D: usize>(options: MaxPoolOptions<D>) -> Spec {
    Spec { spatial: D, kind: Kind::Sliding(options.in_three()) }
}

fn adaptive<const D: usize>(out: [usize; D]) -> Spec {
    Spec { spatial: D, kind: Kind::Adaptive(three(out, 1)) }
}

/// The methods for one, two and three dimensions.
macro_rules! methods {
    ($($d:literal $shape:literal: $max:ident $with:ident $avg:ident $adaptive_avg:ident $adaptive_max:ident $adaptive_with:ident)*) => {
        impl Tensor {$(
            #[doc = concat!("The largest value of each window of ", $shape, ", or of images without a batch. As `torch.nn.functional.", stringify!($max), "`: the first of equal values counts, and NaN is larger than everything.")]
            ///
            /// # Errors
            /// If the sizes are incompatible, or memory runs out.
            #[track_caller]
            pub fn $max(&self, options: MaxPoolOptions<$d>) -> Result<Tensor> {
                max_pool(self, sliding(options))
            }

            #[doc = concat!("[`Tensor::", stringify!($max), "`], and the indices of the maxima in each flattened image (`int64`). As `torch.nn.functional.", stringify!($max), "(return_indices=True)`.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($max), "`].")]
            #[track_caller]
            pub fn $with(&self, options: MaxPoolOptions<$d>) -> Result<(Tensor, Tensor)> {
                max_pool_with_indices(self, sliding(options))
            }

            #[doc = concat!("[`Tensor::", stringify!($adaptive_max), "`], and the indices of the maxima. As `torch.nn.functional.", stringify!($adaptive_max), "(return_indices=True)`.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($adaptive_max), "`].")]
            #[track_caller]
            pub fn $adaptive_with(&self, output_size: [usize; $d]) -> Result<(Tensor, Tensor)> {
                max_pool_with_indices(self, adaptive(output_size))
            }

            #[doc = concat!("The mean of each window of ", $shape, ", or of images without a batch. As `torch.nn.functional.", stringify!($avg), "`.")]
            ///
            /// # Errors
            /// If the sizes are incompatible, the dtype has no means, or memory runs out.
            #[track_caller]
            pub fn $avg(&self, options: AvgPoolOptions<$d>) -> Result<Tensor> {
                avg_pool(self, options)
            }

            #[doc = concat!("Images ", $shape, " of any size, reduced to a given size by the means of windows. As `torch.nn.functional.", stringify!($adaptive_avg), "`.")]
            ///
            /// # Errors
            /// If the images have no elements, the dtype is not floating-point, or memory runs out.
            #[track_caller]
            pub fn $adaptive_avg(&self, output_size: [usize; $d]) -> Result<Tensor> {
                adaptive_avg(self, output_size)
            }

            #[doc = concat!("Images ", $shape, " of any size, reduced to a given size by the maxima of windows. As `torch.nn.functional.", stringify!($adaptive_max), "`.")]
            ///
            /// # Errors
            /// If the images have no elements, or memory runs out.
            #[track_caller]
            pub fn $adaptive_max(&self, output_size: [usize; $d]) -> Result<Tensor> {
                max_pool(self, adaptive(output_size))
            }
        )*}
    };
}

methods! {
    1 "`[batch, channels, length]`": max_pool1d max_pool1d_with_indices avg_pool1d
        adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices
    2 "`[batch, channels, h, w]`": max_pool2d max_pool2d_with_indices avg_pool2d
        adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices
    3 "`[batch, channels, d, h, w]`": max_pool3d max_pool3d_with_indices avg_pool3d
        adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices
}
