//! Compares operators on an NVIDIA GPU with the host's at the sizes of real models, because the sizes decide which kernels run.
//! The suite of `check_operators` has small sizes. `cargo run --release --example check_sizes -- cuda:0`.
//!
//! Every value and gradient may differ by the rounding error of its type, relative to the largest value of its tensor.

#![allow(clippy::print_stdout, reason = "an example")]

mod support;

use plimsoll::{
    Activation, Conv2dOptions, CrossEntropyOptions, DType, Device, MaxPoolOptions, MemoryFormat, Result,
    Tensor, allow_tf32_in_convolutions,
};
use support::{Arguments, Failure};

/// Pseudorandom numbers between -1 and 1, in a type's precision, on a device.
fn drawn(seed: u64, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let number = |i: u64| {
        let x = (i + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
        let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((x >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    };
    let all: Vec<f32> = (0..shape.iter().product::<usize>() as u64).map(number).collect();
    Tensor::from_slice(&all, shape, device)?.to_dtype(dtype)?.detach().requires_grad_(true)
}

/// Pseudorandom integers below a limit.
fn whole(seed: i64, count: usize, limit: i64, device: &Device) -> Result<Tensor> {
    let all: Vec<i64> =
        (0..count as i64).map(|i| ((i + seed) * 7919 * (i % 13 + 1)).rem_euclid(limit)).collect();
    Tensor::from_slice(&all, &[count], device)
}

/// A loss whose gradient differs from element to element.
fn weighted(x: &Tensor, device: &Device) -> Result<Tensor> {
    x.mul(drawn(99, x.shape(), x.dtype(), device)?.detach())?.sum()
}

/// Returns the outputs followed by the gradients of the inputs.
fn after_backward(outputs: Vec<Tensor>, loss: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    loss.backward()?;
    Ok(outputs.into_iter().chain(inputs.iter().filter_map(|x| x.grad())).collect())
}

type Program = fn(DType, &Device) -> Result<Vec<Tensor>>;

fn embedding(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let table = drawn(1, &[700, 80], dtype, device)?;
    let out = whole(3, 5000, 700, device)?.embedding(&table, Some(4))?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&table])
}

fn max_pool(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let x = drawn(2, &[3, 32, 23, 21], dtype, device)?;
    let pooled = x.to_memory_format(MemoryFormat::ChannelsLast)?;
    let out =
        pooled.max_pool2d(MaxPoolOptions { stride: [2, 2], padding: [1, 1], ..MaxPoolOptions::square(3) })?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x])
}

fn three_colors(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let x = drawn(4, &[3, 3, 30, 34], dtype, device)?;
    let weight = drawn(5, &[32, 3, 7, 7], dtype, device)?;
    let (images, filters) = (
        x.to_memory_format(MemoryFormat::ChannelsLast)?,
        weight.to_memory_format(MemoryFormat::ChannelsLast)?,
    );
    let options = Conv2dOptions { stride: [2, 2], padding: [3, 3].into(), ..Conv2dOptions::default() };
    let out = images.conv2d(&filters, None, options)?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x, &weight])
}

fn few_filters(last: bool, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (x, weight) = (drawn(12, &[9, 2, 28, 26], dtype, device)?, drawn(13, &[30, 2, 5, 3], dtype, device)?);
    let format = if last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
    let (images, filters) = (x.to_memory_format(format)?, weight.to_memory_format(format)?);
    let options = Conv2dOptions {
        stride: [1, 2],
        padding: [2, 1].into(),
        dilation: [1, 2],
        ..Conv2dOptions::default()
    };
    let out = images.conv2d(&filters, None, options)?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x, &weight])
}

/// The sizes of a convolution of small images: images, filters, stride, padding, dilation.
type Small = ([usize; 4], [usize; 4], [usize; 2], [usize; 2], [usize; 2]);

