//! U-Net: names, shapes and initial values of the widely used [milesial/Pytorch-UNet](https://github.com/milesial/Pytorch-UNet),
//! both with bilinear upsampling (`bilinear=True`) and with learned upsampling (`bilinear=False`).

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Error, InterpolateMode, PadMode, Result, Tensor};

use crate::members;
use crate::nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, ConvTranspose2dConfig, MaxPool2d, Module, Scope, Upsample,
};

/// The configuration of a U-Net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UNetConfig {
    /// Channels of an image.
    pub n_channels: usize,
    /// Channels of the output: one for each class.
    pub n_classes: usize,
    /// Channels at full resolution; each of the four halvings doubles them. 64 in the published model.
    pub width: usize,
    /// Whether to upsample by bilinear interpolation instead of transposed convolution.
    pub bilinear: bool,
}

impl UNetConfig {
    /// The published sizes, with transposed convolution: 31.0 million parameters for three channels and two classes.
    pub fn new(n_channels: usize, n_classes: usize) -> UNetConfig {
        UNetConfig { n_channels, n_classes, width: 64, bilinear: false }
    }
}

/// A U-Net for images `[batch, channels, height, width]`, which computes a logit for each pixel and class.
///
/// ```
/// use plimsoll::models::{UNet, UNetConfig};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{DType, Device, SimConfig, Tensor};
/// // On a device that has no memory to fill.
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = UNet::new(&Scope::new(&gpu, 1), UNetConfig::new(3, 2))?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 31_037_698);
/// let images = Tensor::empty(&[1, 3, 572, 572], DType::F32, &gpu)?;
/// assert_eq!(model.forward(&images)?.shape(), [1, 2, 572, 572]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct UNet {
    config: UNetConfig,
    inc: DoubleConv,
    down1: Down,
    down2: Down,
    down3: Down,
    down4: Down,
    up1: Up,
    up2: Up,
    up3: Up,
    up4: Up,
    outc: OutConv,
}

impl UNet {
    /// A new model with PyTorch's default initial values.
    ///
    /// # Errors
    /// If a size is 0, the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, config: UNetConfig) -> Result<UNet> {
        let UNetConfig { n_channels, n_classes, width, bilinear } = config;
        if n_channels == 0 || n_classes == 0 || width < 2 {
            let message = format!("a size of 0, or a width below 2: {config:?}");
            return Err(Error::Argument { op: "unet", message });
        }
        // Transposed convolution halves the channels; interpolation does not.
        let factor = if bilinear { 2 } else { 1 };
        let down = |name: &str, inputs, outputs| Down::new(&scope.at(name), inputs, outputs);
        let up = |name: &str, inputs, outputs| Up::new(&scope.at(name), inputs, outputs, bilinear);
        Ok(UNet {
            inc: DoubleConv::new(&scope.at("inc"), n_channels, width, width)?,
            down1: down("down1", width, 2 * width)?,
            down2: down("down2", 2 * width, 4 * width)?,
            down3: down("down3", 4 * width, 8 * width)?,
            down4: down("down4", 8 * width, 16 * width / factor)?,
            up1: up("up1", 16 * width, 8 * width / factor)?,
            up2: up("up2", 8 * width, 4 * width / factor)?,
            up3: up("up3", 4 * width, 2 * width / factor)?,
            up4: up("up4", 2 * width, width)?,
            outc: OutConv { conv: Conv2d::new(&scope.at("outc").at("conv"), width, n_classes, 1)? },
            config,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &UNetConfig {
        &self.config
    }
}

impl Module for UNet {
    members!(inc, down1, down2, down3, down4, up1, up2, up3, up4, outc);

    /// The logits of each pixel: `[batch, n_classes, height, width]`.
    #[track_caller]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let x1 = self.inc.forward(images)?;
        let x2 = self.down1.forward(&x1)?;
        let x3 = self.down2.forward(&x2)?;
        let x4 = self.down3.forward(&x3)?;
        let x = self.down4.forward(&x4)?;
        let x = self.up1.join(&x, &x4)?;
        let x = self.up2.join(&x, &x3)?;
        let x = self.up3.join(&x, &x2)?;
        self.outc.conv.forward(&self.up4.join(&x, &x1)?)
    }
}

#[derive(Debug)]
struct OutConv {
    conv: Conv2d,
}

impl Module for OutConv {
    members!(conv);
}

/// Two 3 × 3 convolutions, each followed by batch normalization and ReLU.
#[derive(Debug)]
struct DoubleConv {
    double_conv: Convs,
}

/// The layers of [`DoubleConv`], named by their numbers; ReLU layers count.
#[derive(Debug)]
struct Convs {
    first: Conv2d,
    norm1: BatchNorm2d,
    second: Conv2d,
    norm2: BatchNorm2d,
}

impl Module for Convs {
    members!(first = "0", norm1 = "1", second = "3", norm2 = "4");
}

impl DoubleConv {
    fn new(scope: &Scope, inputs: usize, middle: usize, outputs: usize) -> Result<DoubleConv> {
        let scope = scope.at("double_conv");
        Ok(DoubleConv {
            double_conv: Convs {
                first: Conv2d::without_bias(&scope.at("0"), inputs, middle, 3)?.padding(1),
                norm1: BatchNorm2d::new(&scope.at("1"), middle)?,
                second: Conv2d::without_bias(&scope.at("3"), middle, outputs, 3)?.padding(1),
                norm2: BatchNorm2d::new(&scope.at("4"), outputs)?,
            },
        })
    }
}

impl Module for DoubleConv {
    members!(double_conv);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let layers = &self.double_conv;
        let x = layers.norm1.forward_relu(&layers.first.forward(x)?)?;
        layers.norm2.forward_relu(&layers.second.forward(&x)?)
    }
}

