//! The options of pooling. `MaxPoolOptions` also describes the windows of the other kinds of pooling.

/// Options of max pooling, with one value for each dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolOptions<const D: usize> {
    /// Size of the window.
    pub kernel: [usize; D],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; D],
    /// Elements added on both sides, which are never the maximum; at most half the window.
    pub padding: [usize; D],
    /// Distance between neighbouring elements of a window; at least 1.
    pub dilation: [usize; D],
    /// Whether elements left over at the end also get a window.
    pub ceil_mode: bool,
}

/// For `[batch, channels, length]`.
pub type MaxPool1dOptions = MaxPoolOptions<1>;
/// For `[batch, channels, h, w]`.
pub type MaxPool2dOptions = MaxPoolOptions<2>;
/// For `[batch, channels, d, h, w]`.
pub type MaxPool3dOptions = MaxPoolOptions<3>;

impl<const D: usize> MaxPoolOptions<D> {
    /// Adjacent windows without padding: `nn.MaxPool2d(kernel)`.
    pub fn new(kernel: [usize; D]) -> Self {
        MaxPoolOptions { kernel, stride: kernel, padding: [0; D], dilation: [1; D], ceil_mode: false }
    }

    /// [`MaxPoolOptions::new`] with the same size in each dimension.
    pub fn square(size: usize) -> Self {
        MaxPoolOptions::new([size; D])
    }

    /// The same windows for images with three dimensions: the missing dimensions come first.
    pub(super) fn in_three(self) -> MaxPoolOptions<3> {
        let MaxPoolOptions { kernel, stride, padding, dilation, ceil_mode } = self;
        MaxPoolOptions {
            kernel: three(kernel, 1),
            stride: three(stride, 1),
            padding: three(padding, 0),
            dilation: three(dilation, 1),
            ceil_mode,
        }
    }
}

/// Options of average pooling, with one value for each dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolOptions<const D: usize> {
    /// Size of the window.
    pub kernel: [usize; D],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; D],
    /// Zeros on both sides of the image; at most half the window.
    pub padding: [usize; D],
    /// Whether elements left over at the end also get a window.
    pub ceil_mode: bool,
    /// Whether the mean counts the padding.
    pub count_include_pad: bool,
    /// The divisor of the sums, regardless of the window sizes.
    pub divisor_override: Option<usize>,
}

/// For `[batch, channels, length]`.
pub type AvgPool1dOptions = AvgPoolOptions<1>;
/// For `[batch, channels, h, w]`.
pub type AvgPool2dOptions = AvgPoolOptions<2>;
/// For `[batch, channels, d, h, w]`.
pub type AvgPool3dOptions = AvgPoolOptions<3>;

impl<const D: usize> AvgPoolOptions<D> {
    /// Adjacent windows without padding: `nn.AvgPool2d(kernel)`.
    pub fn new(kernel: [usize; D]) -> Self {
        AvgPoolOptions {
            kernel,
            stride: kernel,
            padding: [0; D],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }

    /// [`AvgPoolOptions::new`] with the same size in each dimension.
    pub fn square(size: usize) -> Self {
        AvgPoolOptions::new([size; D])
    }

    /// The options of the windows only.
    pub(super) fn windows(self) -> MaxPoolOptions<D> {
        let AvgPoolOptions { kernel, stride, padding, ceil_mode, .. } = self;
        MaxPoolOptions { stride, padding, ceil_mode, ..MaxPoolOptions::new(kernel) }
    }
}

/// Returns three values that end with these `D`; the missing leading ones are `other`.
pub(super) fn three<const D: usize>(values: [usize; D], other: usize) -> [usize; 3] {
    let mut all = [other; 3];
    all[3 - D..].copy_from_slice(&values);
    all
}
