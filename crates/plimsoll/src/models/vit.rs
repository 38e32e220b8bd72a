//! Vision transformers: the names, shapes and initial values of `torchvision`'s `vit_b_16` and its relatives.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::checkpoint::recompute_output;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Activation, CrossEntropyOptions, Error, Result, Tensor, autocast};

use crate::members;
use crate::nn::{
    Dropout, Init, LayerNorm, Linear, Members, MembersMut, Module, MultiheadAttention,
    MultiheadAttentionOptions, MultiheadOptions, Parameter, ResidualStream, Scope, Slot,
};

/// The configuration of a vision transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct VitConfig {
    /// Height and width of an image; must be a multiple of the patch size.
    pub image_size: usize,
    /// Height and width of a patch.
    pub patch_size: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Attention heads; must divide the width.
    pub num_heads: usize,
    /// Width of the residual stream.
    pub hidden_dim: usize,
    /// Hidden width of the MLP.
    pub mlp_dim: usize,
    /// Dropout probability of the embedding, inside the MLP, and of the outputs added to the residual stream.
    pub dropout: f64,
    /// Dropout probability of attention weights.
    pub attention_dropout: f64,
    /// Number of classes.
    pub num_classes: usize,
    /// The number of blocks, from the first on, whose MLP recomputes its first product in the backward pass instead of keeping
    /// it. [`layers_to_recompute`](super::layers_to_recompute) finds the number that a memory limit needs.
    pub recompute_mlp: usize,
}

impl VitConfig {
    fn sized(patch_size: usize, [num_layers, num_heads, hidden_dim, mlp_dim]: [usize; 4]) -> VitConfig {
        VitConfig {
            image_size: 224,
            patch_size,
            num_layers,
            num_heads,
            hidden_dim,
            mlp_dim,
            dropout: 0.0,
            attention_dropout: 0.0,
            num_classes: 1000,
            recompute_mlp: 0,
        }
    }

    /// `vit_b_16`: 87 million parameters.
    pub fn b_16() -> VitConfig {
        VitConfig::sized(16, [12, 12, 768, 3072])
    }

    /// `vit_b_32`: 88 million parameters.
    pub fn b_32() -> VitConfig {
        VitConfig::sized(32, [12, 12, 768, 3072])
    }

    /// `vit_l_16`: 304 million parameters.
    pub fn l_16() -> VitConfig {
        VitConfig::sized(16, [24, 16, 1024, 4096])
    }

    /// `vit_l_32`: 307 million parameters.
    pub fn l_32() -> VitConfig {
        VitConfig::sized(32, [24, 16, 1024, 4096])
    }

    /// `vit_h_14`: 632 million parameters.
    pub fn h_14() -> VitConfig {
        VitConfig::sized(14, [32, 16, 1280, 5120])
    }
}

/// A vision transformer that classifies images. Its blocks and its head are in slots ([`Slot`]): they can have hooks, and
/// other layers can take their place.
///
/// ```
/// use plimsoll::models::{Vit, VitConfig};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = Vit::new(&Scope::new(&gpu, 1), VitConfig::b_16())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 86_567_656);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct Vit {
    config: VitConfig,
    class_token: Parameter,
    conv_proj: Patches,
    encoder: Encoder,
    heads: Heads,
}