const SMALL: [Small; 6] = [
    ([64, 1, 28, 28], [32, 1, 5, 5], [1, 1], [2, 2], [1, 1]),
    ([64, 32, 14, 14], [64, 32, 5, 5], [1, 1], [0, 0], [1, 1]),
    ([7, 20, 9, 11], [10, 20, 3, 3], [1, 1], [1, 1], [1, 2]),
    ([9, 3, 17, 15], [12, 3, 3, 5], [2, 3], [1, 2], [1, 1]),
    ([5, 24, 1, 90], [33, 24, 1, 4], [1, 1], [0, 5], [1, 1]),
    ([32, 64, 16, 16], [64, 64, 3, 3], [1, 1], [1, 1], [1, 1]),
];

/// `NUMBER` selects the sizes and, from `SMALL.len()` on, channels-last.
fn small<const NUMBER: usize>(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (images, filters, stride, padding, dilation) = SMALL[NUMBER % SMALL.len()];
    let (x, weight) = (drawn(15, &images, dtype, device)?, drawn(16, &filters, dtype, device)?);
    let bias = drawn(17, &filters[..1], dtype, device)?;
    let last = NUMBER >= SMALL.len();
    let format = if last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
    let (images, filters) = (x.to_memory_format(format)?, weight.to_memory_format(format)?);
    let options = Conv2dOptions { stride, padding: padding.into(), dilation, ..Conv2dOptions::default() };
    let out = images.conv2d(&filters, Some(&bias), options)?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x, &weight, &bias])
}

fn many_elements(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let x = drawn(14, &[4100, 2056], dtype, device)?;
    let out = x.gelu_tanh()?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x])
}

fn norm(cols: usize, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (x, residual) = (drawn(6, &[333, cols], dtype, device)?, drawn(7, &[333, cols], dtype, device)?);
    let (weight, bias) = (drawn(8, &[cols], dtype, device)?, drawn(9, &[cols], dtype, device)?);
    let (out, sum) = x.add_layer_norm(&residual, Some(&weight), Some(&bias), 1e-5)?;
    let loss = weighted(&out, device)?.add(&weighted(&sum, device)?)?;
    after_backward(vec![out, sum], &loss, &[&x, &residual, &weight, &bias])
}

fn vocabulary(classes: usize, label_smoothing: f64, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (x, weight) = (drawn(10, &[300, 64], dtype, device)?, drawn(11, &[classes, 64], dtype, device)?);
    let target = whole(5, 300, classes as i64, device)?;
    // Rows with this class are ignored.
    let ignored = target.to_vec::<i64>()?[7];
    let options =
        CrossEntropyOptions { ignore_index: ignored, label_smoothing, ..CrossEntropyOptions::default() };
    let loss = x.linear_cross_entropy(&weight, None, &target, options)?;
    after_backward(vec![loss.clone()], &loss, &[&x, &weight])
}

/// An MLP: two products with biases and an activation between them, added to a residual stream.
fn perceptron(activation: Activation, inner: usize, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (rows, width) = (1003, 520);
    let x = drawn(20, &[rows, width], dtype, device)?;
    let (up, down) = (drawn(21, &[width, inner], dtype, device)?, drawn(22, &[width, inner], dtype, device)?);
    let (bias, last) = (drawn(23, &[inner], dtype, device)?, drawn(24, &[width], dtype, device)?);
    let (scale, shift) = (drawn(25, &[width], dtype, device)?, drawn(26, &[width], dtype, device)?);
    // Small values, like those between a model's layers.
    let wide = x.mul_scalar(0.1)?.linear_in_out(&up, Some(&bias))?;
    let part = wide.activation_linear(activation, &down.mul_scalar(0.05)?, Some(&last))?;
    drop(wide);
    let (out, sum) = part.add_layer_norm(&x, Some(&scale), Some(&shift), 1e-5)?;
    drop(part);
    let loss = weighted(&out, device)?.add(&weighted(&sum, device)?)?;
    after_backward(vec![out, sum], &loss, &[&x, &up, &bias, &down, &last, &scale, &shift])
}

fn repeated_rows(dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let (x, row) = (drawn(27, &[5, 60, 96], dtype, device)?, drawn(28, &[60, 96], dtype, device)?);
    let column = drawn(29, &[5, 60, 1], dtype, device)?;
    let out = x.add(&row)?.mul(&column)?;
    let loss = weighted(&out, device)?;
    after_backward(vec![out], &loss, &[&x, &row, &column])
}

