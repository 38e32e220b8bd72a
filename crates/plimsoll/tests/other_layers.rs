//! Compares layers with few or no parameters with PyTorch's: activations, embeddings, convolutions, pooling, normalization,
//! dropout. `fixtures/make_layers.py` makes `fixtures/layers.json`.

use plimsoll::Reduction;
use plimsoll::nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
    AdaptiveMaxPool3d, AlphaDropout, Approximate, AvgPool1d, AvgPool2d, AvgPool3d, BCELoss,
    BCEWithLogitsLoss, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormConfig, CELU, ChannelShuffle, Conv1d,
    Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvTranspose1d, ConvTranspose1dConfig,
    ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d, ConvTranspose3dConfig, CrossEntropyLoss,
    DecoderMasks, Dropout1d, Dropout2d, Dropout3d, ELU, Embedding, EmbeddingBag, EncoderMasks, GELU, GLU,
    GroupNorm, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, HuberLoss, InstanceNorm3d, KLDivLoss, L1Loss,
    LayerNorm, LeakyReLU, Linear, LogSigmoid, LogSoftmax, MSELoss, MaxPool1d, MaxPool2d, MaxPool3d,
    MaxUnpool1d, MaxUnpool2d, MaxUnpool3d, Mish, Module, MultiheadAttention, MultiheadAttentionOptions,
    MultiheadOptions, NLLLoss, Nonlinearity, Pad, PixelShuffle, PixelUnshuffle, RNNCell, ReLU, ReLU6,
    RmsNorm, SELU, SiLU, Sigmoid, SmoothL1Loss, Softmax, Softmin, Softplus, Softshrink, Softsign, Tanh,
    Tanhshrink, Threshold, TransformerDecoder, TransformerEncoderLayer, TransformerOptions, Upsample,
};
use plimsoll::{Activation, BagMode, DType, InterpolateMode, MaxPool2dOptions, PadMode, Result, Tensor};

use crate::layer_case::{check, device, recorded, scope, wave};

/// Checks a layer with one output and one input of this shape.
fn check_forward(case: &str, shape: &[usize], layer: Result<impl Module>) {
    check(case, layer.unwrap(), &[("x", shape)], |layer, x| Ok(vec![("y", layer.forward(&x[0])?)]));
}

/// The same for an input eight times as large, so that it reaches the ends of the curve.
fn check_activation(case: &str, shape: &[usize], layer: Result<impl Module>) {
    check(&format!("activation {case}"), layer.unwrap(), &[("x", shape)], |layer, x| {
        Ok(vec![("y", layer.forward(&x[0].mul_scalar(8.0)?)?)])
    });
}

#[test]
fn activations_agree_with_pytorchs() {
    let s = &scope();
    macro_rules! plain {
        ($($layer:ident)*) => { $(check_activation(stringify!($layer), &[2, 3, 4], $layer::new(s));)* };
    }
    plain!(ReLU Sigmoid Tanh SiLU Mish Hardswish Hardsigmoid Softplus LogSigmoid Softsign Tanhshrink SELU LeakyReLU ELU CELU);
    plain!(Hardshrink Softshrink Hardtanh ReLU6 GELU);
    let threshold = Threshold::new(s).map(|layer| layer.threshold(0.1).value(-2.0));
    check_activation("Threshold", &[2, 3, 4], threshold);
    let other = &[2, 4, 3];
    check_activation("GLU", other, GLU::new(s).map(|layer| layer.dim(1)));
    check_activation("Softmin", other, Softmin::new(s).map(|layer| layer.dim(1)));
    check_activation("Softmax", other, Softmax::new(s).map(|layer| layer.dim(1)));
    check_activation("LogSoftmax", other, LogSoftmax::new(s));
    check_activation("GELU tanh", other, GELU::new(s).map(|layer| layer.approximate(Approximate::Tanh)));
    check_activation("ELU options", other, ELU::new(s).map(|layer| layer.alpha(0.3)));
}

fn indices(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &device()).unwrap()
}

