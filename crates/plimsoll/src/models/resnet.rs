//! ResNet, with the names, shapes and initial values of torchvision's `resnet18` to `resnet152`, wide ResNets and
//! ResNeXts.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::checkpoint::{Checkpointer, Step, recompute_output};
use plimsoll_tensor::{Error, Result, Tensor};

use crate::members;
use crate::nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Conv2dConfig, Init, Linear, MaxPool2d, Module, ModuleList, Scope,
    Slot,
};

/// The kind of a residual block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResNetBlock {
    /// Two 3 × 3 convolutions.
    Basic,
    /// A 1 × 1, a 3 × 3 and a 1 × 1 convolution; the last has four times as many channels as the others.
    Bottleneck,
}

impl ResNetBlock {
    /// The ratio of a block's output channels to its width.
    fn expansion(self) -> usize {
        match self {
            ResNetBlock::Basic => 1,
            ResNetBlock::Bottleneck => 4,
        }
    }
}

/// The configuration of a ResNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResNetConfig {
    /// The kind of blocks.
    pub block: ResNetBlock,
    /// Number of blocks in each of the four stages.
    pub layers: [usize; 4],
    /// Channels after the first convolution; each stage after the first is twice as wide as the one before. 64 in torchvision.
    pub width: usize,
    /// Groups of the 3 × 3 convolutions of bottlenecks: 1, except in ResNeXt.
    pub groups: usize,
    /// Channels of each group per 64 channels of a stage's width: 64 in a plain ResNet.
    pub width_per_group: usize,
    /// Channels of an image.
    pub in_channels: usize,
    /// Number of classes.
    pub num_classes: usize,
}

impl ResNetConfig {
    fn sized(block: ResNetBlock, layers: [usize; 4]) -> ResNetConfig {
        ResNetConfig {
            block,
            layers,
            width: 64,
            groups: 1,
            width_per_group: 64,
            in_channels: 3,
            num_classes: 1000,
        }
    }

    /// `resnet18`: 11.7 million parameters.
    pub fn resnet18() -> ResNetConfig {
        ResNetConfig::sized(ResNetBlock::Basic, [2, 2, 2, 2])
    }

    /// `resnet34`: 21.8 million parameters.
    pub fn resnet34() -> ResNetConfig {
        ResNetConfig::sized(ResNetBlock::Basic, [3, 4, 6, 3])
    }

    /// `resnet50`: 25.6 million parameters.
    pub fn resnet50() -> ResNetConfig {
        ResNetConfig::sized(ResNetBlock::Bottleneck, [3, 4, 6, 3])
    }

    /// `resnet101`: 44.5 million parameters.
    pub fn resnet101() -> ResNetConfig {
        ResNetConfig::sized(ResNetBlock::Bottleneck, [3, 4, 23, 3])
    }

    /// `resnet152`: 60.2 million parameters.
    pub fn resnet152() -> ResNetConfig {
        ResNetConfig::sized(ResNetBlock::Bottleneck, [3, 8, 36, 3])
    }

    /// `wide_resnet50_2`: 68.9 million parameters.
    pub fn wide_resnet50_2() -> ResNetConfig {
        ResNetConfig { width_per_group: 128, ..ResNetConfig::resnet50() }
    }

    /// `wide_resnet101_2`: 126.9 million parameters.
    pub fn wide_resnet101_2() -> ResNetConfig {
        ResNetConfig { width_per_group: 128, ..ResNetConfig::resnet101() }
    }

    /// `resnext50_32x4d`: 25.0 million parameters.
    pub fn resnext50_32x4d() -> ResNetConfig {
        ResNetConfig { groups: 32, width_per_group: 4, ..ResNetConfig::resnet50() }
    }

    /// `resnext101_32x8d`: 88.8 million parameters.
    pub fn resnext101_32x8d() -> ResNetConfig {
        ResNetConfig { groups: 32, width_per_group: 8, ..ResNetConfig::resnet101() }
    }

    /// `resnext101_64x4d`: 83.5 million parameters.
    pub fn resnext101_64x4d() -> ResNetConfig {
        ResNetConfig { groups: 64, width_per_group: 4, ..ResNetConfig::resnet101() }
    }

    /// Inner channels of a bottleneck, in a stage of this width.
    fn inner_width(&self, width: usize) -> usize {
        width * self.width_per_group / 64 * self.groups
    }
}

