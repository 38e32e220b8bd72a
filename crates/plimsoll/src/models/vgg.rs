//! VGG: the names, shapes and initial values of torchvision's `vgg11` to `vgg19`, with and without batch normalization.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Error, Result, Tensor};

use crate::members;
use crate::nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Dropout, Init, Linear, MaxPool2d, Module, ReLU, Scope, Sequential,
};

/// The configuration of a VGG.
#[derive(Clone, Debug, PartialEq)]
pub struct VggConfig {
    /// Channels of the convolutions of each stage; a stage ends with max pooling, which halves the image.
    pub stages: Vec<Vec<usize>>,
    /// Whether each convolution is followed by batch normalization.
    pub batch_norm: bool,
    /// Channels of an image.
    pub in_channels: usize,
    /// Height and width to which features are pooled before the classifier. 7 in torchvision.
    pub pooled: usize,
    /// Width of the classifier's two hidden layers. 4096 in torchvision.
    pub hidden: usize,
    /// Number of classes.
    pub num_classes: usize,
    /// Probability of dropping an element of a hidden layer.
    pub dropout: f64,
}

impl VggConfig {
    /// A configuration with this many convolutions in each of the five stages.
    fn sized(counts: [usize; 5]) -> VggConfig {
        let stages = counts.iter().zip([64, 128, 256, 512, 512]).map(|(&n, width)| vec![width; n]).collect();
        VggConfig {
            stages,
            batch_norm: false,
            in_channels: 3,
            pooled: 7,
            hidden: 4096,
            num_classes: 1000,
            dropout: 0.5,
        }
    }

    /// `vgg11`: 132.9 million parameters.
    pub fn vgg11() -> VggConfig {
        VggConfig::sized([1, 1, 2, 2, 2])
    }

    /// `vgg13`: 133.0 million parameters.
    pub fn vgg13() -> VggConfig {
        VggConfig::sized([2, 2, 2, 2, 2])
    }

    /// `vgg16`: 138.4 million parameters.
    pub fn vgg16() -> VggConfig {
        VggConfig::sized([2, 2, 3, 3, 3])
    }

    /// `vgg19`: 143.7 million parameters.
    pub fn vgg19() -> VggConfig {
        VggConfig::sized([2, 2, 4, 4, 4])
    }

    /// The same configuration with batch normalization: `vgg16_bn` and the others.
    #[must_use]
    pub fn with_batch_norm(self) -> VggConfig {
        VggConfig { batch_norm: true, ..self }
    }
}

/// A VGG for images `[batch, channels, height, width]`.
///
/// ```
/// use plimsoll::models::{Vgg, VggConfig};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// // On a device that has no memory to fill.
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = Vgg::new(&Scope::new(&gpu, 1), VggConfig::vgg16())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 138_357_544);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Vgg {
    config: VggConfig,
    features: Features,
    avgpool: AdaptiveAvgPool2d,
    classifier: Sequential,
}

