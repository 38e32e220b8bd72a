//! Compares the peak memory of the usual techniques on a simulated device with PyTorch's for the same programs
//! (`fixtures/techniques.json`, made by `fixtures/make_techniques.py`). The programs are in the script's order.

use std::collections::BTreeMap;

use plimsoll::checkpoint::{Step, checkpoint_sequential};
use plimsoll::nn::{Linear, Module, Scope, Sequential};
use plimsoll::optim::{
    AdagradOptions, AdamOptions, AdamW8bitOptions, AdamWOptions, Algorithm, Optimizer, OptimizerOf,
    RmsPropOptions, SgdOptions, clip_grad_norm_, step_in_backward,
};
use plimsoll::save_on_cpu::{HostMemory, save_on_cpu};
use plimsoll::{DType, Device, Result, SimConfig, Tensor, autocast, inference_mode, no_grad};
use serde_json::Value;

const WIDTH: usize = 1024;
const DEPTH: usize = 8;
/// With this batch size, activations take most of the memory.
const BATCH: usize = 2048;
/// With this batch size, parameters, gradients and optimizer state take most of it.
const SMALL: usize = 32;
const STEPS: usize = 3;

fn gpu() -> Device {
    Device::sim(SimConfig::new(1 << 40))
}

fn model(device: &Device) -> Sequential {
    let mut layers = 0..DEPTH;
    let scope = Scope::new(device, 1);
    layers
        .try_fold(Sequential::new(&scope), |model: Sequential, i| {
            model.add(&format!("fc{i}"), |s| Linear::new(s, WIDTH, WIDTH))
        })
        .unwrap()
}

/// Each linear layer, followed by a GELU.
fn forward(model: &Sequential, x: Tensor) -> Result<Tensor> {
    (0..DEPTH).try_fold(x, |x, i| model.get(&format!("fc{i}")).unwrap().forward(&x)?.gelu())
}

fn batch(device: &Device, rows: usize) -> Tensor {
    Tensor::ones(&[rows, WIDTH], device).unwrap()
}

fn loss(model: &Sequential, x: Tensor) -> Result<Tensor> {
    forward(model, x)?.square()?.mean()
}

fn sgd() -> SgdOptions {
    SgdOptions { lr: 0.1, ..SgdOptions::default() }
}

/// The peak of three steps, each of which leaves its gradients allocated.
fn trained<O: Algorithm>(options: O, step: impl Fn(&Sequential) -> Result<()>) -> u64 {
    let device = gpu();
    let model = model(&device);
    let mut optimizer = OptimizerOf::new(model.parameters(), options);
    for _ in 0..STEPS {
        step(&model).unwrap();
        optimizer.step().unwrap();
        optimizer.zero_grad();
    }
    device.max_memory_allocated()
}

fn plain(model: &Sequential) -> Result<()> {
    loss(model, batch(&on(model), BATCH))?.backward()
}

fn small(model: &Sequential) -> Result<()> {
    loss(model, batch(&on(model), SMALL))?.backward()
}

fn on(model: &Sequential) -> Device {
    model.parameters()[0].device().clone()
}

/// The peak of each program here.
fn peaks() -> BTreeMap<&'static str, u64> {
    let momentum = SgdOptions { momentum: 0.9, ..sgd() };
    let amsgrad = AdamOptions { amsgrad: true, ..AdamOptions::default() };
    let adamw = trained(AdamWOptions::default(), small);
    let saved_on_cpu = |model: &Sequential| -> Result<()> {
        let value = save_on_cpu(HostMemory::Pinned, || loss(model, batch(&on(model), BATCH)))?;
        value.backward()
    };
    let checkpointed = |model: &Sequential| -> Result<()> {
        let parameters = model.parameters();
        let mut steps = Vec::new();
        for pair in parameters.chunks(2) {
            let (weight, bias) = (pair[0].clone(), pair[1].clone());
            steps.push(Step::new(move |x| x.linear(&weight, Some(&bias))));
            steps.push(Step::new(Tensor::gelu));
        }
        checkpoint_sequential(&steps, 4, &batch(&on(model), BATCH))?.square()?.mean()?.backward()
    };
    let accumulated = |model: &Sequential| -> Result<()> {
        for _ in 0..4 {
            loss(model, batch(&on(model), BATCH / 4))?.div_scalar(4)?.backward()?;
        }
        clip_grad_norm_(&model.parameters(), 1.0, 2.0).map(drop)
    };
    let cast = |model: &Sequential| -> Result<()> {
        autocast::autocast(DType::BF16, || loss(model, batch(&on(model), BATCH)))?.backward()
    };
    BTreeMap::from([
        ("plain", trained(sgd(), plain)),
        ("small batch", trained(sgd(), small)),
        ("momentum", trained(momentum, small)),
        ("adamw", adamw),
        ("adamw fused", adamw),
        ("adam amsgrad, fused", trained(amsgrad, small)),
        ("adagrad", trained(AdagradOptions::default(), small)),
        ("rmsprop", trained(RmsPropOptions::default(), small)),
        ("save_on_cpu", trained(sgd(), saved_on_cpu)),
        ("checkpoint_sequential", trained(sgd(), checkpointed)),
        ("accumulate and clip", trained(sgd(), accumulated)),
        ("step in backward", stepped_in_backward()),
        ("autocast", trained(sgd(), cast)),
        ("no_grad", forward_only(|device| no_grad(|| forward(&model(device), batch(device, BATCH))))),
        ("inference_mode, streamed to the host", streamed()),
        ("half, inference", halved(Module::half)),
        ("bfloat16, inference", halved(Module::bfloat16)),
        ("bfloat16 of a model with gradients", converted_with_gradients()),
    ])
}

