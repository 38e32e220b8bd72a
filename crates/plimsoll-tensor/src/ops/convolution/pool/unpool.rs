//! Puts values back where max pooling took them from: `max_unpool`.

use super::options::MaxPoolOptions;
use crate::caller::Entry;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The default size before pooling: the one that the windows cover exactly.
fn unpooled(size: usize, kernel: usize, stride: usize, padding: usize) -> Option<usize> {
    (size.checked_sub(1)?.checked_mul(stride)? + kernel).checked_sub(2 * padding)
}

/// Writes values at their positions into images of zeros.
#[track_caller]
fn max_unpool<const D: usize>(
    x: &Tensor,
    places: &Tensor,
    options: MaxPoolOptions<D>,
    output_size: Option<[usize; D]>,
) -> Result<Tensor> {
    let _entry = Entry::here();
    const NAME: &str = "max_unpool";
    let fail = |message: String| Err(Error::shape(NAME, message));
    let Some(lead) = x.rank().checked_sub(D).filter(|lead| [1, 2].contains(lead)) else {
        return fail(format!(
            "{:?}: needs [batch, channels, …] or [channels, …] with {D} dimensions after the channels",
            x.shape()
        ));
    };
    if x.shape() != places.shape() {
        return fail(format!(
            "values {:?} and indices {:?}: the shapes must be equal",
            x.shape(),
            places.shape()
        ));
    }
    let mut shape = x.shape().to_vec();
    for i in 0..D {
        let size = shape[lead + i];
        let usual = unpooled(size, options.kernel[i], options.stride[i], options.padding[i]);
        let Some(size) = output_size.map_or(usual, |sizes| Some(sizes[i])) else {
            return fail(format!("{:?} has no output elements with {options:?}", x.shape()));
        };
        shape[lead + i] = size;
    }
    let (planes, image) = (&shape[..lead], shape[lead..].iter().product::<usize>());
    let (wide, narrow) =
        ([planes, &[image]].concat(), [planes, &[x.shape()[lead..].iter().product()]].concat());
    let zeros = Tensor::full(&wide, 0.0, x.dtype(), x.device())?;
    let (values, places) = (x.reshape(narrow.as_slice())?, places.reshape(narrow.as_slice())?);
    zeros.scatter(-1, &places, &values)?.reshape(shape.as_slice())
}

macro_rules! methods {
    ($($d:literal $pool:ident $unpool:ident)*) => {
        impl Tensor {$(
            #[doc = concat!("Writes values at the indices that [`Tensor::", stringify!($pool), "_with_indices`] returned, with zeros elsewhere. The result has `output_size`, or by default the size that adjacent windows cover. As `torch.nn.functional.", stringify!($unpool), "`.")]
            ///
            /// # Errors
            /// If the shapes differ, a position is outside the image, or memory runs out.
            #[track_caller]
            pub fn $unpool(
                &self,
                indices: impl AsRef<Tensor>,
                options: MaxPoolOptions<$d>,
                output_size: impl Into<Option<[usize; $d]>>,
            ) -> Result<Tensor> {
                max_unpool(self, indices.as_ref(), options, output_size.into())
            }
        )*}
    };
}
methods! {
    1 max_pool1d max_unpool1d
    2 max_pool2d max_unpool2d
    3 max_pool3d max_unpool3d
}
