//! Attention: its memory, its layouts, its second derivative, its random numbers and its errors.

use plimsoll_tensor::{
    AttentionOptions, BackwardOptions, CpuConfig, DType, Device, Result, SimConfig, Tensor,
};

use crate::second::check_second;

fn causal() -> AttentionOptions<'static> {
    AttentionOptions { is_causal: true, ..AttentionOptions::default() }
}

/// Peak memory above the inputs, of a forward and backward pass over sequences of this length: with separate operands and
/// packed.
fn peaks(rows: usize, dtype: DType) -> [u64; 2] {
    let sums = if dtype == DType::F64 { 8 } else { 4 };
    let kept = (2 * rows * 8 * (64 * dtype.size() + sums)) as u64;
    [false, true].map(|packed| {
        let device = Device::sim(SimConfig::new(1 << 40));
        let qkv = Tensor::zeros(&[2, rows, 3 * 8 * 64], &device).unwrap().to_dtype(dtype).unwrap();
        let qkv = qkv.requires_grad_(true).unwrap();
        let before = device.memory_allocated();
        device.reset_peak_memory_stats();
        let y = if packed {
            qkv.packed_attention(8, 8, causal()).unwrap()
        } else {
            let part = |i: usize| {
                let part = qkv.narrow(2, i * 512, 512).unwrap().reshape([2, rows, 8, 64].as_slice()).unwrap();
                part.transpose(1, 2).unwrap()
            };
            let y = part(0).scaled_dot_product_attention(part(1), part(2), causal()).unwrap();
            assert_eq!(device.memory_allocated() - before, kept, "nothing is gathered");
            y.transpose(1, 2).unwrap().reshape([2, rows, 512].as_slice()).unwrap()
        };
        assert_eq!(device.memory_allocated() - before, kept, "nor is the output");
        y.sum().unwrap().backward().unwrap();
        device.max_memory_allocated() - before
    })
}

#[test]
fn memory_grows_with_the_sequence_never_with_its_square() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let [short, long] = [peaks(4096, dtype), peaks(16384, dtype)];
        for (short, long) in short.into_iter().zip(long) {
            let ratio = long as f64 / short as f64;
            assert!((3.0..4.01).contains(&ratio), "{dtype}: {short} to {long}: {ratio}");
        }
        // The scores of a single head would take 1 GiB in 32 bits.
        assert!(long[1] < 1 << 30 && long[1] < long[0] * 5 / 6, "{dtype}: {long:?}");
    }
}

/// Peak memory of a pass, not counting its results: forward and backward.
fn beside(device: &Device, dtype: DType) -> [u64; 2] {
    let operand = || {
        let zeros = Tensor::zeros(&[1, 4, 300, 64], device).unwrap();
        zeros.to_dtype(dtype).unwrap().requires_grad_(true).unwrap()
    };
    let (q, k, v) = (operand(), operand(), operand());
    let of_one = (4 * 300 * 64 * dtype.size()) as u64;
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    let y = q.scaled_dot_product_attention(&k, &v, causal()).unwrap();
    let forward = device.max_memory_allocated() - before - of_one;
    let gradient = Some(y.detach());
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    y.backward_with(BackwardOptions { gradient, ..BackwardOptions::default() }).unwrap();
    [forward, device.max_memory_allocated() - before - 3 * of_one]
}

#[test]
fn attention_of_any_type_copies_no_operand() {
    for device in [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(1 << 30))] {
        let expected = beside(&device, DType::F32);
        for dtype in [DType::BF16, DType::F16] {
            assert_eq!(beside(&device, dtype), expected, "{dtype}");
        }
        for (wide, expected) in beside(&device, DType::F64).into_iter().zip(expected) {
            assert!(wide <= 2 * expected, "in 64 bits {wide}, in 32 {expected}");
        }
    }
}