/// A ResNet for images `[batch, channels, height, width]`. The first convolution, the blocks and the last layer are in slots
/// ([`Slot`]): they can have hooks, and other layers can take their place.
///
/// ```
/// use plimsoll::models::{ResNet, ResNetConfig};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// // On a device that has no memory to fill.
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = ResNet::new(&Scope::new(&gpu, 1), ResNetConfig::resnet50())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 25_557_032);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct ResNet {
    config: ResNetConfig,
    conv1: Slot<Conv2d>,
    bn1: BatchNorm2d,
    maxpool: MaxPool2d,
    layer1: ModuleList<Slot<Block>>,
    layer2: ModuleList<Slot<Block>>,
    layer3: ModuleList<Slot<Block>>,
    layer4: ModuleList<Slot<Block>>,
    avgpool: AdaptiveAvgPool2d,
    fc: Slot<Linear>,
    checkpointer: Option<Checkpointer>,
}

impl ResNet {
    /// A new model with torchvision's initial values.
    ///
    /// # Errors
    /// If a size is 0, the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, config: ResNetConfig) -> Result<ResNet> {
        let fail = |message: String| Err(Error::Argument { op: "resnet", message });
        let sizes = [config.width, config.in_channels, config.num_classes, config.groups];
        if sizes.contains(&0) || config.layers.contains(&0) || config.inner_width(config.width) == 0 {
            return fail(format!("a size of 0: {config:?}"));
        }
        if config.block == ResNetBlock::Basic && (config.groups, config.width_per_group) != (1, 64) {
            return fail(format!(
                "only bottleneck blocks can have groups; a basic block has 1 group of width 64: {config:?}"
            ));
        }
        let width = config.width;
        let stage = |i: usize| {
            let inputs = if i == 0 { width } else { (width << (i - 1)) * config.block.expansion() };
            Block::stage(&scope.at(&format!("layer{}", i + 1)), &config, i, inputs)
        };
        Ok(ResNet {
            conv1: convolution(&scope.at("conv1"), config.in_channels, width, 7)?.stride(2).padding(3).into(),
            bn1: BatchNorm2d::new(&scope.at("bn1"), width)?,
            maxpool: MaxPool2d::new(&scope.at("maxpool"), 3)?.stride(2).padding(1),
            layer1: stage(0)?,
            layer2: stage(1)?,
            layer3: stage(2)?,
            layer4: stage(3)?,
            avgpool: AdaptiveAvgPool2d::new(&scope.at("avgpool"), 1)?,
            fc: Linear::new(&scope.at("fc"), (width << 3) * config.block.expansion(), config.num_classes)?
                .into(),
            config,
            checkpointer: None,
        })
    }

    /// Returns the model with this option on: for each normalization and ReLU inside its blocks, it keeps one tensor
    /// instead of two, and the backward pass recomputes the other.
    #[must_use]
    pub fn recompute_activations(mut self) -> ResNet {
        self.blocks_mut(1).for_each(|block| block.recomputes = true);
        self
    }

    /// Returns the model with this option on: it does not keep the output of every second block, starting with the
    /// first of each stage. The backward pass recomputes it from the previous block's output and from tensors of the
    /// block that are kept anyway.
    #[must_use]
    pub fn recompute_outputs(mut self) -> ResNet {
        self.blocks_mut(2).for_each(|block| block.recomputes_output = true);
        self
    }

    /// Returns the model with this option on: it does not keep the output of each bottleneck's last convolution, which
    /// is the widest of the three. The backward pass recomputes it, which takes a quarter of the block's floating-point
    /// operations. Combine this with [`ResNet::recompute_activations`] and [`ResNet::recompute_outputs`].
    #[must_use]
    pub fn recompute_expansions(mut self) -> ResNet {
        self.blocks_mut(1).for_each(|block| block.recomputes_expansion = true);
        self
    }

    /// From now on, the blocks, and the layers ahead of them, are checkpointed so that the tensors that they keep for the backward pass fit within a
    /// budget; with `None`, they keep everything. The first batch of each shape runs through the blocks once more, to
    /// measure them. `Checkpointer::new(budget).with_offload(bytes)` may also offload what blocks keep.
    ///
    /// ```
    /// use plimsoll::checkpoint::Budget;
    /// use plimsoll::models::{ResNet, ResNetConfig};
    /// use plimsoll::nn::{Module, Scope};
    /// use plimsoll::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(80 << 30));
    /// let mut model = ResNet::new(&Scope::new(&device, 1), ResNetConfig::resnet50())?;
    /// model.checkpoint_within(Budget::Bytes(400 << 20));
    /// let images = Tensor::zeros(&[16, 3, 224, 224], &device)?;
    /// let labels = Tensor::from_slice(&[7i64; 16], &[16], &device)?;
    /// model.forward(&images)?.cross_entropy(&labels)?.backward()?;
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn checkpoint_within(&mut self, budget: impl Into<Option<Checkpointer>>) {
        self.checkpointer = budget.into();
    }

    /// The model's own blocks: of each stage, the first and every `step`th after it.
    fn blocks_mut(&mut self, step: usize) -> impl Iterator<Item = &mut Block> {
        let stages = [&mut self.layer1, &mut self.layer2, &mut self.layer3, &mut self.layer4];
        stages.into_iter().flat_map(move |stage| stage.iter_mut().step_by(step)).filter_map(Slot::own_mut)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ResNetConfig {
        &self.config
    }

    /// The output of the last stage: `[batch, channels, height / 32, width / 32]`.
    ///
    /// # Errors
    /// If the images are too small or have the wrong number of channels, or memory runs out.
    pub fn features(&self, images: &Tensor) -> Result<Tensor> {
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        match &self.checkpointer {
            None => {
                let x = stem(&self.conv1, &self.bn1, &self.maxpool, images)?;
                stages.into_iter().flat_map(|stage| stage.iter()).try_fold(x, |x, block| block.forward(&x))
            }
            Some(checkpointer) => {
                let layers = (self.conv1.clone(), self.bn1.clone(), self.maxpool.clone());
                let first = Step::new(move |x: &Tensor| stem(&layers.0, &layers.1, &layers.2, x));
                let blocks = stages.into_iter().flat_map(|stage| stage.steps());
                let steps: Vec<Step> = std::iter::once(first).chain(blocks).collect();
                checkpointer.forward(&steps, images)
            }
        }
    }
}

