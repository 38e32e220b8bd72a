//! Calls our operation for a case's operation name and arguments.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::{
    Activation, AttentionOptions, BatchNormOptions, CrossEntropyOptions, Result, Rotary, Tensor,
};
use serde_json::Value;

/// Our outputs for a case. An omitted input is `None`.
pub(crate) fn call(op: &str, args: &Value, ins: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    let tensor = |i: usize| ins[i].as_ref().unwrap();
    let x = tensor(0);
    let at = |i: usize| ins.get(i).and_then(Option::as_ref);
    match op {
        "add_rms_norm" => return x.add_rms_norm(tensor(1), at(2), 1e-5).map(|(sum, y)| vec![sum, y]),
        "add_layer_norm" => {
            return x.add_layer_norm(tensor(1), at(2), at(3), 1e-5).map(|(sum, y)| vec![sum, y]);
        }
        "batch_norm" | "batch_norm_relu" => return batch_norm(op, args, ins),
        _ => {}
    }
    Ok(vec![match op {
        "rotary" => {
            let halves = args["form"] == "halves";
            x.apply_rotary(tensor(1), tensor(2), if halves { Rotary::Halves } else { Rotary::Interleaved })?
        }
        "activation_linear" => x.activation_linear(activation(args), tensor(1), at(2))?,
        "linear_activation" => x.linear_activation(activation(args), tensor(1), at(2))?,
        "elementwise" => elementwise(x, args)?,
        "swiglu" => x.swiglu(tensor(1))?,
        "l1_loss" => x.l1_loss(tensor(1), reduction(args))?,
        "smooth_l1_loss" => x.smooth_l1_loss(tensor(1), number(&args["beta"]), reduction(args))?,
        "huber_loss" => x.huber_loss(tensor(1), number(&args["delta"]), reduction(args))?,
        "kl_div" => x.kl_div(tensor(1), args["log_target"] == true, reduction(args))?,
        "binary_cross_entropy" => x.binary_cross_entropy(tensor(1), at(2), reduction(args))?,
        "binary_cross_entropy_with_logits" => {
            x.binary_cross_entropy_with_logits(tensor(1), at(2), at(3), reduction(args))?
        }
        "rms_norm" => x.rms_norm(at(1), 1e-5)?,
        "group_norm" => x.group_norm(size(&args["groups"]), at(1), at(2), 1e-5)?,
        "attention" => {
            x.scaled_dot_product_attention(tensor(1), tensor(2), attention(args, ins[3].as_ref()))?
        }
        "packed_attention" => {
            x.packed_attention(size(&args["heads"]), size(&args["kv_heads"]), attention(args, None))?
        }
        "nll_loss" => x.nll_loss_with(tensor(1), cross_entropy(args, ins[2].as_ref()))?,
        "cross_entropy" => x.cross_entropy_with(tensor(1), cross_entropy(args, ins[2].as_ref()))?,
        "linear_cross_entropy" => {
            let options = cross_entropy(args, ins[4].as_ref());
            x.linear_cross_entropy(tensor(1), ins[2].as_ref(), tensor(3), options)?
        }
        _ => panic!("no call for the operation {op}"),
    }])
}

fn activation(args: &Value) -> Activation {
    match args["activation"].as_str().unwrap() {
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        _ => Activation::Silu,
    }
}

fn elementwise(x: &Tensor, args: &Value) -> Result<Tensor> {
    match args["f"].as_str().unwrap() {
        "silu" => x.silu(),
        "hardswish" => x.hardswish(),
        "hardsigmoid" => x.hardsigmoid(),
        "hardtanh" => x.hardtanh(number(&args["min_val"]), number(&args["max_val"])),
        "clamp" => x.clamp(number(&args["min"]), number(&args["max"])),
        "leaky_relu" => x.leaky_relu(number(&args["negative_slope"])),
        "elu" => x.elu(number(&args["alpha"])),
        "softplus" => x.softplus(),
        "logsigmoid" => x.log_sigmoid(),
        "mish" => x.mish(),
        other => panic!("no call for {other}"),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The output, and the updated running statistics.
fn batch_norm(op: &str, args: &Value, ins: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    let at = |i: usize| ins[i].as_ref();
    let x = at(0).unwrap();
    let running = at(1).map(|mean| (mean, at(2).unwrap()));
    let options = BatchNormOptions { training: args["training"] == true, momentum: 0.3, eps: 1e-5 };
    let y = match op {
        "batch_norm" => x.batch_norm(running, at(3), at(4), options)?,
        _ => x.batch_norm_relu(running, at(3), at(4), options)?,
    };
    Ok([Some(y), at(1).cloned(), at(2).cloned()].into_iter().flatten().collect())
}

fn attention<'a>(args: &Value, attn_mask: Option<&'a Tensor>) -> AttentionOptions<'a> {
    AttentionOptions {
        attn_mask,
        is_causal: args["is_causal"] == true,
        scale: args["scale"].as_f64(),
        enable_gqa: args["enable_gqa"] == true,
        dropout_p: 0.0,
    }
}

fn cross_entropy<'a>(args: &Value, weight: Option<&'a Tensor>) -> CrossEntropyOptions<'a> {
    CrossEntropyOptions {
        weight,
        ignore_index: args["ignore_index"].as_i64().unwrap_or(-100),
        label_smoothing: args["label_smoothing"].as_f64().unwrap_or(0.0),
        reduction: reduction(args),
    }
}

fn reduction(args: &Value) -> Reduction {
    match args["reduction"].as_str() {
        Some("none") => Reduction::None,
        Some("sum") => Reduction::Sum,
        _ => Reduction::Mean,
    }
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}