#[test]
fn embeddings_and_bags_agree_with_pytorchs() {
    for (case, row, values) in
        [("embedding", 1, [0i64, 1, 4, 1]), ("embedding, padding last", -1, [0, 1, 4, 0])]
    {
        let layer = Embedding::new(&scope(), 5, 3).unwrap().padding_idx(row);
        check(case, layer, &[], |layer, _| Ok(vec![("y", layer.forward(&indices(&values, &[2, 2]))?)]));
    }
    let (bag, starts) = (indices(&[1, 3, 3, 0, 4, 1], &[6]), indices(&[0, 2, 2, 5], &[4]));
    let layer = |mode| EmbeddingBag::new(&scope(), 5, 3, mode).unwrap();
    for (case, mode) in [("bag mean", BagMode::Mean), ("bag sum", BagMode::Sum), ("bag max", BagMode::Max)] {
        check(case, layer(mode), &[], |layer, _| Ok(vec![("y", layer.forward(&bag, Some(&starts), None)?)]));
    }
    check("bag of rows", layer(BagMode::Mean), &[], |layer, _| {
        Ok(vec![("y", Module::forward(layer, &bag.reshape(&[3, 2])?)?)])
    });
    check("bag weighted", layer(BagMode::Sum), &[("w", &[6])], |layer, w| {
        Ok(vec![("y", layer.forward(&bag, Some(&starts), Some(&w[0]))?)])
    });
}

#[test]
fn margins_and_normalization_over_several_dimensions_agree_with_pytorchs() {
    let s = &scope();
    check_forward("reflection pad 2d", &[2, 3, 4, 5], Pad::new(s, &[1, 2, 0, 3], PadMode::Reflect));
    check_forward("zero pad 1d", &[2, 3, 4], Pad::new(s, &[2, -1], PadMode::Constant(0.0)));
    check_forward("constant pad 3d", &[1, 2, 2, 3, 2], Pad::new(s, &[1; 6], PadMode::Constant(0.5)));
    check_forward(
        "replication pad 3d",
        &[1, 2, 2, 3, 2],
        Pad::new(s, &[1, 0, 2, 1, 0, 1], PadMode::Replicate),
    );
    check_forward("circular pad 1d", &[2, 3, 4], Pad::new(s, &[2, 3], PadMode::Circular));
    let images = LayerNorm::over(&s.at("images"), &[3, 4, 2]).map(|layer| layer.eps(1e-3));
    check_forward("layer norm over images", &[2, 3, 4, 2], images);
    let bare = LayerNorm::without_affine(&s.at("bare"), &[3, 4]);
    check_forward("layer norm, bare", &[2, 3, 4], bare);
    let bare = LayerNorm::without_affine(s, &[3, 4]).unwrap();
    let error = bare.forward(&wave("x", &[4, 3])).unwrap_err().to_string();
    assert!(error.contains("input [4, 3]: its last sizes must be [3, 4]"), "{error}");
    let x = wave("x", &[2, 3, 4]);
    let (y, sum) = bare.forward_add(&x, &x).unwrap();
    assert_eq!((y.shape(), sum.shape()), (x.shape(), x.shape()));
}