impl Module for ResNet {
    members!(conv1, bn1, maxpool, layer1, layer2, layer3, layer4, avgpool, fc);

    /// The logits of images: `[batch, num_classes]`.
    #[track_caller]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.fc.forward(&self.avgpool.forward(&self.features(images)?)?.flatten(1, -1)?)
    }
}

/// The layers ahead of the blocks.
fn stem(conv1: &Slot<Conv2d>, bn1: &BatchNorm2d, maxpool: &MaxPool2d, images: &Tensor) -> Result<Tensor> {
    maxpool.forward(&bn1.forward_relu(&conv1.forward(images)?)?)
}

/// A convolution without a bias, with torchvision's initial values: `kaiming_normal_(mode="fan_out", nonlinearity="relu")`.
fn convolution(scope: &Scope, inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d> {
    started(scope, Conv2d::without_bias(scope, inputs, outputs, kernel)?, outputs, kernel)
}

/// A grouped 3 × 3 convolution with equally many input and output channels.
fn grouped(scope: &Scope, channels: usize, groups: usize) -> Result<Conv2d> {
    let config = Conv2dConfig::new(3).groups(groups).without_bias();
    started(scope, Conv2d::with(scope, channels, channels, config)?, channels, 3)
}

fn started(scope: &Scope, layer: Conv2d, outputs: usize, kernel: usize) -> Result<Conv2d> {
    let fan_out = (outputs * kernel * kernel) as f64;
    scope.redraw("weight", layer.weight(), Init::Normal((2.0 / fan_out).sqrt()))?;
    Ok(layer)
}

/// A residual block: a few convolutions whose output is added to the input. Clones share parameters.
#[derive(Clone, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm2d>,
    /// Resizes the input to the output's size.
    downsample: Option<Downsample>,
    /// Whether tensors between two convolutions are recomputed in the backward pass.
    recomputes: bool,
    /// Whether the output is recomputed in the backward pass.
    recomputes_output: bool,
    /// Whether the output of the third convolution is recomputed in the backward pass.
    recomputes_expansion: bool,
}

