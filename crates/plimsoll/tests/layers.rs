//! Compares attention, transformer blocks and recurrent layers with PyTorch's: names, outputs and gradients.
//! `fixtures/make_layers.py` makes `fixtures/layers.json`.

use plimsoll::nn::{
    DecoderMasks, EncoderMasks, GRU, GRUCell, InstanceNorm1d, InstanceNorm2d, InstanceNormConfig, LSTM,
    LSTMCell, LayerNorm, LocalResponseNorm, Module, MultiheadAttention, MultiheadAttentionOptions,
    MultiheadOptions, Nonlinearity, PReLU, PackedSequence, RNN, RNNCell, RecurrentOptions, Scope,
    Transformer, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer, TransformerOptions,
};
use plimsoll::{Activation, BackwardOptions, DType, Device, Result, SimConfig, Tensor, autocast};

use crate::layer_case::{Outs, check, device, scope, wave};

fn hide() -> Tensor {
    Tensor::from_slice(&[false, false, true, false, true, false], &[2, 3], &device()).unwrap()
}

/// A mask that is true for later keys.
fn later(queries: usize, keys: usize) -> Tensor {
    Tensor::full(&[queries, keys], 1.0, DType::Bool, &device()).unwrap().triu(1).unwrap()
}

fn attention(options: MultiheadAttentionOptions) -> MultiheadAttention {
    MultiheadAttention::new(&scope(), 4, 2, options).unwrap()
}

fn attend(model: &MultiheadAttention, qkv: [&Tensor; 3], options: MultiheadOptions<'_>) -> Result<Outs> {
    let (y, w) = model.forward(qkv[0], qkv[1], qkv[2], options)?;
    Ok([("y", Some(y)), ("w", w)].into_iter().filter_map(|(name, out)| Some((name, out?))).collect())
}

const QKV: [(&str, &[usize]); 3] = [("q", &[4, 2, 4]), ("k", &[3, 2, 4]), ("v", &[3, 2, 4])];

#[test]
fn self_attention_agrees_with_pytorchs() {
    let plain = MultiheadAttentionOptions::default();
    let hide = hide();
    let none = MultiheadOptions::default();
    let padding = MultiheadOptions { key_padding_mask: Some(&hide), ..none };
    let later = later(3, 3);
    for (case, made, shape, options) in [
        ("mha", plain, &[3, 2, 4][..], none),
        ("mha batch first", MultiheadAttentionOptions { batch_first: true, ..plain }, &[2, 3, 4], none),
        ("mha without bias", MultiheadAttentionOptions { bias: false, ..plain }, &[3, 2, 4], none),
        ("mha without batch", plain, &[3, 4], MultiheadOptions { need_weights: true, ..none }),
        ("mha padding", plain, &[3, 2, 4], padding),
        ("mha causal and padding", plain, &[3, 2, 4], MultiheadOptions { is_causal: true, ..padding }),
        (
            "mha causal and padding",
            plain,
            &[3, 2, 4],
            MultiheadOptions { attn_mask: Some(&later), ..padding },
        ),
    ] {
        check(case, attention(made), &[("x", shape)], |model, x| attend(model, [&x[0]; 3], options));
    }
}

