//! PyTorch training scripts, ported line by line, whose losses must match PyTorch's: a Siamese network, a character LSTM over
//! packed sequences, a diffusion U-Net, attention over graphs, two GANs, a translator, a detector, a reader of text lines, a
//! masked autoencoder. `fixtures/scripts` has the originals, and `fixtures/make_scripts.py` makes `fixtures/scripts.json`.

mod char_lstm;
mod detector;
mod diffusion;
mod graph;
mod half;
mod masked;
mod reader;
mod siamese;
mod sngan;
mod translator;
mod wgan;

use plimsoll::nn::Module;
use plimsoll::{Device, Result, Tensor, no_grad};
use serde_json::Value;

use crate::on_device;

/// Numbers from -1 to 1, computed as in the script.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    let at = |i: usize| ((12.9898 * i as f64 + 0.7 * seed as f64).sin() * 1000.0) % 1.0;
    (0..count).map(|i| (2.0 * at(i).abs() - 1.0) as f32).collect()
}

fn tensor(seed: usize, shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&noise(shape.iter().product(), seed), shape, device)
}

/// Sets the script's initial values.
fn fill(model: &impl Module) -> Result<()> {
    for (name, parameter) in model.named_parameters() {
        let seed = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
        let shape = parameter.shape();
        let fan_in: usize = if shape.len() > 1 { shape[1..].iter().product() } else { 100 };
        let is_norm = shape.len() == 1 && name.contains("norm") && name.ends_with("weight");
        let start = if is_norm { 1.0 } else { 0.0 };
        let values = tensor(seed, shape, parameter.device())?.mul_scalar((3.0 / fan_in as f64).sqrt())?;
        no_grad(|| parameter.copy_(&values.add_scalar(start)?))?;
    }
    Ok(())
}

/// Checks that losses are within four times PyTorch's own difference between 32 and 64 bits, or a hundred-thousandth; on a GPU
/// the tolerance is four times as large.
fn check(script: &str, losses: &[f32]) {
    let all: Value = serde_json::from_str(include_str!("fixtures/scripts.json")).unwrap();
    let [single, double] = ["float32", "float64"]
        .map(|dtype| serde_json::from_value::<Vec<f64>>(all[script][dtype].clone()).unwrap());
    assert_eq!(losses.len(), double.len(), "{script}");
    for (step, &loss) in losses.iter().enumerate() {
        let allowed = (4.0 * (single[step] - double[step]).abs()).max(1e-5 * double[step].abs().max(0.1));
        let allowed = allowed * on_device::allowance();
        let off = (f64::from(loss) - double[step]).abs();
        assert!(off <= allowed, "{script}, step {step}: {loss}, PyTorch's {} ({off} off)", double[step]);
    }
}

#[test]
fn a_siamese_network_learns_pytorchs_steps() {
    check("siamese", &siamese::losses().unwrap());
}

#[test]
fn an_lstm_of_characters_over_packed_sequences_learns_pytorchs_steps() {
    check("char lstm", &char_lstm::losses().unwrap());
}

#[test]
fn a_diffusion_u_net_learns_pytorchs_steps() {
    check("diffusion", &diffusion::losses().unwrap());
}

#[test]
fn attention_over_graphs_learns_pytorchs_steps() {
    check("graph", &graph::losses().unwrap());
}

#[test]
fn a_gan_with_a_gradient_penalty_learns_pytorchs_steps() {
    check("wgan", &wgan::losses().unwrap());
}

#[test]
fn a_translator_with_attention_learns_pytorchs_steps() {
    check("translator", &translator::losses().unwrap());
}

#[test]
fn a_detector_with_focal_loss_learns_pytorchs_steps() {
    check("detector", &detector::losses().unwrap());
}

#[test]
fn a_gan_with_spectral_and_weight_normalization_learns_pytorchs_steps() {
    check("sngan", &sngan::losses().unwrap());
}

#[test]
fn a_reader_of_text_lines_learns_pytorchs_steps() {
    check("reader", &reader::losses().unwrap());
}

#[test]
fn a_masked_autoencoder_learns_pytorchs_steps() {
    check("masked", &masked::losses().unwrap());
}

/// PyTorch's autocast uses different operator lists on the CPU and on a GPU; ours are the GPU's. Both round to 11 bits.
#[test]
fn training_in_float16_with_a_scaler_skips_and_grows_at_pytorchs_steps() {
    let all: Value = serde_json::from_str(include_str!("fixtures/scripts.json")).unwrap();
    let expected: Vec<f64> = serde_json::from_value(all["half"]["float16"].clone()).unwrap();
    let found = half::losses_and_scales().unwrap();
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.chunks(2).zip(expected.chunks(2)).enumerate() {
        assert!(
            (found[0] - expected[0]).abs() < 4e-3 * on_device::allowance(),
            "step {step}: {found:?}, PyTorch's {expected:?}"
        );
        assert_eq!(found[1], expected[1], "the scale after step {step}");
    }
}