impl Vit {
    /// A new model with torchvision's initial values: the head is zero. The patch projection's weight is drawn from a normal
    /// distribution that is not truncated at two standard deviations.
    ///
    /// # Errors
    /// If the image is not a multiple of the patch, the width is not a multiple of the number of heads, the path is
    /// already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, config: VitConfig) -> Result<Vit> {
        if config.patch_size == 0 || !config.image_size.is_multiple_of(config.patch_size) {
            let message = format!(
                "an image of {} is not divisible into patches of {}",
                config.image_size, config.patch_size
            );
            return Err(Error::Argument { op: "vit", message });
        }
        let width = config.hidden_dim;
        let head = scope.at("heads").at("head");
        let weight = head.parameter("weight", &[config.num_classes, width], Init::Zeros)?;
        let bias = head.parameter("bias", &[config.num_classes], Init::Zeros)?;
        Ok(Vit {
            class_token: scope.parameter("class_token", &[1, 1, width], Init::Zeros)?,
            conv_proj: Patches::new(&scope.at("conv_proj"), &config)?,
            encoder: Encoder::new(&scope.at("encoder"), &config)?,
            heads: Heads { head: Linear::of(&head, weight, Some(bias)).into() },
            config,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &VitConfig {
        &self.config
    }

    /// The mean cross entropy of images with these classes, `int64 [batch]`.
    ///
    /// # Errors
    /// The same errors as [`Module::forward`], or if a class is out of range.
    #[track_caller]
    pub fn loss(&self, images: &Tensor, classes: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.forward(images)?.cross_entropy_with(classes, CrossEntropyOptions::default())
    }
}

impl Module for Vit {
    members!(class_token, conv_proj, encoder, heads);

    /// The logits of images `[batch, 3, image_size, image_size]`: `[batch, num_classes]`.
    #[track_caller]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let size = self.config.image_size;
        let &[batch, 3, height, width] = images.shape() else {
            let message = format!("images {:?}: needs [batch, 3, {size}, {size}]", images.shape());
            return Err(Error::Shape { op: "vit", message });
        };
        if [height, width] != [size; 2] {
            let message = format!("images of {height} × {width}: this model needs {size} × {size}");
            return Err(Error::Shape { op: "vit", message });
        }
        let tokens = self.conv_proj.forward(images)?;
        let class = self.class_token.expand(&[batch, 1, self.config.hidden_dim])?;
        let class = if class.dtype() == tokens.dtype() { class } else { class.to_dtype(tokens.dtype())? };
        let tokens = Tensor::cat(&[&class, &tokens], 1)?;
        self.heads.head.forward(&self.encoder.class_token_of(tokens)?)
    }
}

/// The projection of patches: a convolution whose windows do not overlap, computed as a single matrix product for all
/// patches.
#[derive(Debug)]
struct Patches {
    label: LabelId,
    weight: Parameter,
    bias: Parameter,
}

impl Patches {
    fn new(scope: &Scope, config: &VitConfig) -> Result<Patches> {
        let (patch, width) = (config.patch_size, config.hidden_dim);
        let init = Init::Normal((1.0 / (3 * patch * patch) as f64).sqrt());
        Ok(Patches {
            label: scope.label(),
            weight: scope.parameter("weight", &[width, 3, patch, patch], init)?,
            bias: scope.parameter("bias", &[width], Init::Zeros)?,
        })
    }
}

impl Module for Patches {
    members!(weight, bias);

    /// `[batch, patches, width]`.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let (patch, shape) = (self.weight.shape()[2], images.shape());
        let [rows, cols] = [shape[2] / patch, shape[3] / patch];
        let cut = autocast::lower(images)?.unflatten(3, &[cols, patch])?.unflatten(2, &[rows, patch])?;
        // Orders the elements of a patch like those of the filters, so that the filters need no copy.
        let (order, filters): ([isize; 6], _) = match self.weight.is_contiguous() {
            true => ([0, 2, 4, 1, 3, 5], self.weight.flatten(1, 3)?),
            false => ([0, 2, 4, 3, 5, 1], self.weight.permute(&[0, 2, 3, 1])?.flatten(1, 3)?),
        };
        let patches = cut.permute(&order)?.flatten(3, 5)?.flatten(1, 2)?;
        drop(cut);
        patches.linear(&filters, &self.bias)
    }
}

#[derive(Debug)]
struct Heads {
    head: Slot<Linear>,
}

impl Module for Heads {
    members!(head);
}

#[derive(Debug)]
struct Encoder {
    label: LabelId,
    pos_embedding: Parameter,
    dropout: Dropout,
    layers: Layers,
    ln: LayerNorm,
    recompute_mlp: usize,
}

impl Encoder {
    fn new(scope: &Scope, config: &VitConfig) -> Result<Encoder> {
        let side = config.image_size / config.patch_size;
        let shape = [1, side * side + 1, config.hidden_dim];
        let layers = scope.at("layers");
        let blocks =
            (0..config.num_layers).map(|i| Block::new(&layers.at(&Layers::name(i)), config).map(Slot::from));
        Ok(Encoder {
            label: scope.label(),
            pos_embedding: scope.parameter("pos_embedding", &shape, Init::Normal(0.02))?,
            dropout: Dropout::new(&scope.at("dropout"), config.dropout)?,
            layers: Layers(blocks.collect::<Result<_>>()?),
            ln: LayerNorm::new(&scope.at("ln"), config.hidden_dim)?.eps(1e-6),
            recompute_mlp: config.recompute_mlp,
        })
    }
}

impl Encoder {
    /// The normalized output of the blocks for the class token; no other token is read.
    fn class_token_of(&self, tokens: Tensor) -> Result<Tensor> {
        self.stream(tokens)?.select(1, 0)?.finish(&self.ln)
    }