fn stepped_in_backward() -> u64 {
    let device = gpu();
    let model = model(&device);
    let _steps = step_in_backward(&model.parameters(), sgd()).unwrap();
    for _ in 0..STEPS {
        small(&model).unwrap();
    }
    device.max_memory_allocated()
}

fn forward_only(run: impl Fn(&Device) -> Result<Tensor>) -> u64 {
    let device = gpu();
    run(&device).unwrap();
    device.max_memory_allocated()
}

/// The peak of converting a model to a 16-bit type and running it, which is reached in the conversion or in the forward pass.
fn halved(convert: impl Fn(&mut Sequential) -> Result<()>) -> u64 {
    forward_only(|device| {
        let mut model = model(device);
        convert(&mut model)?;
        let dtype = model.parameters()[0].dtype();
        no_grad(|| forward(&model, batch(device, SMALL).to_dtype(dtype)?))
    })
}

/// The peak when gradients are converted with their parameters.
fn converted_with_gradients() -> u64 {
    forward_only(|device| {
        let mut model = model(device);
        small(&model)?;
        model.bfloat16()?;
        no_grad(|| forward(&model, batch(device, SMALL).bfloat16()?))
    })
}

/// A second simulated device stands for the host, so no values are copied.
fn streamed() -> u64 {
    let (device, host) = (gpu(), gpu());
    let model = model(&device);
    let mut outputs = Vec::new();
    for _ in 0..4 {
        let output = inference_mode(|| forward(&model, batch(&device, BATCH))).unwrap();
        outputs.push(output.to_device(&host).unwrap());
    }
    device.max_memory_allocated()
}

#[test]
fn every_technique_takes_at_most_pytorchs_memory() {
    let table: Value = serde_json::from_str(include_str!("fixtures/techniques.json")).unwrap();
    let ours = peaks();
    let recorded: BTreeMap<&str, u64> = table
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, peak)| (name.as_str(), peak.as_u64().unwrap()))
        .collect();
    assert_eq!(ours.keys().collect::<Vec<_>>(), recorded.keys().collect::<Vec<_>>());
    let rows: String = ours
        .iter()
        .map(|(name, ours)| {
            let pytorch = recorded[name];
            format!("{name}: {ours}, PyTorch's {pytorch}, {:.2}\n", *ours as f64 / pytorch as f64)
        })
        .collect();
    println!("{rows}");
    assert!(ours.iter().all(|(name, ours)| *ours <= recorded[name]), "\n{rows}");
}

#[test]
fn every_technique_saves_what_it_is_for() {
    let peaks = peaks();
    let (activation, weights) = ((BATCH * WIDTH * 4) as u64, (DEPTH * (WIDTH + 1) * WIDTH * 4) as u64);
    let saved = |from: &str, name: &str| peaks[from] - peaks[name];
    // Sixteen tensors are saved; the gradients take as much memory as four of them.
    assert!(saved("plain", "save_on_cpu") >= 8 * activation, "a few saved tensors are there at a time");
    assert!(
        saved("plain", "checkpoint_sequential") >= 6 * activation,
        "three of four segments keep an input only"
    );
    assert!(saved("plain", "accumulate and clip") >= 9 * activation, "a quarter of each activation");
    assert!(saved("small batch", "step in backward") >= weights * 3 / 4, "one layer's gradients at a time");
    assert!(saved("plain", "inference_mode, streamed to the host") >= 12 * activation, "nothing is saved");
    let (matrices, blocks) = ((DEPTH * WIDTH * WIDTH) as u64, (DEPTH * WIDTH * WIDTH / 256) as u64);
    let in_8_bits = trained(AdamW8bitOptions::default(), small);
    assert_eq!(
        peaks["adamw"] - in_8_bits,
        6 * matrices - 8 * blocks,
        "two bytes for each element of a matrix"
    );
    assert!(peaks["adam amsgrad, fused"] >= peaks["adamw"] + weights, "a third buffer");
}