impl Vgg {
    /// A new model with torchvision's initial values.
    ///
    /// # Errors
    /// If a size is 0, a probability is outside 0 to 1, the path is already in use ([`Scope::parameter`]), or memory
    /// runs out.
    pub fn new(scope: &Scope, config: VggConfig) -> Result<Vgg> {
        let sizes = [config.in_channels, config.pooled, config.hidden, config.num_classes];
        let widths = || config.stages.iter().flatten();
        if sizes.contains(&0) || widths().any(|&width| width == 0) || widths().next().is_none() {
            let message = format!("a size of 0: {config:?}");
            return Err(Error::Argument { op: "vgg", message });
        }
        let last = widths().last().copied().unwrap_or(0);
        let flat = last * config.pooled * config.pooled;
        let (hidden, dropout) = (config.hidden, config.dropout);
        let classifier = Sequential::new(&scope.at("classifier"))
            .push(|scope| linear(scope, flat, hidden))?
            .push(ReLU::new)?
            .push(|scope| Dropout::new(scope, dropout))?
            .push(|scope| linear(scope, hidden, hidden))?
            .push(ReLU::new)?
            .push(|scope| Dropout::new(scope, dropout))?
            .push(|scope| linear(scope, hidden, config.num_classes))?;
        Ok(Vgg {
            features: Features::new(&scope.at("features"), &config)?,
            avgpool: AdaptiveAvgPool2d::new(&scope.at("avgpool"), config.pooled)?,
            classifier,
            config,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &VggConfig {
        &self.config
    }
}

impl Module for Vgg {
    members!(features, avgpool, classifier);

    /// The logits of images: `[batch, num_classes]`.
    #[track_caller]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let pooled = self.avgpool.forward(&self.features.forward(images)?)?;
        self.classifier.forward(&pooled.flatten(1, -1)?)
    }
}

/// A convolution of 3 × 3, its normalization if there is one, and ReLU.
struct Unit {
    /// Its number in torchvision's list of layers.
    number: usize,
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
}

/// The convolutions by stage; each stage ends with max pooling. Layer names count all layers, including those without parameters.
struct Features {
    stages: Vec<(Vec<Unit>, MaxPool2d)>,
}

impl Features {
    fn new(scope: &Scope, config: &VggConfig) -> Result<Features> {
        let (mut number, mut inputs) = (0, config.in_channels);
        let mut stages = Vec::new();
        for widths in &config.stages {
            let mut units = Vec::new();
            for &outputs in widths {
                let norm = || BatchNorm2d::new(&scope.at(&(number + 1).to_string()), outputs);
                let norm = config.batch_norm.then(norm).transpose()?;
                let conv = convolution(&scope.at(&number.to_string()), inputs, outputs)?;
                units.push(Unit { number, conv, norm });
                number += if config.batch_norm { 3 } else { 2 };
                inputs = outputs;
            }
            stages.push((units, MaxPool2d::new(&scope.at(&number.to_string()), 2)?));
            number += 1;
        }
        Ok(Features { stages })
    }
}

impl Module for Features {
    fn members<'a>(&'a self, list: &mut crate::nn::Members<'a>) {
        for unit in self.stages.iter().flat_map(|(units, _)| units) {
            list.add(unit.number.to_string(), &unit.conv);
            list.add((unit.number + 1).to_string(), &unit.norm);
        }
    }

    fn members_mut<'a>(&'a mut self, list: &mut crate::nn::MembersMut<'a>) {
        for unit in self.stages.iter_mut().flat_map(|(units, _)| units) {
            list.add(unit.number.to_string(), &mut unit.conv);
            list.add((unit.number + 1).to_string(), &mut unit.norm);
        }
    }

    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = images.clone();
        for (units, pool) in &self.stages {
            for unit in units {
                x = unit.conv.forward(&x)?;
                x = unit.norm.as_ref().map_or_else(|| x.relu(), |norm| norm.forward_relu(&x))?;
            }
            x = pool.forward(&x)?;
        }
        Ok(x)
    }
}

/// A convolution with torchvision's initial values: `kaiming_normal_(mode="fan_out", nonlinearity="relu")`, and a bias of 0.
fn convolution(scope: &Scope, inputs: usize, outputs: usize) -> Result<Conv2d> {
    let layer = Conv2d::new(scope, inputs, outputs, 3)?.padding(1);
    scope.redraw("weight", layer.weight(), Init::Normal((2.0 / (outputs * 9) as f64).sqrt()))?;
    layer.bias().map_or(Ok(()), |bias| scope.redraw("bias", bias, Init::Zeros))?;
    Ok(layer)
}

/// A fully connected layer with torchvision's initial values: `normal_(0, 0.01)`, and a bias of 0.
fn linear(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
    let layer = Linear::new(scope, inputs, outputs)?;
    scope.redraw("weight", layer.weight(), Init::Normal(0.01))?;
    layer.bias().map_or(Ok(()), |bias| scope.redraw("bias", bias, Init::Zeros))?;
    Ok(layer)
}
