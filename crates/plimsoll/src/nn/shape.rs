//! Layers that change only the shape or the order of elements, or nothing.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Module, Scope};

/// All dimensions but the first as one; a view. As `torch.nn.Flatten`.
#[derive(Clone, Debug)]
pub struct Flatten {
    label: LabelId,
    start: isize,
    end: isize,
}

impl Flatten {
    /// The layer, from dimension 1 to the last.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope) -> Result<Flatten> {
        Ok(Flatten { label: scope.label(), start: 1, end: -1 })
    }

    /// The same layer for these dimensions, the last included; negative ones count from the end.
    pub fn dims(mut self, start: isize, end: isize) -> Flatten {
        (self.start, self.end) = (start, end);
        self
    }
}

impl Module for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.flatten(self.start, self.end)
    }
}

/// Its input, unchanged. As `torch.nn.Identity`: takes the place of a layer that is left out.
#[derive(Clone, Debug)]
pub struct Identity;

impl Identity {
    /// The layer; it has nothing to configure.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(_: &Scope) -> Result<Identity> {
        Ok(Identity)
    }
}

impl Module for Identity {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}

/// Layers that call a method with one number.
macro_rules! rearranging {
    ($($(#[$doc:meta])* $layer:ident => $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            label: LabelId,
            by: usize,
        }

        impl $layer {
            /// The layer with its number.
            ///
            /// # Errors
            /// None today; a `Result` like every layer's, so that all are built alike.
            pub fn new(scope: &Scope, by: usize) -> Result<$layer> {
                Ok($layer { label: scope.label(), by })
            }
        }

        impl Module for $layer {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let _owner = Span::layer(self.label);
                input.$method(self.by)
            }
        }
    )*};
}

rearranging! {
    /// Channels that become places. As `torch.nn.PixelShuffle`.
    PixelShuffle => pixel_shuffle

    /// Places that become channels. As `torch.nn.PixelUnshuffle`.
    PixelUnshuffle => pixel_unshuffle

    /// Channels dealt from this many groups in turn. As `torch.nn.ChannelShuffle`.
    ChannelShuffle => channel_shuffle
}

/// A dimension as several; a view. As `torch.nn.Unflatten`.
#[derive(Clone, Debug)]
pub struct Unflatten {
    label: LabelId,
    dim: isize,
    sizes: Vec<isize>,
}

impl Unflatten {
    /// The layer; one of the sizes may be -1.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope, dim: isize, sizes: &[isize]) -> Result<Unflatten> {
        Ok(Unflatten { label: scope.label(), dim, sizes: sizes.to_vec() })
    }
}

impl Module for Unflatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.unflatten(self.dim, self.sizes.as_slice())
    }
}