#[test]
fn losses_agree_with_pytorchs() {
    let classes = Tensor::from_slice(&[2i64, 0, 1, 2], &[4], &device()).unwrap();
    let targets = wave("targets", &[4, 3]).abs().unwrap();
    let weights = wave("weights", &[3]).abs().unwrap().add_scalar(0.5).unwrap();
    let check_loss = |case: &str, loss: &dyn Fn(&Tensor) -> Result<Tensor>| {
        check(case, ReLU::new(&scope()).unwrap(), &[("x", &[4, 3])], |_, x| Ok(vec![("y", loss(&x[0])?)]));
    };
    check_loss("loss CrossEntropy", &|x| CrossEntropyLoss::default().forward(x, &classes));
    let (weight, reduction) = (Some(weights.clone()), Reduction::Sum);
    let weighted =
        CrossEntropyLoss { weight: weight.clone(), ignore_index: 2, label_smoothing: 0.1, reduction };
    check_loss("loss CrossEntropy options", &|x| weighted.forward(x, &classes));
    let nll = NLLLoss { weight: weight.clone(), ignore_index: 1, ..NLLLoss::default() };
    check_loss("loss NLL", &|x| nll.forward(x, &classes));
    check_loss("loss MSE", &|x| MSELoss::default().forward(x, &targets));
    check_loss("loss MSE each", &|x| MSELoss { reduction: Reduction::None }.forward(x, &targets));
    check_loss("loss L1", &|x| L1Loss { reduction }.forward(x, &targets));
    check_loss("loss SmoothL1", &|x| {
        SmoothL1Loss { beta: 0.3, ..SmoothL1Loss::default() }.forward(x, &targets)
    });
    check_loss("loss Huber", &|x| HuberLoss { delta: 0.3, ..HuberLoss::default() }.forward(x, &targets));
    check_loss("loss BCE", &|x| BCELoss::default().forward(&x.sigmoid()?, &targets));
    let logits = BCEWithLogitsLoss {
        weight: Some(targets.clone()),
        pos_weight: weight,
        ..BCEWithLogitsLoss::default()
    };
    check_loss("loss BCEWithLogits", &|x| logits.forward(x, &targets));
    let divergence = KLDivLoss { log_target: true, batchmean: true, ..KLDivLoss::default() };
    check_loss("loss KLDiv", &|x| divergence.forward(x, &targets));
    check_loss("loss KLDiv mean", &|x| KLDivLoss::default().forward(x, &targets));
}

#[test]
fn shuffles_and_upsampling_agree_with_pytorchs() {
    let s = &scope();
    check_forward("pixel shuffle", &[2, 8, 2, 3], PixelShuffle::new(s, 2));
    check_forward("pixel unshuffle", &[2, 2, 4, 6], PixelUnshuffle::new(s, 2));
    check_forward("channel shuffle", &[2, 6, 2, 2], ChannelShuffle::new(s, 3));
    check_forward("upsample nearest", &[1, 2, 2, 3], Upsample::size(s, &[5, 4]));
    let scaled = |scale, mode| Upsample::scale(s, scale).map(|layer| layer.mode(mode));
    let linear = |align_corners| InterpolateMode::Linear { align_corners };
    check_forward("upsample bilinear", &[1, 2, 2, 3], scaled(2.0, linear(false)));
    check_forward("upsample corners", &[1, 2, 2, 3], scaled(2.0, linear(true)));
    check_forward("upsample linear", &[1, 2, 3], scaled(3.0, linear(false)));
    let cubic = InterpolateMode::Cubic { align_corners: false };
    check_forward("upsample bicubic", &[1, 2, 3, 3], scaled(2.0, cubic));
}

#[test]
fn pooling_agrees_with_pytorchs() {
    let s = &scope();
    let image = &[2, 4, 5, 6];
    let max = MaxPool2d::new(s, 3).map(|layer| layer.stride(2).padding(1).ceil_mode(true));
    check_forward("max pool", image, max);
    let dilated = MaxPool1d::new(s, 2).map(|layer| layer.stride(1).dilation(3));
    check_forward("max pool dilated", &[2, 3, 9], dilated);
    check_forward("max pool 3d", &[1, 2, 4, 4, 5], MaxPool3d::new(s, 2));
    let mean = AvgPool2d::new(s, 3).map(|layer| layer.stride(2).padding(1).count_include_pad(false));
    check_forward("avg pool", image, mean);
    check_forward("avg pool 1d", &[2, 3, 7], AvgPool1d::new(s, 3).map(|layer| layer.padding(1)));
    check_forward("avg pool 3d", &[1, 2, 4, 4, 5], AvgPool3d::new(s, 2));
    check_forward("adaptive avg pool", image, AdaptiveAvgPool2d::sizes(s, [Some(3), None]));
    check_forward("adaptive avg pool 1d", &[2, 3, 7], AdaptiveAvgPool1d::new(s, 3));
    check_forward("adaptive avg pool 3d", &[1, 2, 4, 3, 5], AdaptiveAvgPool3d::new(s, 2));
    check_forward("adaptive max pool", image, AdaptiveMaxPool2d::sizes(s, [None, Some(4)]));
    check_forward("adaptive max pool 1d", &[2, 3, 7], AdaptiveMaxPool1d::new(s, 3));
    check_forward("adaptive max pool 3d", &[1, 2, 4, 3, 5], AdaptiveMaxPool3d::new(s, 2));
}

