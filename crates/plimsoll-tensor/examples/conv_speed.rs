//! Measures the time of each pass of convolutions: those of ResNet-18 with a batch of 8, and others. `conv_speed.py` in
//! the same folder measures PyTorch's in the same way.
//!
//! The figure is the CPU time of one thread, the minimum of several runs, so that it can be compared on a busy machine:
//!
//! ```console
//! RAYON_NUM_THREADS=1 cargo run --release -p plimsoll-tensor --example conv_speed [last]
//! python crates/plimsoll-tensor/examples/conv_speed.py [last]
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for a terminal")]

use std::fs;

use plimsoll_tensor::{BackwardOptions, Conv2dOptions, Device, Result, Tensor, no_grad};

/// Input channels, image size, output channels, kernel size, stride, padding, groups, and the number of such layers in
/// ResNet-18.
type Layer = [usize; 8];

const LAYERS: [(&str, Layer); 16] = [
    ("7x7/2 3-64 at 224", [3, 224, 64, 7, 2, 3, 1, 1]),
    ("3x3 64-64 at 56", [64, 56, 64, 3, 1, 1, 1, 4]),
    ("3x3/2 64-128 at 56", [64, 56, 128, 3, 2, 1, 1, 1]),
    ("1x1/2 64-128 at 56", [64, 56, 128, 1, 2, 0, 1, 1]),
    ("3x3 128-128 at 28", [128, 28, 128, 3, 1, 1, 1, 3]),
    ("3x3/2 128-256 at 28", [128, 28, 256, 3, 2, 1, 1, 1]),
    ("1x1/2 128-256 at 28", [128, 28, 256, 1, 2, 0, 1, 1]),
    ("3x3 256-256 at 14", [256, 14, 256, 3, 1, 1, 1, 3]),
    ("3x3/2 256-512 at 14", [256, 14, 512, 3, 2, 1, 1, 1]),
    ("1x1/2 256-512 at 14", [256, 14, 512, 1, 2, 0, 1, 1]),
    ("3x3 512-512 at 7", [512, 7, 512, 3, 1, 1, 1, 3]),
    ("1x1 256-64 at 56", [256, 56, 64, 1, 1, 0, 1, 0]),
    ("1x1 512-2048 at 7", [512, 7, 2048, 1, 1, 0, 1, 0]),
    ("depthwise 3x3 96 at 56", [96, 56, 96, 3, 1, 1, 96, 0]),
    ("depthwise 3x3/2 96 at 56", [96, 56, 96, 3, 2, 1, 96, 0]),
    ("3x3 128 in 32 groups at 56", [128, 56, 128, 3, 1, 1, 32, 0]),
];

/// The CPU time of this thread so far, in ms.
fn processor_ms() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}

/// The minimum time of a run. The clock has a resolution of a few ms, so each measurement covers enough runs to make that
/// error small.
fn least_ms(mut f: impl FnMut()) -> f64 {
    f();
    let round = |f: &mut dyn FnMut()| {
        let (start, mut runs) = (processor_ms(), 0);
        while processor_ms() - start < 60.0 {
            f();
            runs += 1;
        }
        (processor_ms() - start) / f64::from(runs)
    };
    (0..5).map(|_| round(&mut f)).fold(f64::MAX, f64::min)
}

/// A copy in the channels-last layout.
fn channels_last(x: &Tensor) -> Result<Tensor> {
    x.permute(&[0, 2, 3, 1])?.contiguous()?.permute(&[0, 3, 1, 2])
}

fn main() -> Result<()> {
    let last = std::env::args().nth(1).as_deref() == Some("last");
    let device = Device::cpu();
    let lying = |x: Tensor| if last { channels_last(&x) } else { Ok(x) };
    println!("{:<28}{:>7}{:>10}{:>10}{:>10}", "ms, batch 8", "GFLOP", "forward", "to input", "to weight");
    let mut total = 0.0;
    for (name, [inputs, size, outputs, kernel, stride, padding, groups, times]) in LAYERS {
        let x = lying(Tensor::randn(&[8, inputs, size, size], &device)?)?;
        let w = lying(Tensor::randn(&[outputs, inputs / groups, kernel, kernel], &device)?)?;
        let padding = [padding; 2].into();
        let options = Conv2dOptions { stride: [stride; 2], padding, groups, ..Default::default() };
        let y = x.conv2d(&w, None, options)?;
        let grad = lying(Tensor::randn(y.shape(), &device)?)?;
        let forward = least_ms(|| drop(no_grad(|| x.conv2d(&w, None, options)).unwrap()));
        let backward = |x: &Tensor, w: &Tensor| -> Result<f64> {
            let y = x.conv2d(w, None, options)?;
            let run = || {
                let gradient = Some(grad.clone());
                y.backward_with(BackwardOptions { gradient, retain_graph: true, ..Default::default() })
                    .unwrap();
                x.clear_grad();
                w.clear_grad();
            };
            Ok(least_ms(run))
        };
        let to_input = backward(&x.detach().requires_grad_(true)?, &w)?;
        let to_weight = backward(&x, &w.detach().requires_grad_(true)?)?;
        let flops = 2 * y.numel() * inputs / groups * kernel * kernel;
        println!("{name:<28}{:>7.2}{forward:>10.2}{to_input:>10.2}{to_weight:>10.2}", flops as f64 / 1e9);
        // The gradient of the images is not needed.
        let of_input = if inputs == 3 { 0.0 } else { to_input };
        total += times as f64 * (forward + of_input + to_weight);
    }
    println!("{:<28}{total:>37.1}", "all of ResNet-18");
    Ok(())
}