    /// The residual stream after all blocks.
    fn stream(&self, tokens: Tensor) -> Result<ResidualStream> {
        let x = {
            let _owner = Span::layer(self.label);
            tokens.add(&self.pos_embedding)?
        };
        drop(tokens);
        let mut stream = ResidualStream::new(self.dropout.forward(&x)?, self.label);
        for (i, block) in self.layers.0.iter().enumerate() {
            match block.plain() {
                Some(block) => block.add_to(&mut stream, i < self.recompute_mlp)?,
                None => stream.replace(|x| block.forward(x))?,
            }
        }
        Ok(stream)
    }
}

impl Module for Encoder {
    members!(pos_embedding, dropout, layers, ln);

    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.stream(tokens.clone())?.finish(&self.ln)
    }
}

/// Blocks under torchvision's names.
#[derive(Debug)]
struct Layers(Vec<Slot<Block>>);

impl Layers {
    fn name(i: usize) -> String {
        format!("encoder_layer_{i}")
    }
}

impl Module for Layers {
    fn members<'a>(&'a self, list: &mut Members<'a>) {
        self.0.iter().enumerate().for_each(|(i, block)| list.add(Layers::name(i), block));
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        self.0.iter_mut().enumerate().for_each(|(i, block)| list.add(Layers::name(i), block));
    }
}

#[derive(Clone, Debug)]
struct Block {
    label: LabelId,
    ln_1: LayerNorm,
    self_attention: MultiheadAttention,
    dropout: Dropout,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(scope: &Scope, config: &VitConfig) -> Result<Block> {
        let width = config.hidden_dim;
        let options = MultiheadAttentionOptions {
            dropout: config.attention_dropout,
            batch_first: true,
            ..MultiheadAttentionOptions::default()
        };
        let norm = |name: &str| Ok(LayerNorm::new(&scope.at(name), width)?.eps(1e-6));
        Ok(Block {
            label: scope.label(),
            ln_1: norm("ln_1")?,
            self_attention: MultiheadAttention::new(
                &scope.at("self_attention"),
                width,
                config.num_heads,
                options,
            )?,
            dropout: Dropout::new(&scope.at("dropout"), config.dropout)?,
            ln_2: norm("ln_2")?,
            mlp: Mlp::new(&scope.at("mlp"), config)?,
        })
    }
}

impl Block {
    fn add_to(&self, stream: &mut ResidualStream, recompute_mlp: bool) -> Result<()> {
        let x = stream.normalized(&self.ln_1)?;
        let mixed = self.self_attention.forward(&x, &x, &x, MultiheadOptions::default())?.0;
        drop(x);
        stream.add_dropped(mixed, &self.dropout)?;
        let down = self.mlp.forward_of(stream.normalized(&self.ln_2)?, recompute_mlp)?;
        stream.add_dropped(down, &self.mlp.dropout)
    }
}

impl Module for Block {
    members!(ln_1, self_attention, dropout, ln_2, mlp);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut stream = ResidualStream::new(input.clone(), self.label);
        self.add_to(&mut stream, false)?;
        stream.into_sum()
    }
}

/// torchvision's `MLP`: of its layers, 0 and 3 have parameters.
#[derive(Clone, Debug)]
struct Mlp {
    up: Linear,
    inner_dropout: Dropout,
    down: Linear,
    dropout: Dropout,
}

impl Mlp {
    fn new(scope: &Scope, config: &VitConfig) -> Result<Mlp> {
        let linear = |name: &str, inputs: usize, outputs: usize| {
            let scope = scope.at(name);
            let weight =
                scope.parameter("weight", &[outputs, inputs], Init::xavier_uniform(inputs, outputs))?;
            Ok(Linear::of(&scope, weight, Some(scope.parameter("bias", &[outputs], Init::Normal(1e-6))?)))
        };
        Ok(Mlp {
            up: linear("0", config.hidden_dim, config.mlp_dim)?,
            inner_dropout: Dropout::new(&scope.at("2"), config.dropout)?,
            down: linear("3", config.mlp_dim, config.hidden_dim)?,
            dropout: Dropout::new(&scope.at("4"), config.dropout)?,
        })
    }

    /// Takes the normalized stream by value, so that it is dropped as soon as it has been read.
    fn forward_of(&self, x: Tensor, recompute: bool) -> Result<Tensor> {
        let up = match recompute {
            true => {
                let up = self.up.clone();
                recompute_output(move |x| up.forward(&x[0]), &[&x])?
            }
            false => self.up.forward(&x)?,
        };
        drop(x);
        if self.inner_dropout.is_dropping() {
            return self.down.forward(&self.inner_dropout.forward(&up.gelu()?)?);
        }
        let _owner = Span::layer(self.down.label());
        let bias = self.down.bias().map(|bias| &**bias);
        up.activation_linear(Activation::Gelu, self.down.weight(), bias)
    }
}

impl Module for Mlp {
    members!(up = "0", inner_dropout = "2", down = "3", dropout = "4");
}