#[test]
fn attention_to_another_sequence_agrees_with_pytorchs() {
    let plain = MultiheadAttentionOptions::default();
    let (hide, later, added) = (hide(), later(4, 3), wave("mask", &[4, 4, 3]));
    let none = MultiheadOptions::default();
    let options = [
        ("mha apart", none),
        ("mha weights", MultiheadOptions { attn_mask: Some(&later), need_weights: true, ..none }),
        ("mha weights", MultiheadOptions { is_causal: true, need_weights: true, ..none }),
        (
            "mha weights of each head",
            MultiheadOptions {
                attn_mask: Some(&added),
                key_padding_mask: Some(&hide),
                need_weights: true,
                weights_of_each_head: true,
                ..none
            },
        ),
        ("mha float mask of each head", MultiheadOptions { attn_mask: Some(&added), ..none }),
    ];
    for (case, options) in options {
        check(case, attention(plain), &QKV, |model, x| attend(model, [&x[0], &x[1], &x[2]], options));
    }
    check("mha keys are values", attention(plain), &QKV[..2], |model, x| {
        attend(model, [&x[0], &x[1], &x[1]], MultiheadOptions { attn_mask: Some(&later), ..none })
    });
    let other = attention(MultiheadAttentionOptions { kdim: Some(3), vdim: Some(5), ..plain });
    let inputs: [(&str, &[usize]); 3] = [("q", &[4, 2, 4]), ("k", &[3, 2, 3]), ("v", &[3, 2, 5])];
    check("mha other widths", other, &inputs, |model, x| attend(model, [&x[0], &x[1], &x[2]], none));
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
fn transformer_blocks_agree_with_pytorchs() {
    let x: [(&str, &[usize]); 1] = [("x", &[3, 2, 4])];
    let layer = |options| TransformerEncoderLayer::new(&scope(), 4, 2, options).unwrap();
    let y = |y: Tensor| vec![("y", y)];
    check("encoder layer", layer(BLOCK), &x, |m, x| Ok(y(m.forward(&x[0])?)));
    let other =
        TransformerOptions { activation: Activation::Gelu, norm_first: true, batch_first: true, ..BLOCK };
    let hide = hide();
    check("encoder layer gelu norm first", layer(other), &[("x", &[2, 3, 4])], |m, x| {
        let masks = EncoderMasks { src_key_padding_mask: Some(&hide), ..EncoderMasks::default() };
        Ok(y(m.forward_masked(&x[0], masks)?))
    });
    let root = scope();
    let encoder = TransformerEncoder::new(&root, 2, 4, 2, BLOCK).unwrap();
    let encoder = encoder.with_norm(LayerNorm::new(&root.at("norm"), 4).unwrap());
    check("encoder", encoder, &x, |m, x| {
        Ok(y(m.forward_masked(&x[0], EncoderMasks { is_causal: true, ..EncoderMasks::default() })?))
    });
    let layer = |options| TransformerDecoderLayer::new(&scope(), 4, 2, options).unwrap();
    let causal = DecoderMasks { tgt_is_causal: true, ..DecoderMasks::default() };
    check("decoder layer", layer(BLOCK), &[("x", &[3, 2, 4]), ("memory", &[4, 2, 4])], |m, x| {
        Ok(y(m.forward(&x[0], &x[1], causal)?))
    });
    check("decoder layer norm first", layer(other), &[("x", &[2, 4, 4]), ("memory", &[2, 3, 4])], |m, x| {
        let masks = DecoderMasks { memory_key_padding_mask: Some(&hide), ..causal };
        Ok(y(m.forward(&x[0], &x[1], masks)?))
    });
    let whole = Transformer::new(&scope(), 4, 2, [1, 1], BLOCK).unwrap();
    check("transformer", whole, &[("x", &[3, 2, 4]), ("t", &[4, 2, 4])], |m, x| {
        Ok(y(m.forward(&x[0], &x[1], EncoderMasks::default(), causal)?))
    });
}

#[test]
fn recurrent_layers_agree_with_pytorchs() {
    let (one, tbi) = (RecurrentOptions::default(), [("x", &[4, 2, 3][..])]);
    let rnn = |kind, options| RNN::new(&scope(), 3, 2, kind, options).unwrap();
    let states = |(y, h)| vec![("y", y), ("h", h)];
    let with_memory = |(y, (h, c))| vec![("y", y), ("h", h), ("c", c)];
    check("rnn", rnn(Nonlinearity::Tanh, one), &tbi, |m, x| Ok(states(m.forward(&x[0], None)?)));
    let relu = RecurrentOptions { bias: false, batch_first: true, ..one };
    check("rnn relu", rnn(Nonlinearity::Relu, relu), &tbi, |m, x| Ok(states(m.forward(&x[0], None)?)));
    let alone: [(&str, &[usize]); 2] = [("x", &[4, 3]), ("h0", &[1, 2])];
    check("rnn without batch", rnn(Nonlinearity::Tanh, one), &alone, |m, x| {
        Ok(states(m.forward(&x[0], Some(&x[1]))?))
    });
    let lstm = |options| LSTM::new(&scope(), 3, 2, options).unwrap();
    check("lstm", lstm(one), &tbi, |m, x| Ok(with_memory(m.forward(&x[0], None)?)));
    let two = RecurrentOptions { num_layers: 2, bidirectional: true, batch_first: true, ..one };
    let states_of_two: [(&str, &[usize]); 3] = [("x", &[2, 4, 3]), ("h0", &[4, 2, 2]), ("c0", &[4, 2, 2])];
    check("lstm of two", lstm(two), &states_of_two, |m, x| {
        Ok(with_memory(m.forward(&x[0], Some((&x[1], &x[2])))?))
    });
    let gru = |options| GRU::new(&scope(), 3, 2, options).unwrap();
    check("gru", gru(one), &tbi, |m, x| Ok(states(m.forward(&x[0], None)?)));
    let two = RecurrentOptions { batch_first: false, bias: false, ..two };
    check("gru of two", gru(two), &[("x", &[4, 2, 3]), ("h0", &[4, 2, 2])], |m, x| {
        Ok(states(m.forward(&x[0], Some(&x[1]))?))
    });
}

#[test]
fn recurrent_cells_agree_with_pytorchs() {
    let rnn = RNNCell::new(&scope(), 3, 2, true, Nonlinearity::Tanh).unwrap();
    check("rnn cell", rnn, &[("x", &[2, 3])], |m, x| Ok(vec![("h", m.forward(&x[0], None)?)]));
    let gru = GRUCell::new(&scope(), 3, 2, true).unwrap();
    check("gru cell", gru, &[("x", &[2, 3]), ("h0", &[2, 2])], |m, x| {
        Ok(vec![("h", m.forward(&x[0], Some(&x[1]))?)])
    });
    let lstm = LSTMCell::new(&scope(), 3, 2, false).unwrap();
    check("lstm cell", lstm, &[("x", &[2, 3]), ("h0", &[2, 2]), ("c0", &[2, 2])], |m, x| {
        let (h, c) = m.forward(&x[0], Some((&x[1], &x[2])))?;
        Ok(vec![("h", h), ("c", c)])
    });
}

/// Three sequences of unequal lengths, not sorted by length, as in the script.
fn packed(x: &Tensor) -> Result<PackedSequence> {
    PackedSequence::pack_padded(x, &[2, 4, 1], true)
}

#[test]
fn recurrent_layers_over_packed_sequences_agree_with_pytorchs() {
    let padded = |y: &PackedSequence| Ok::<_, plimsoll::Error>(y.pad(true, 0.5, None)?.0);
    let two = RecurrentOptions { num_layers: 2, bidirectional: true, ..RecurrentOptions::default() };
    let rnn = RNN::new(&scope(), 3, 2, Nonlinearity::Tanh, RecurrentOptions::default()).unwrap();
    check("packed rnn", rnn, &[("x", &[3, 4, 3])], |m, x| {
        let (y, h) = m.forward_packed(&packed(&x[0])?, None)?;
        Ok(vec![("y", padded(&y)?), ("h", h)])
    });
    let gru = GRU::new(&scope(), 3, 2, two).unwrap();
    check("packed gru of two", gru, &[("x", &[3, 4, 3]), ("h0", &[4, 3, 2])], |m, x| {
        let (y, h) = m.forward_packed(&packed(&x[0])?, Some(&x[1]))?;
        Ok(vec![("y", padded(&y)?), ("h", h)])
    });
    let states: [(&str, &[usize]); 3] = [("x", &[3, 4, 3]), ("h0", &[4, 3, 2]), ("c0", &[4, 3, 2])];
    check("packed lstm of two", LSTM::new(&scope(), 3, 2, two).unwrap(), &states, |m, x| {
        let (y, (h, c)) = m.forward_packed(&packed(&x[0])?, Some((&x[1], &x[2])))?;
        Ok(vec![("y", padded(&y)?), ("h", h), ("c", c)])
    });
}

#[test]
fn an_lstm_with_a_projection_agrees_with_pytorchs() {
    let two =
        RecurrentOptions { num_layers: 2, bidirectional: true, proj_size: 1, ..RecurrentOptions::default() };
    let states: [(&str, &[usize]); 3] = [("x", &[4, 2, 3]), ("h0", &[4, 2, 1]), ("c0", &[4, 2, 2])];
    check("projected lstm", LSTM::new(&scope(), 3, 2, two).unwrap(), &states, |m, x| {
        let (y, (h, c)) = m.forward(&x[0], Some((&x[1], &x[2])))?;
        Ok(vec![("y", y), ("h", h), ("c", c)])
    });
    let one = RecurrentOptions { num_layers: 1, bias: false, ..two };
    check("packed projected lstm", LSTM::new(&scope(), 3, 2, one).unwrap(), &[("x", &[3, 4, 3])], |m, x| {
        let (y, (h, c)) = m.forward_packed(&packed(&x[0])?, None)?;
        Ok(vec![("y", y.pad(true, 0.5, None)?.0), ("h", h), ("c", c)])
    });
    let error = GRU::new(&scope(), 3, 2, two).unwrap_err().to_string();
    assert_eq!(
        error,
        "gru: a proj_size of 1: only an LSTM can have one, and it must be less than its hidden size, 2"
    );
}

#[test]
fn attention_with_added_keys_agrees_with_pytorchs() {
    let plain = MultiheadAttentionOptions::default();
    let (hide, later) = (hide(), later(4, 3));
    let none = MultiheadOptions::default();
    let both = MultiheadAttentionOptions { add_bias_kv: true, add_zero_attn: true, ..plain };
    let padding = MultiheadOptions { key_padding_mask: Some(&hide), ..none };
    check("mha added keys", attention(both), &QKV, |m, x| attend(m, [&x[0], &x[1], &x[2]], padding));
    let bias = MultiheadAttentionOptions { add_bias_kv: true, ..plain };
    let masked = MultiheadOptions { attn_mask: Some(&later), need_weights: true, ..none };
    check("mha added keys, weights", attention(bias), &QKV, |m, x| attend(m, [&x[0], &x[1], &x[2]], masked));
    let zero = MultiheadAttentionOptions { add_zero_attn: true, batch_first: true, ..plain };
    let causal = MultiheadOptions { is_causal: true, ..none };
    check("mha zero key, causal", attention(zero), &[("x", &[2, 3, 4])], |m, x| {
        attend(m, [&x[0], &x[0], &x[0]], causal)
    });
}

#[test]
fn activations_and_norms_with_parameters_agree_with_pytorchs() {
    let y = |y: Tensor| Ok(vec![("y", y)]);
    check("prelu", PReLU::new(&scope(), 3).unwrap(), &[("x", &[2, 3, 4])], |m, x| y(m.forward(&x[0])?));
    let affine = InstanceNormConfig { affine: true, ..InstanceNormConfig::default() };
    let norm = InstanceNorm2d::with(&scope(), 3, affine).unwrap();
    check("instance norm", norm, &[("x", &[2, 3, 2, 2])], |m, x| y(m.forward(&x[0])?));
    let tracked = InstanceNormConfig { track_running_stats: true, ..affine };
    let norm = InstanceNorm1d::with(&scope(), 3, tracked).unwrap();
    check("instance norm, tracked", norm, &[("x", &[2, 3, 4])], |m, x| {
        let y = m.forward(&x[0])?;
        m.eval();
        Ok(vec![("y", y), ("z", m.forward(&x[0])?)])
    });
    let norm = LocalResponseNorm::new(&scope(), 3).unwrap().with(0.5, 0.6, 2.0);
    check("local response norm", norm, &[("x", &[2, 4, 2, 2])], |m, x| y(m.forward(&x[0])?));
}

#[test]
fn a_recurrent_layers_gradients_have_gradients() {
    for cell in ["lstm", "gru"] {
        let x = wave("x", &[3, 2, 3]).requires_grad_(true).unwrap();
        let run = |x: &Tensor| -> Tensor {
            let options = RecurrentOptions::default();
            let y = match cell {
                "lstm" => Module::forward(&LSTM::new(&scope(), 3, 2, options).unwrap(), x),
                _ => Module::forward(&GRU::new(&scope(), 3, 2, options).unwrap(), x),
            };
            y.unwrap().sum().unwrap()
        };
        let create = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        run(&x).backward_with(create).unwrap();
        let first = x.grad().unwrap();
        // The gradient must be the same when computed by recorded operations and by the kernel.
        let again = wave("x", &[3, 2, 3]).requires_grad_(true).unwrap();
        run(&again).backward().unwrap();
        let (a, b) = (first.to_vec::<f32>().unwrap(), again.grad().unwrap().to_vec::<f32>().unwrap());
        a.iter().zip(&b).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{cell}: {a} {b}"));
        x.clear_grad();
        first.square().unwrap().sum().unwrap().backward().unwrap();
        assert!(x.grad().unwrap().to_vec::<f32>().unwrap().iter().any(|g| g.abs() > 1e-6), "{cell}");
    }
}

/// Peak bytes of one step, without those of the parameters.
fn peak_bytes(step: impl Fn(&Device) -> Result<()>) -> u64 {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    step(&device).unwrap();
    device.max_memory_allocated()
}

#[test]
fn attention_without_weights_has_no_matrix_of_scores() {
    let step = |need_weights: bool| {
        peak_bytes(move |device| {
            let options =
                MultiheadAttentionOptions { batch_first: true, ..MultiheadAttentionOptions::default() };
            let model = MultiheadAttention::new(&Scope::new(device, 1), 64, 4, options)?;
            let x = Tensor::zeros(&[2, 8192, 64], device)?;
            let options = MultiheadOptions { need_weights, ..MultiheadOptions::default() };
            model.forward(&x, &x, &x, options)?.0.sum()?.backward()
        })
    };
    let scores = 2 * 4 * 8192 * 8192 * 4;
    assert!(step(false) < scores / 8, "{}", step(false));
    assert!(step(true) > scores);
}

#[test]
fn an_lstm_keeps_six_numbers_for_each_element_of_its_state() {
    // Output, cell state and four gates, and temporarily the projection of the next layer and the state of one step.
    let (steps, batch, hidden) = (100, 32, 256);
    let peak = peak_bytes(|device| {
        let model = LSTM::new(&Scope::new(device, 1), hidden, hidden, RecurrentOptions::default())?;
        let x = Tensor::zeros(&[steps, batch, hidden], device)?;
        let before = device.memory_allocated();
        let (y, _) = model.forward(&x, None)?;
        let kept = device.memory_allocated() - before;
        let unit = (steps * batch * hidden * 4) as u64;
        assert!(kept < 6 * unit + unit / 10, "{kept} bytes, {unit} a number");
        y.sum()?.backward()
    });
    assert!(peak > 0);
}

#[test]
fn recurrent_layers_run_under_autocast() {
    let x = wave("x", &[4, 2, 3]).requires_grad_(true).unwrap();
    let gru = GRU::new(&scope(), 3, 2, RecurrentOptions::default()).unwrap();
    let (y, _) = autocast::autocast(DType::BF16, || gru.forward(&x, None)).unwrap();
    assert_eq!(y.dtype(), DType::BF16);
    y.sum().unwrap().backward().unwrap();
    let full = gru.forward(&x, None).unwrap().0.to_vec::<f32>().unwrap();
    let short = y.float().unwrap().to_vec::<f32>().unwrap();
    full.iter().zip(&short).for_each(|(a, b)| assert!((a - b).abs() < 0.02, "{a} {b}"));
}

#[test]
fn what_does_not_fit_is_refused_with_both_shapes() {
    let plain = MultiheadAttentionOptions::default();
    let error = MultiheadAttention::new(&scope(), 10, 3, plain).unwrap_err().to_string();
    assert_eq!(error, "multihead_attention: a width of 10 is not divisible by 3 heads");
    let (x, mask) = (wave("x", &[3, 2, 4]), wave("mask", &[2, 2]));
    let options = MultiheadOptions { attn_mask: Some(&mask), ..MultiheadOptions::default() };
    let error = attention(plain).forward(&x, &x, &x, options).unwrap_err().to_string();
    assert_eq!(error, "multihead_attention: attn_mask [2, 2]: needs [3, 3] or [4, 3, 3]");
    let error = Module::forward(&attention(plain), &wave("x", &[3, 2, 5])).unwrap_err().to_string();
    assert!(error.starts_with("multihead_attention: query [3, 2, 5], key [3, 2, 5]"), "{error}");
    let lstm = LSTM::new(&scope(), 3, 2, RecurrentOptions::default()).unwrap();
    let error = lstm.forward(&wave("x", &[4, 2, 5]), None).unwrap_err().to_string();
    assert_eq!(error, "lstm: an input [4, 2, 5]: needs [steps, batch, 3] or [steps, 3]");
    let state = wave("h", &[2, 2, 2]);
    let error = lstm.forward(&wave("x", &[4, 2, 3]), Some((&state, &state))).unwrap_err().to_string();
    assert_eq!(error, "lstm: an initial state [2, 2, 2]: needs [1, 2, 2]");
    let error = lstm.forward(&wave("x", &[0, 2, 3]), None).unwrap_err().to_string();
    assert!(error.contains("at least one step"), "{error}");
    let none = RecurrentOptions { num_layers: 0, ..RecurrentOptions::default() };
    let error = GRU::new(&scope(), 3, 2, none).unwrap_err().to_string();
    assert_eq!(error, "gru: 0 layers, 3 inputs and a hidden state of 2: all must be above 0");
}

#[test]
fn dropout_drops_while_training_only() {
    let options = TransformerOptions { dropout: 0.5, ..BLOCK };
    let layer = TransformerEncoderLayer::new(&scope(), 4, 2, options).unwrap();
    let x = wave("x", &[3, 2, 4]);
    let run = || layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
    assert_ne!(run(), run());
    layer.eval();
    assert_eq!(run(), run());
}