#[test]
fn unpooling_agrees_with_pytorchs() {
    let s = &scope();
    macro_rules! unpool {
        ($case:literal, $shape:expr, $pool:expr, $unpool:expr, $size:expr) => {
            check($case, $unpool.unwrap(), &[("x", &$shape)], |layer, x| {
                let (values, places) = $pool.unwrap().forward_with_indices(&x[0])?;
                Ok(vec![("y", layer.forward(&values, &places, $size)?)])
            })
        };
    }
    unpool!("unpool 1d", [2, 3, 6], MaxPool1d::new(s, 2), MaxUnpool1d::new(s, 2), None);
    unpool!("unpool 2d", [2, 3, 4, 6], MaxPool2d::new(s, 2), MaxUnpool2d::new(s, 2), None);
    unpool!("unpool 2d, odd", [2, 3, 5, 7], MaxPool2d::new(s, 2), MaxUnpool2d::new(s, 2), Some([5, 7]));
    unpool!("unpool 3d", [1, 2, 4, 2, 4], MaxPool3d::new(s, 2), MaxUnpool3d::new(s, 2), None);
    let options = MaxPool2dOptions { stride: [3; 2], padding: [1; 2], ..MaxPool2dOptions::square(3) };
    let (pool, unpool) = (MaxPool2d::with(s, options), MaxUnpool2d::with(s, options));
    let pool = pool.unwrap();
    unpool!("unpool 2d, strides", [1, 2, 7, 7], Ok::<_, plimsoll::Error>(&pool), unpool, None);
}

#[test]
fn convolutions_agree_with_pytorchs() {
    let s = &scope();
    let image = &[2, 4, 5, 6];
    let config = Conv1dConfig::new(3).stride(2).dilation(2).groups(2);
    check_forward("conv 1d", &[2, 4, 9], Conv1d::with(s, 4, 6, config));
    let s = &scope();
    let config = Conv2dConfig::new(3).padding([1, 2]).padding_mode(PadMode::Circular);
    check_forward("conv 2d circular", image, Conv2d::with(s, 4, 3, config));
    let s = &scope();
    let config = Conv2dConfig::new([4, 3]).same_padding().groups(4).without_bias();
    check_forward("conv 2d same", image, Conv2d::with(s, 4, 4, config));
    let s = &scope();
    let config = Conv3dConfig::new([2, 3, 1]).stride([1, 2, 1]).padding([0, 1, 0]);
    check_forward("conv 3d", &[1, 2, 4, 5, 4], Conv3d::with(s, 2, 3, config));
    let s = &scope();
    let config = ConvTranspose1dConfig::new(3).stride(2).padding(1).output_padding(1).groups(2);
    check_forward("transposed conv 1d", &[2, 4, 5], ConvTranspose1d::with(s, 4, 6, config));
    let s = &scope();
    let config = ConvTranspose2dConfig::new([2, 3]).stride([2, 1]).dilation(2).without_bias();
    check_forward("transposed conv 2d", &[2, 4, 3, 4], ConvTranspose2d::with(s, 4, 2, config));
    let s = &scope();
    let config = ConvTranspose3dConfig::new(2).stride(2);
    check_forward("transposed conv 3d", &[1, 2, 2, 3, 2], ConvTranspose3d::with(s, 2, 3, config));
    check_forward("linear without bias", &[2, 3, 4], Linear::without_bias(&scope(), 4, 5));
}

/// Checks the outputs of two training batches, then of one in evaluation mode.
fn check_norm(case: &str, shape: &[usize], layer: Result<impl Module>) {
    check(case, layer.unwrap(), &[("x", shape)], |layer, x| {
        let (y, z) = (layer.forward(&x[0])?, layer.forward(&x[0].mul_scalar(3.0)?)?);
        layer.eval();
        Ok(vec![("y", y), ("z", z), ("w", layer.forward(&x[0])?)])
    });
}