/// Halves the image's size, then applies two convolutions.
#[derive(Debug)]
struct Down {
    maxpool_conv: PoolConv,
}

#[derive(Debug)]
struct PoolConv {
    pool: MaxPool2d,
    conv: DoubleConv,
}

impl Module for PoolConv {
    members!(pool = "0", conv = "1");
}

impl Down {
    fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Down> {
        let scope = scope.at("maxpool_conv");
        let pool = MaxPool2d::new(&scope.at("0"), 2)?;
        let conv = DoubleConv::new(&scope.at("1"), inputs, outputs, outputs)?;
        Ok(Down { maxpool_conv: PoolConv { pool, conv } })
    }
}

impl Module for Down {
    members!(maxpool_conv);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.maxpool_conv.conv.forward(&self.maxpool_conv.pool.forward(x)?)
    }
}

/// How an image is upsampled to twice its size.
#[derive(Debug)]
enum Grow {
    Interpolate(Upsample),
    Convolve(ConvTranspose2d),
}

impl Module for Grow {
    fn members<'a>(&'a self, list: &mut crate::nn::Members<'a>) {
        if let Grow::Convolve(layer) = self {
            layer.members(list);
        }
    }

    fn members_mut<'a>(&'a mut self, list: &mut crate::nn::MembersMut<'a>) {
        if let Grow::Convolve(layer) = self {
            layer.members_mut(list);
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Grow::Interpolate(layer) => layer.forward(x),
            Grow::Convolve(layer) => layer.forward(x),
        }
    }
}

/// Doubles the image's size, concatenates the image of that size from the downward path, then applies two convolutions.
#[derive(Debug)]
struct Up {
    up: Grow,
    conv: DoubleConv,
}

impl Module for Up {
    members!(up, conv);
}

impl Up {
    fn new(scope: &Scope, inputs: usize, outputs: usize, bilinear: bool) -> Result<Up> {
        let (up, conv) = (scope.at("up"), scope.at("conv"));
        if bilinear {
            let mode = InterpolateMode::Linear { align_corners: true };
            let up = Grow::Interpolate(Upsample::scale(&up, 2.0)?.mode(mode));
            return Ok(Up { up, conv: DoubleConv::new(&conv, inputs, inputs / 2, outputs)? });
        }
        let config = ConvTranspose2dConfig::new(2).stride(2);
        let up = Grow::Convolve(ConvTranspose2d::with(&up, inputs, inputs / 2, config)?);
        Ok(Up { up, conv: DoubleConv::new(&conv, inputs, outputs, outputs)? })
    }

    fn join(&self, x: &Tensor, beside: &Tensor) -> Result<Tensor> {
        let mut x = self.up.forward(x)?;
        let missing = |dim: usize| (beside.shape()[dim] - x.shape()[dim]) as isize;
        let (dy, dx) = (missing(2), missing(3));
        if (dy, dx) != (0, 0) {
            // Halving rounds down, so the upsampled image may be too small: pad it with zeros.
            x = x.pad(&[dx / 2, dx - dx / 2, dy / 2, dy - dy / 2], PadMode::Constant(0.0))?;
        }
        self.conv.forward(&Tensor::cat(&[beside, &x], 1)?)
    }
}