impl Block {
    /// The blocks of a stage; the first takes `inputs` channels and, except in the first stage, halves the image.
    fn stage(
        scope: &Scope,
        config: &ResNetConfig,
        stage: usize,
        inputs: usize,
    ) -> Result<ModuleList<Slot<Block>>> {
        let width = config.width << stage;
        let block = |i: usize| {
            let (stride, inputs) = match i {
                0 => (if stage == 0 { 1 } else { 2 }, inputs),
                _ => (1, width * config.block.expansion()),
            };
            Block::new(&scope.at(&i.to_string()), config, [inputs, width], stride).map(Slot::from)
        };
        (0..config.layers[stage]).map(block).collect::<Result<Vec<_>>>().map(ModuleList::from)
    }

    fn new(
        scope: &Scope,
        config: &ResNetConfig,
        [inputs, width]: [usize; 2],
        stride: usize,
    ) -> Result<Block> {
        let (kind, outputs) = (config.block, width * config.block.expansion());
        let inner = if kind == ResNetBlock::Bottleneck { config.inner_width(width) } else { width };
        let norm = |name: &str, channels| BatchNorm2d::new(&scope.at(name), channels);
        let is_bottleneck = kind == ResNetBlock::Bottleneck;
        let (conv1, conv2) = match kind {
            ResNetBlock::Basic => (
                convolution(&scope.at("conv1"), inputs, width, 3)?.stride(stride).padding(1),
                convolution(&scope.at("conv2"), width, width, 3)?.padding(1),
            ),
            ResNetBlock::Bottleneck => (
                convolution(&scope.at("conv1"), inputs, inner, 1)?,
                grouped(&scope.at("conv2"), inner, config.groups)?.stride(stride).padding(1),
            ),
        };
        let conv3 = || convolution(&scope.at("conv3"), inner, outputs, 1);
        let downsample = || Downsample::new(&scope.at("downsample"), inputs, outputs, stride);
        Ok(Block {
            conv1,
            bn1: norm("bn1", inner)?,
            conv2,
            bn2: norm("bn2", inner)?,
            conv3: is_bottleneck.then(conv3).transpose()?,
            bn3: is_bottleneck.then(|| norm("bn3", outputs)).transpose()?,
            downsample: (stride != 1 || inputs != outputs).then(downsample).transpose()?,
            recomputes: false,
            recomputes_output: false,
            recomputes_expansion: false,
        })
    }
}

impl Block {
    /// A normalization and ReLU between two convolutions.
    fn between(&self, norm: &BatchNorm2d, x: &Tensor) -> Result<Tensor> {
        if self.recomputes { norm.forward_relu_recomputed(x) } else { norm.forward_relu(x) }
    }
}

impl Module for Block {
    members!(conv1, bn1, conv2, bn2, conv3, bn3, downsample);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (mut y, mut last) = (self.conv1.forward(x)?, &self.bn2);
        y = self.conv2.forward(&self.between(&self.bn1, &y)?)?;
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            let x = self.between(&self.bn2, &y)?;
            y = match self.recomputes_expansion {
                false => conv3.forward(&x)?,
                true => {
                    let conv3 = conv3.clone();
                    recompute_output(move |x| conv3.forward(&x[0]), &[&x])?
                }
            };
            last = bn3;
        }
        let recomputes = self.recomputes_output;
        let residual = match &self.downsample {
            None => x.clone(),
            Some(downsample) if recomputes => downsample.forward_recomputed(x)?,
            Some(downsample) => downsample.forward(x)?,
        };
        match recomputes {
            true => last.forward_add_relu_recomputed(&y, &residual),
            false => last.forward_add_relu(&y, &residual),
        }
    }
}

/// A 1 × 1 convolution and its normalization.
#[derive(Clone, Debug)]
struct Downsample {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Downsample {
    fn new(scope: &Scope, inputs: usize, outputs: usize, stride: usize) -> Result<Downsample> {
        Ok(Downsample {
            conv: convolution(&scope.at("0"), inputs, outputs, 1)?.stride(stride),
            norm: BatchNorm2d::new(&scope.at("1"), outputs)?,
        })
    }
}

impl Downsample {
    /// The forward pass with an output that the backward pass recomputes.
    fn forward_recomputed(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward_recomputed(&self.conv.forward(x)?)
    }
}

impl Module for Downsample {
    members!(conv = "0", norm = "1");

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }
}