#[test]
fn normalizations_agree_with_pytorchs() {
    check_norm("batch norm 1d", &[4, 3], BatchNorm1d::new(&scope(), 3));
    let plain = BatchNormConfig::default();
    let averaged = BatchNormConfig { momentum: None, ..plain };
    check_norm("batch norm 1d, lengths", &[2, 3, 4], BatchNorm1d::with(&scope(), 3, averaged));
    let options = BatchNormConfig { eps: 1e-3, momentum: Some(0.3), ..plain };
    check_norm("batch norm 3d", &[2, 2, 2, 3, 2], BatchNorm3d::with(&scope(), 2, options));
    let bare = BatchNormConfig { affine: false, track_running_stats: false, ..plain };
    check_norm("batch norm, bare", &[2, 3, 2, 2], BatchNorm2d::with(&scope(), 3, bare));
    check_forward("instance norm 3d", &[2, 2, 2, 3, 2], InstanceNorm3d::new(&scope(), 2));
    check_forward("layer norm", &[2, 3, 4], LayerNorm::new(&scope(), 4).map(|layer| layer.eps(1e-3)));
    check_forward("group norm", &[2, 4, 3, 2], GroupNorm::new(&scope(), 2, 4));
    let bare = GroupNorm::without_affine(&scope(), 4, 4).map(|layer| layer.eps(1e-3));
    check_forward("group norm, bare", &[2, 4, 3], bare);
    check_forward("rms norm", &[2, 3, 4], RmsNorm::new(&scope(), 4).map(|layer| layer.eps(1e-5)));
}

const BLOCK: TransformerOptions = TransformerOptions {
    dim_feedforward: 6,
    dropout: 0.0,
    activation: Activation::Relu,
    layer_norm_eps: 1e-5,
    batch_first: false,
    norm_first: false,
};

#[test]
fn a_cell_of_relu_and_a_whole_decoder_agree_with_pytorchs() {
    let cell = RNNCell::new(&scope(), 3, 2, true, Nonlinearity::Relu).unwrap();
    check("rnn cell relu", cell, &[("x", &[2, 3]), ("h0", &[2, 2])], |m, x| {
        Ok(vec![("h", m.forward(&x[0], Some(&x[1]))?)])
    });
    let root = scope();
    let decoder = TransformerDecoder::new(&root, 2, 4, 2, BLOCK).unwrap();
    let decoder = decoder.with_norm(LayerNorm::new(&root.at("norm"), 4).unwrap());
    check("decoder", decoder, &[("x", &[3, 2, 4]), ("memory", &[4, 2, 4])], |m, x| {
        let masks = DecoderMasks { tgt_is_causal: true, ..DecoderMasks::default() };
        Ok(vec![("y", m.forward(&x[0], &x[1], masks)?)])
    });
}

/// If all keys are masked, the attention output is zero, as in PyTorch, and so are its gradients.
#[test]
fn a_sequence_of_padding_alone_gives_pytorchs_zeros() {
    let hide = [false, false, true, true, true, true];
    let hide = Tensor::from_slice(&hide, &[2, 3], &device()).unwrap();
    let options = MultiheadAttentionOptions { batch_first: true, ..MultiheadAttentionOptions::default() };
    let attention = MultiheadAttention::new(&scope(), 4, 2, options).unwrap();
    check("mha, a sequence all padding", attention, &[("x", &[2, 3, 4])], |m, x| {
        let options = MultiheadOptions { key_padding_mask: Some(&hide), ..MultiheadOptions::default() };
        Ok(vec![("y", m.forward(&x[0], &x[0], &x[0], options)?.0)])
    });
    let options = TransformerOptions { batch_first: true, ..BLOCK };
    let layer = TransformerEncoderLayer::new(&scope(), 4, 2, options).unwrap();
    check("encoder layer, a sequence all padding", layer, &[("x", &[2, 3, 4])], |m, x| {
        let masks = EncoderMasks { src_key_padding_mask: Some(&hide), ..EncoderMasks::default() };
        Ok(vec![("y", m.forward_masked(&x[0], masks)?)])
    });
}

