//! Pooling layers for images with one, two and three dimensions.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{AvgPoolOptions, Error, MaxPoolOptions, Result, Tensor};

use super::{Module, Scope};

/// The largest value of each window: [`MaxPool1d`], [`MaxPool2d`], [`MaxPool3d`].
///
/// ```
/// use plimsoll::nn::{MaxPool2d, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let pool = MaxPool2d::new(&Scope::new(&device, 1), 3)?.stride(2).padding(1);
/// assert_eq!(pool.forward(&Tensor::ones(&[1, 4, 8, 8], &device)?)?.shape(), [1, 4, 4, 4]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MaxPool<const D: usize> {
    label: LabelId,
    options: MaxPoolOptions<D>,
}

/// Like `torch.nn.MaxPool1d`.
pub type MaxPool1d = MaxPool<1>;
/// Like `torch.nn.MaxPool2d`.
pub type MaxPool2d = MaxPool<2>;
/// Like `torch.nn.MaxPool3d`.
pub type MaxPool3d = MaxPool<3>;

/// Defines the constructors of a layer with windows.
macro_rules! windows {
    ($($layer:ident $options:ident)*) => {$(
        impl<const D: usize> $layer<D> {
            /// A layer with adjacent windows of `kernel` elements in each dimension.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn new(scope: &Scope, kernel: usize) -> Result<Self> {
                Self::with(scope, $options::square(kernel))
            }

            /// A layer with arbitrary windows.
            ///
            /// # Errors
            /// The same errors as `new`.
            pub fn with(scope: &Scope, options: $options<D>) -> Result<Self> {
                Ok($layer { label: scope.label(), options })
            }
        }
    )*};
}
windows! {
    MaxPool MaxPoolOptions
    MaxUnpool MaxPoolOptions
    AvgPool AvgPoolOptions
}

/// Defines the setters for stride and padding.
macro_rules! placed {
    ($($layer:ident)*) => {$(
        impl<const D: usize> $layer<D> {
            /// Returns the layer with this stride in each dimension.
            pub fn stride(mut self, stride: usize) -> Self {
                self.options.stride = [stride; D];
                self
            }

            /// Returns the layer with this much padding on every side. A maximum ignores padding; a mean counts it as zeros.
            pub fn padding(mut self, padding: usize) -> Self {
                self.options.padding = [padding; D];
                self
            }
        }
    )*};
}
placed! {
    MaxPool
    AvgPool
}

impl<const D: usize> MaxPool<D> {
    /// Returns the layer with this dilation: the distance between the elements of a window.
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.options.dilation = [dilation; D];
        self
    }

    /// Sets whether elements left over at the end get a window of their own.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.options.ceil_mode = ceil_mode;
        self
    }
}

/// Defines the methods for one, two and three dimensions.
macro_rules! with_places {
    ($($d:literal $pool:ident $unpool:ident)*) => {$(
        impl MaxPool<$d> {
            /// Returns the largest values, and their indices in each flattened image (`int64`). In PyTorch:
            /// `return_indices=True`.
            ///
            /// # Errors
            /// The same errors as `forward`.
            #[track_caller]
            pub fn forward_with_indices(&self, input: &Tensor) -> Result<(Tensor, Tensor)> {
                let _owner = Span::layer(self.label);
                input.$pool(self.options)
            }
        }

        impl MaxUnpool<$d> {
            /// Puts values at these indices and zeros elsewhere. The output has the size that the windows cover, or
            /// `output_size`.
            ///
            /// # Errors
            /// If the shapes differ, indices are outside the image, or memory runs out.
            pub fn forward(
                &self,
                input: &Tensor,
                indices: &Tensor,
                output_size: impl Into<Option<[usize; $d]>>,
            ) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$unpool(indices, self.options, output_size.into())
            }
        }
    )*};
}
with_places! {
    1 max_pool1d_with_indices max_unpool1d
    2 max_pool2d_with_indices max_unpool2d
    3 max_pool3d_with_indices max_unpool3d
}

/// Puts the values that [`MaxPool`] selected back in their positions: [`MaxUnpool1d`], [`MaxUnpool2d`],
/// [`MaxUnpool3d`].
///
/// ```
/// use plimsoll::nn::{MaxPool2d, MaxUnpool2d, Scope};
/// use plimsoll::{Device, Tensor};
/// let (device, scope) = (Device::cpu(), Scope::new(&Device::cpu(), 1));
/// let (pool, unpool) = (MaxPool2d::new(&scope, 2)?, MaxUnpool2d::new(&scope, 2)?);
/// let x = Tensor::from_slice(&[1.0f32, 5.0, 2.0, 3.0], &[1, 1, 2, 2], &device)?;
/// let (largest, places) = pool.forward_with_indices(&x)?;
/// assert_eq!(unpool.forward(&largest, &places, None)?.to_vec::<f32>()?, [0.0, 5.0, 0.0, 0.0]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MaxUnpool<const D: usize> {
    label: LabelId,
    options: MaxPoolOptions<D>,
}

