//! Layers that change only the shape or the order of elements, or nothing.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Module, Scope};

/// Flattens all dimensions except the first into one; a view. Like `torch.nn.Flatten`.
#[derive(Clone, Debug)]
pub struct Flatten {
    label: LabelId,
    start: isize,
    end: isize,
}

impl Flatten {
    /// A layer that flattens from dimension 1 to the last.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope) -> Result<Flatten> {
        Ok(Flatten { label: scope.label(), start: 1, end: -1 })
    }

    /// Returns the layer for these dimensions, including `end`; negative ones count from the end.
    pub fn dims(mut self, start: isize, end: isize) -> Flatten {
        (self.start, self.end) = (start, end);
        self
    }
}

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.flatten(self.start, self.end)
    }
}

/// Returns its input unchanged. Like `torch.nn.Identity`: takes the place of a layer that is left out.
#[derive(Clone, Debug)]
pub struct Identity;

impl Identity {
    /// Makes the layer; it has no options.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(_: &Scope) -> Result<Identity> {
        Ok(Identity)
    }
}

impl Module for Identity {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}

/// Defines layers that call a method with one number.
macro_rules! rearranging {
    ($($(#[$doc:meta])* $layer:ident => $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            label: LabelId,
            by: usize,
        }

        impl $layer {
            /// Makes the layer with this number.
            ///
            /// # Errors
            /// None today; it returns a `Result` so that all layers are constructed in the same way.
            pub fn new(scope: &Scope, by: usize) -> Result<$layer> {
                Ok($layer { label: scope.label(), by })
            }
        }

        impl Module for $layer {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method(self.by)
            }
        }
    )*};
}

rearranging! {
    /// Moves channels into height and width. Like `torch.nn.PixelShuffle`.
    PixelShuffle => pixel_shuffle

    /// Moves height and width into channels. Like `torch.nn.PixelUnshuffle`.
    PixelUnshuffle => pixel_unshuffle

    /// Divides the channels into this many groups and interleaves them. Like `torch.nn.ChannelShuffle`.
    ChannelShuffle => channel_shuffle
}

/// Splits a dimension into several; a view. Like `torch.nn.Unflatten`.
#[derive(Clone, Debug)]
pub struct Unflatten {
    label: LabelId,
    dim: isize,
    sizes: Vec<isize>,
}

impl Unflatten {
    /// Makes the layer; one of the sizes may be -1.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn new(scope: &Scope, dim: isize, sizes: &[isize]) -> Result<Unflatten> {
        Ok(Unflatten { label: scope.label(), dim, sizes: sizes.to_vec() })
    }
}

impl Module for Unflatten {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.unflatten(self.dim, self.sizes.as_slice())
    }
}
