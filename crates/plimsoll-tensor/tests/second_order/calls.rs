//! The functions of `fixtures/make_second.py`.

use plimsoll_tensor::{
    AttentionOptions, BatchNormArgs, Cell, Device, RecurrentLayer, RecurrentState, Reduction, Result,
    ScatterReduction, Tensor,
};

/// Computes a case.
pub(crate) fn call(op: &str, ins: &[Tensor]) -> Result<Tensor> {
    match ins {
        [x] => of_one(op, x),
        [x, y] => of_two(op, x, y),
        _ => of_more(op, ins),
    }
}

fn of_one(op: &str, x: &Tensor) -> Result<Tensor> {
    match op {
        "silu" => x.silu(),
        "softplus" => x.softplus(),
        "mish" => x.mish(),
        "log_sigmoid" => x.log_sigmoid(),
        "gelu" => x.gelu(),
        "gelu_tanh" => x.gelu_tanh(),
        "elu" => x.elu(1.0),
        "celu" => x.celu(1.5),
        "selu" => x.selu(),
        "tanh" => x.tanh(),
        "sigmoid" => x.sigmoid(),
        "leaky_relu" => x.leaky_relu(0.2),
        "relu" => x.relu(),
        "hardswish" => x.hardswish(),
        "hardtanh" => x.hardtanh(-1.0, 1.0),
        "softsign" => x.softsign(),
        "tanhshrink" => x.tanhshrink(),
        "erf" => x.erf(),
        "erfc" => x.erfc(),
        "atan" => x.atan(),
        "asinh" => x.asinh(),
        "sin" => x.sin(),
        "exp" => x.exp(),
        "expm1" => x.expm1(),
        "square" => x.square(),
        "abs" => x.abs(),
        "log" => x.log(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "reciprocal" => x.reciprocal(),
        "log1p" => x.log1p(),
        "lgamma" => x.lgamma(),
        "cube" => x.pow_scalar(3.0),
        "power" => x.pow_scalar(2.5),
        "softmax" => x.softmax(-1),
        "log_softmax" => x.log_softmax(-1),
        "logsumexp" => x.logsumexp(&[1]),
        "logcumsumexp" => x.logcumsumexp(1),
        "norm" => x.norm_dims(2.0, &[1]),
        "norm3" => x.norm_dims(3.0, &[1]),
        "std" => x.std_dims(&[1], 1.0),
        "var" => x.var_dims(&[1], 1.0),
        "cumprod" => x.cumprod(1),
        "prod" => x.prod_dim(1),
        _ => panic!("{op} of one tensor"),
    }
}

fn of_two(op: &str, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    match op {
        "logaddexp" => x.logaddexp(y),
        "div" => x.div(y),
        "mul" => x.mul(y),
        "atan2" => x.atan2(y),
        "hypot" => x.hypot(y),
        "maximum" => x.maximum(y),
        "pow" => x.pow(y),
        "xlogy" => x.xlogy(y),
        "swiglu" => x.swiglu(y),
        "bce_with_logits" => x.binary_cross_entropy_with_logits(y, None, None, Reduction::Mean),
        "bce" => x.binary_cross_entropy(y, None, Reduction::Mean),
        "huber" => x.huber_loss(y, 0.7, Reduction::Mean),
        "smooth_l1" => x.smooth_l1_loss(y, 1.0, Reduction::Sum),
        "mse" => x.mse_loss(y),
        "kl_div" => x.kl_div(y, false, Reduction::None),
        "prelu" => x.prelu(y),
        "rms_norm" => x.rms_norm(Some(y), 1e-5),
        "cross_entropy" => x.cross_entropy(y),
        _ => panic!("{op} of two tensors"),
    }
}

fn of_more(op: &str, ins: &[Tensor]) -> Result<Tensor> {
    let [x, y, z, ..] = ins else { panic!("{op} of {} tensors", ins.len()) };
    match op {
        "layer_norm" => x.layer_norm(Some(y), Some(z), 1e-5),
        "group_norm" => x.group_norm(2, Some(y), Some(z), 1e-5),
        "batch_norm" => batch_norm(x, y, z),
        "attention" => {
            let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
            x.scaled_dot_product_attention(y, z, options)
        }
        "linear" => x.linear(y, Some(z)),
        "scatter_product" => x.scatter_reduce(0, y, z, ScatterReduction::Prod, true),
        "gru" => decoder(Cell::Gru, ins),
        "lstm" => decoder(Cell::Lstm, ins),
        "rnn" => decoder(Cell::Tanh, ins),
        _ => panic!("{op} of more tensors"),
    }
}

fn batch_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let args =
        BatchNormArgs { weight: Some(weight), bias: Some(bias), training: true, ..BatchNormArgs::default() };
    x.batch_norm_with(args)
}

/// Two steps; the input of the second is the output of the first.
fn decoder(cell: Cell, ins: &[Tensor]) -> Result<Tensor> {
    let [h, w_ih, w_hh, b_ih, b_hh] = ins else { panic!("a state, weights and biases") };
    let layer = RecurrentLayer {
        cell,
        weights: [w_ih, w_hh],
        biases: Some([b_ih, b_hh]),
        projection: None,
        batch_first: false,
        reverse: false,
    };
    let memory = if cell == Cell::Lstm { Some(h.detach().zeros_like()?) } else { None };
    let mut state = RecurrentState { h: h.clone(), c: memory };
    let mut y = h.clone();
    for _ in 0..2 {
        let (out, last) = y.tanh()?.unsqueeze(0)?.recurrent(layer, &state)?;
        y = out.squeeze(0)?;
        state = last;
    }
    Ok(y)
}

/// The parameters of the layer whose graph is measured.
pub(crate) fn parameters(name: &str, device: &Device) -> Vec<Tensor> {
    let shapes: &[&[usize]] = match name {
        "ln" => &[&[512], &[512]],
        "linear" => &[&[512, 512], &[512]],
        "bn" | "gn" => &[&[8], &[8]],
        _ => &[],
    };
    shapes.iter().map(|shape| Tensor::randn(shape, device).unwrap().requires_grad_(true).unwrap()).collect()
}

/// The layer or function whose graph is measured.
pub(crate) fn layer(name: &str, x: &Tensor, parameters: &[Tensor]) -> Result<Tensor> {
    match (name, parameters) {
        ("ln", [w, b]) => x.layer_norm(Some(w), Some(b), 1e-5),
        ("linear", [w, b]) => x.linear(w, Some(b)),
        ("bn", [w, b]) => batch_norm(x, w, b),
        ("gn", [w, b]) => x.group_norm(4, Some(w), Some(b), 1e-5),
        _ => of_one(name, x),
    }
}