/// Like `torch.nn.MaxUnpool1d`.
pub type MaxUnpool1d = MaxUnpool<1>;
/// Like `torch.nn.MaxUnpool2d`.
pub type MaxUnpool2d = MaxUnpool<2>;
/// Like `torch.nn.MaxUnpool3d`.
pub type MaxUnpool3d = MaxUnpool<3>;

impl<const D: usize> Module for MaxUnpool<D> {}

/// The mean of each window: [`AvgPool1d`], [`AvgPool2d`], [`AvgPool3d`].
#[derive(Clone, Debug)]
pub struct AvgPool<const D: usize> {
    label: LabelId,
    options: AvgPoolOptions<D>,
}

/// Like `torch.nn.AvgPool1d`.
pub type AvgPool1d = AvgPool<1>;
/// Like `torch.nn.AvgPool2d`.
pub type AvgPool2d = AvgPool<2>;
/// Like `torch.nn.AvgPool3d`.
pub type AvgPool3d = AvgPool<3>;

impl<const D: usize> AvgPool<D> {
    /// Sets whether means include padding.
    pub fn count_include_pad(mut self, count_include_pad: bool) -> Self {
        self.options.count_include_pad = count_include_pad;
        self
    }
}

/// The size of an adaptive layer's output in each dimension; `None` keeps the input's.
type OutputSize<const D: usize> = [Option<usize>; D];

/// The output's size for an input with at least `D` dimensions.
fn output_size<const D: usize>(
    op: &'static str,
    wanted: OutputSize<D>,
    input: &Tensor,
) -> Result<[usize; D]> {
    let Some(lead) = input.rank().checked_sub(D) else {
        let message = format!("input {:?}: needs {D} dimensions after batch and channels", input.shape());
        return Err(Error::Shape { op, message });
    };
    Ok(std::array::from_fn(|i| wanted[i].unwrap_or(input.shape()[lead + i])))
}

macro_rules! adaptive {
    ($($(#[$doc:meta])* $layer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer<const D: usize> {
            label: LabelId,
            output_size: OutputSize<D>,
        }

        impl<const D: usize> $layer<D> {
            /// A layer whose output has `size` elements in each dimension.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn new(scope: &Scope, size: usize) -> Result<Self> {
                Self::sizes(scope, [Some(size); D])
            }

            /// A layer whose output has these sizes; a dimension without one keeps the input's.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn sizes(scope: &Scope, output_size: [Option<usize>; D]) -> Result<Self> {
                Ok($layer { label: scope.label(), output_size })
            }
        }
    )*};
}

adaptive! {
    /// Reduces images of any size to a fixed size by averaging over windows: [`AdaptiveAvgPool1d`],
    /// [`AdaptiveAvgPool2d`], [`AdaptiveAvgPool3d`].
    AdaptiveAvgPool;
    /// Reduces images of any size to a fixed size by taking the maximum of each window: [`AdaptiveMaxPool1d`],
    /// [`AdaptiveMaxPool2d`], [`AdaptiveMaxPool3d`].
    AdaptiveMaxPool;
}

/// Like `torch.nn.AdaptiveAvgPool1d`.
pub type AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
/// Like `torch.nn.AdaptiveAvgPool2d`.
pub type AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
/// Like `torch.nn.AdaptiveAvgPool3d`.
pub type AdaptiveAvgPool3d = AdaptiveAvgPool<3>;
/// Like `torch.nn.AdaptiveMaxPool1d`.
pub type AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
/// Like `torch.nn.AdaptiveMaxPool2d`.
pub type AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
/// Like `torch.nn.AdaptiveMaxPool3d`.
pub type AdaptiveMaxPool3d = AdaptiveMaxPool<3>;

/// Implements `forward` by calling the method for the number of dimensions.
macro_rules! forward {
    ($($d:literal: $max:ident $avg:ident $adaptive_avg:ident $adaptive_max:ident)*) => {$(
        impl Module for MaxPool<$d> {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$max(self.options)
            }
        }

        impl Module for AvgPool<$d> {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$avg(self.options)
            }
        }

        impl Module for AdaptiveAvgPool<$d> {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$adaptive_avg(output_size("adaptive_avg_pool", self.output_size, input)?)
            }
        }

        impl Module for AdaptiveMaxPool<$d> {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$adaptive_max(output_size("adaptive_max_pool", self.output_size, input)?)
            }
        }
    )*};
}

forward! {
    1: max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d
    2: max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d
    3: max_pool3d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d
}