/// Checks that each channel of each example is either dropped or kept and scaled as a unit, and that its gradient follows.
fn check_channels(layer: &impl Module, shape: &[usize], dropped_together: usize) {
    let x = Tensor::full(shape, 0.7, DType::F32, &device()).unwrap().requires_grad_(true).unwrap();
    let y = layer.forward(&x).unwrap();
    y.sum().unwrap().backward().unwrap();
    let (values, grads) = (y.to_vec::<f32>().unwrap(), x.grad().unwrap().to_vec::<f32>().unwrap());
    let channels = values.chunks(dropped_together).zip(grads.chunks(dropped_together));
    let mut dropped = 0;
    for (values, grads) in channels {
        let scale = if values[0] == 0.0 { 0.0 } else { 1.0 / 0.8 };
        dropped += usize::from(scale == 0.0);
        assert!(values.iter().all(|y| (y - 0.7 * scale).abs() < 1e-6), "{shape:?}: {values:?}");
        assert!(grads.iter().all(|g| (g - scale).abs() < 1e-6), "{shape:?}: {grads:?}");
    }
    let share = dropped as f64 / (y.numel() / dropped_together) as f64;
    assert!((share - 0.2).abs() < 0.05, "{shape:?}: {share} dropped");
    layer.eval();
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}

#[test]
fn dropout_of_channels_drops_them_whole() {
    let s = &scope();
    check_channels(&Dropout1d::new(s, 0.2).unwrap(), &[40, 50, 3], 3);
    check_channels(&Dropout1d::new(s, 0.2).unwrap(), &[2000, 3], 3);
    check_channels(&Dropout2d::new(s, 0.2).unwrap(), &[40, 50, 2, 3], 6);
    // PyTorch reads three dimensions as [batch, channels, length].
    check_channels(&Dropout2d::new(s, 0.2).unwrap(), &[40, 50, 3], 3);
    check_channels(&Dropout3d::new(s, 0.2).unwrap(), &[40, 50, 1, 2, 3], 6);
    check_channels(&Dropout3d::new(s, 0.2).unwrap(), &[2000, 1, 2, 3], 6);
    let error = Dropout1d::new(s, 0.2).unwrap().forward(&wave("x", &[2])).unwrap_err().to_string();
    assert!(error.starts_with("dropout: [2]: needs [batch, channels, …]"), "{error}");
    assert!(Dropout2d::new(s, 1.2).is_err() && Dropout3d::new(s, f64::NAN).is_err());
    for p in [0.0, 1.0] {
        let y = Dropout2d::new(s, p).unwrap().forward(&wave("x", &[2, 3, 4, 4])).unwrap();
        let is_zero = y.to_vec::<f32>().unwrap().iter().all(|&y| y == 0.0);
        assert_eq!(is_zero, p == 1.0);
    }
}

#[test]
fn alpha_dropout_has_pytorchs_values_and_keeps_mean_and_variance() {
    for (p, expected) in recorded("alpha dropout").as_object().unwrap() {
        let layer = AlphaDropout::new(&scope(), p.parse().unwrap()).unwrap();
        let x = Tensor::full(&[2000], 0.7, DType::F32, &device()).unwrap().requires_grad_(true).unwrap();
        let y = layer.forward(&x).unwrap();
        y.sum().unwrap().backward().unwrap();
        let (values, grads) = (y.to_vec::<f32>().unwrap(), x.grad().unwrap().to_vec::<f32>().unwrap());
        let [known, slopes] = ["values", "grads"]
            .map(|name| serde_json::from_value::<Vec<f64>>(expected[name].clone()).unwrap());
        let mut counts = vec![0; known.len()];
        for (value, grad) in values.iter().zip(&grads) {
            let at = known.iter().position(|known| (f64::from(*value) - known).abs() < 1e-5).unwrap();
            counts[at] += 1;
            assert!((f64::from(*grad) - slopes[at]).abs() < 1e-5, "p {p}: {grad}, PyTorch's {}", slopes[at]);
        }
        assert!(counts.iter().all(|&count| count > 0), "p {p}: {counts:?}");
        let normal = Tensor::randn(&[20_000], &device()).unwrap();
        let y = layer.forward(&normal).unwrap();
        let [mean, std] = [y.mean(), y.std_dims(&[0], 1.0)].map(|x| x.unwrap().item::<f32>().unwrap());
        assert!(mean.abs() < 0.05 && (std - 1.0).abs() < 0.05, "p {p}: mean {mean}, deviation {std}");
    }
}