#[test]
fn the_derivative_has_a_derivative() {
    let part = |x: &Tensor, i: usize| x.narrow(0, i, 1)?.unsqueeze(0);
    let mask = Tensor::from_slice(&[0.5f32, f32::NEG_INFINITY, 0.1, 0.0], &[2, 2], &Device::cpu()).unwrap();
    let with = |x: &Tensor, options: AttentionOptions<'_>| -> Result<Tensor> {
        part(x, 0)?.scaled_dot_product_attention(&part(x, 1)?, &part(x, 2)?, options)
    };
    check_second("plain", &[3, 2, 2], |x| with(x, AttentionOptions::default()));
    check_second("causal", &[3, 2, 2], |x| with(x, causal()));
    let masked = AttentionOptions { attn_mask: Some(&mask), ..AttentionOptions::default() };
    check_second("masked", &[3, 2, 2], |x| with(x, masked));
    check_second("by the mask", &[2, 2], |x| {
        let attn_mask = Some(x);
        let q = Tensor::from_slice(&[0.7f32, -0.2, 0.4, 1.1], &[1, 2, 2], &Device::cpu())?;
        let v = Tensor::from_slice(&[0.3f32, -0.8, 0.9, 0.2], &[1, 2, 2], &Device::cpu())?;
        q.scaled_dot_product_attention(&q, &v, AttentionOptions { attn_mask, ..AttentionOptions::default() })
    });
    check_second("packed", &[1, 2, 8], |x| x.packed_attention(2, 1, causal()));
}

#[test]
fn dropout_follows_the_devices_seed_and_keeps_the_mean() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[1, 2, 64, 8], &device).unwrap();
    let run = || {
        let options = AttentionOptions { dropout_p: 0.5, ..AttentionOptions::default() };
        x.scaled_dot_product_attention(&x, &x, options).unwrap().to_vec::<f32>().unwrap()
    };
    device.manual_seed(7);
    let (first, second) = (run(), run());
    device.manual_seed(7);
    assert_eq!(run(), first);
    assert_ne!(first, second);
    let mean = first.iter().sum::<f32>() / first.len() as f32;
    assert!((mean - 1.0).abs() < 0.1 && first.iter().any(|&x| x != 1.0), "{mean}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_shapes() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let zeros = |shape: &[usize]| Tensor::zeros(shape, &device).unwrap();
    let (q, k) = (zeros(&[1, 4, 3, 8]), zeros(&[1, 2, 5, 8]));
    let refused = |q: &Tensor, k: &Tensor, options: AttentionOptions<'_>| {
        q.scaled_dot_product_attention(k, k, options).unwrap_err().to_string()
    };
    let plain = AttentionOptions::default();
    assert!(refused(&q, &k, plain).contains("only `enable_gqa` shares heads"));
    let shared = AttentionOptions { enable_gqa: true, ..plain };
    assert!(refused(&zeros(&[1, 3, 3, 8]), &k, shared).contains("[1, 3, 3, 8]"));
    assert!(refused(&q, &zeros(&[1, 4, 5, 7]), plain).contains("[1, 4, 5, 7]"));
    assert!(refused(&zeros(&[8]), &zeros(&[8]), plain).contains("two or more dimensions"));
    let mask = zeros(&[2, 5]);
    let masked = AttentionOptions { attn_mask: Some(&mask), ..plain };
    let error = refused(&q, &zeros(&[1, 4, 5, 8]), masked);
    assert_eq!(
        error,
        "scaled_dot_product_attention: a mask [1, 1, 2, 5] does not broadcast to the scores [1, 4, 3, 5] [batch, heads, \
         queries, keys]"
    );
    let both = AttentionOptions { is_causal: true, ..masked };
    assert!(refused(&q, &q, both).contains("both attn_mask and is_causal"));
    for dropout_p in [-0.1, 1.5, f64::NAN] {
        assert!(
            refused(&q, &q, AttentionOptions { dropout_p, ..plain })
                .contains("a probability must be from 0 to 1")
        );
    }
    let error = zeros(&[1, 3, 10]).packed_attention(2, 2, plain).unwrap_err().to_string();
    assert!(error.contains("[1, 3, 10] with 2 heads and 2 kv_heads"), "{error}");
}