/// The largest difference, relative to the largest value.
fn difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (a, b) = (a.to_dtype(DType::F64)?.to_vec::<f64>()?, b.to_dtype(DType::F64)?.to_vec::<f64>()?);
    let largest = a.iter().fold(1e-30, |largest: f64, x| largest.max(x.abs()));
    let off = a.iter().zip(&b).fold(0.0, |most: f64, (a, b)| {
        if a.is_nan() == b.is_nan() { most.max((a - b).abs()) } else { f64::INFINITY }
    });
    Ok(off / largest)
}

fn main() -> std::result::Result<(), Failure> {
    let device = Arguments::read().device()?;
    let programs: [(&str, Program); 20] = [
        ("GELU of 8 million elements", many_elements),
        ("embedding of 5,000 indices", embedding),
        ("max pooling of 32 channels, channels-last", max_pool),
        ("convolution of three colors, channels-last", three_colors),
        ("convolution of few filters, channels-last", |dtype, device| few_filters(true, dtype, device)),
        ("convolution of few filters, row-major", |dtype, device| few_filters(false, dtype, device)),
        ("residual and layer norm, rows of 80", |dtype, device| norm(80, dtype, device)),
        ("residual and layer norm, rows of 768", |dtype, device| norm(768, dtype, device)),
        ("residual and layer norm, rows of 1,000", |dtype, device| norm(1000, dtype, device)),
        ("residual and layer norm, rows of 1,600", |dtype, device| norm(1600, dtype, device)),
        ("residual and layer norm, rows of 1,601", |dtype, device| norm(1601, dtype, device)),
        ("perceptron with GELU by tanh", |dtype, device| {
            perceptron(Activation::GeluTanh, 2080, dtype, device)
        }),
        ("perceptron with GELU, 4,100 wide", |dtype, device| {
            perceptron(Activation::Gelu, 4100, dtype, device)
        }),
        ("perceptron with SiLU, 999 wide", |dtype, device| perceptron(Activation::Silu, 999, dtype, device)),
        ("perceptron with GELU, 512 wide", |dtype, device| perceptron(Activation::Gelu, 512, dtype, device)),
        ("rows and columns repeated", repeated_rows),
        ("loss over 3,003 classes", |dtype, device| vocabulary(3_003, 0.0, dtype, device)),
        ("loss over 50,257 classes", |dtype, device| vocabulary(50_257, 0.0, dtype, device)),
        ("loss over 20,002 classes, smoothed", |dtype, device| vocabulary(20_002, 0.1, dtype, device)),
        ("loss over 70,001 classes", |dtype, device| vocabulary(70_001, 0.0, dtype, device)),
    ];
    let small: [Program; 12] = [
        small::<0>,
        small::<1>,
        small::<2>,
        small::<3>,
        small::<4>,
        small::<5>,
        small::<6>,
        small::<7>,
        small::<8>,
        small::<9>,
        small::<10>,
        small::<11>,
    ];
    let small = small.map(|program| ("convolution of small images in TF32", program));
    let types = [(DType::F32, 1e-4), (DType::BF16, 3e-2), (DType::F16, 6e-3)];
    let exact = programs.into_iter().map(|program| (program, false, &types[..]));
    let small = small.into_iter().map(|program| (program, true, &[(DType::F32, 2e-3)][..]));
    let mut differ = 0;
    for ((name, program), tf32, types) in exact.chain(small) {
        allow_tf32_in_convolutions(tf32);
        for &(dtype, limit) in types {
            let (here, there) = (program(dtype, &Device::cpu())?, program(dtype, &device)?);
            let all: Vec<f64> =
                here.iter().zip(&there).map(|(a, b)| difference(a, b)).collect::<Result<_>>()?;
            let most = all.iter().copied().fold(0.0, f64::max);
            let agrees = most <= limit && here.len() == there.len();
            differ += usize::from(!agrees);
            let shown: Vec<String> = all.iter().map(|x| format!("{x:.1e}")).collect();
            println!(
                "{} {name} in {dtype:?}: {}",
                if agrees { "agrees " } else { "DIFFERS" },
                shown.join(" ")
            );
        }
    }
    if differ == 0 { Ok(()) } else { Err(format!("{differ} differ").into()) }
}
