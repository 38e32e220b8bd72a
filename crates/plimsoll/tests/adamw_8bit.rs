//! Compares [`AdamW8bit`] with bitsandbytes (`fixtures/adamw_8bit.json` and `.pt`, made by `fixtures/make_adamw_8bit.py`).

use plimsoll::nn::{Linear, Module, Scope, Sequential, Tanh};
use plimsoll::optim::{
    AdamW, AdamW8bit, AdamW8bitOptions, AdamWOptions, Optimizer, OptimizerState, ParamState, step_in_backward,
};
use plimsoll::parallel::{FullyShardOptions, fully_shard};
use plimsoll::serialize::{Checkpoint, PtFile, Strict};
use plimsoll::testing::LateConfig;
use plimsoll::{
    CapturedStep, CpuConfig, DType, Device, MemoryFormat, ProcessGroup, Result, SimConfig, Tensor,
};
use serde_json::Value;

use crate::on_device::{allowance, device};

fn table() -> Value {
    serde_json::from_str(include_str!("fixtures/adamw_8bit.json")).unwrap()
}

fn numbers(recorded: &Value) -> Vec<f32> {
    recorded.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The script's numbers of the same name.
fn start(count: u64, salt: u64) -> Vec<f32> {
    let number = |i: u64| ((i * 2_654_435_761 + salt * 977) % 1000) as f32 * 2.0 - 999.0;
    (0..count).map(|i| number(i) / 1024.0).collect()
}

const SHAPE: [usize; 2] = [20, 33];
const COUNT: u64 = 660;
const STEPS: u64 = 6;

fn options(min_8bit_size: usize) -> AdamW8bitOptions {
    AdamW8bitOptions { lr: 0.01, betas: (0.9, 0.99), weight_decay: 0.1, min_8bit_size, ..Default::default() }
}

/// Takes the recorded steps, with the gradients of `grad`.
fn walk(
    device: &Device,
    dtype: DType,
    options: AdamW8bitOptions,
    grad: impl Fn(u64) -> Vec<f32>,
) -> (Vec<f32>, ParamState) {
    let of = |values: &[f32]| Tensor::from_slice(values, &SHAPE, device).unwrap().to_dtype(dtype).unwrap();
    let w = of(&start(COUNT, 1)).requires_grad_(true).unwrap();
    let mut adamw = AdamW8bit::new(vec![w.clone()], options);
    for step in 1..=STEPS {
        w.set_grad(Some(of(&grad(step)))).unwrap();
        adamw.step().unwrap();
    }
    let values = w.to_dtype(DType::F32).unwrap().to_vec().unwrap();
    (values, adamw.state_dict().state[&0].clone())
}

fn codes(state: &ParamState, name: &str) -> Vec<i32> {
    state.tensors[name].to_dtype(DType::I32).unwrap().to_vec().unwrap()
}

/// The number of codes that differ, and the largest difference.
fn different(got: &[i32], expected: &Value) -> (usize, i32) {
    let expected = expected.as_array().unwrap().iter().map(|code| code.as_i64().unwrap() as i32);
    let off: Vec<i32> = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).collect();
    (off.iter().filter(|&&off| off > 0).count(), off.into_iter().max().unwrap())
}

fn largest_difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_quantization_maps_are_those_of_bitsandbytes_bit_for_bit() {
    let (_, state) = walk(&Device::cpu(), DType::F32, options(1), |step| start(COUNT, 10 + step));
    for (name, map) in [("qmap1", "signed"), ("qmap2", "unsigned")] {
        let bits: Vec<u64> =
            state.tensors[name].to_vec::<f32>().unwrap().iter().map(|x| u64::from(x.to_bits())).collect();
        let recorded = &table()["maps"][map];
        assert_eq!(
            bits,
            recorded.as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect::<Vec<_>>()
        );
    }
}

/// Gradients of sizes from 1/64 to 1, with an infinity and a NaN in the third step.
#[test]
fn steps_are_those_of_the_kernel_of_bitsandbytes() {
    let (device, recorded) = (device(), &table()["kernel"]);
    let grad = |step: u64| {
        let mut grad = start(COUNT, 10 + step);
        grad.iter_mut().enumerate().for_each(|(i, x)| *x *= 0.25f32.powi(i as i32 % 4));
        if step == 3 {
            (grad[5], grad[300]) = (f32::INFINITY, f32::NAN);
        }
        grad
    };
    let (values, state) = walk(&device, DType::F32, options(1), grad);
    assert_eq!(state.step, Some(STEPS));
    let is_host = device.name().starts_with("cpu");
    for name in ["state1", "state2"] {
        // A GPU multiplies and adds with one rounding, so a number near the middle of two codes may get the other one.
        let (off, by) = different(&codes(&state, name), &recorded[name]);
        assert!(off == 0 || (!is_host && off <= 6 && by == 1), "{name}: {off} codes differ, by up to {by}");
    }
    for name in ["absmax1", "absmax2"] {
        let sizes = state.tensors[name].to_vec::<f32>().unwrap();
        for (got, expected) in sizes.iter().zip(numbers(&recorded[name])) {
            assert!((got / expected - 1.0).abs() < 1e-6, "{name}: {got}, not {expected}");
        }
    }
    let allowed = if is_host { 2e-7 } else { 2e-3 };
    let off = largest_difference(&values, &numbers(&recorded["parameter"]));
    assert!(off <= allowed, "a parameter differs by {off}");
}

/// bitsandbytes on the CPU decays before the update and finds codes in a coarse table.
#[test]
fn steps_are_near_those_of_bitsandbytes_in_each_type() {
    let table = table();
    for (dtype, case, min_8bit_size, allowed, most_off) in [
        (DType::F32, "float32", 1, 6e-4, (8, 1)),
        (DType::F16, "float16", 1, 1e-3, (8, 1)),
        // A unit of bfloat16 near 1 is 0.004.
        (DType::BF16, "bfloat16", 1, 4e-3, (8, 1)),
        (DType::F32, "small", 4096, 1e-4, (0, 0)),
    ] {
        let recorded = &table["bitsandbytes"][case];
        let (values, state) = walk(&device(), dtype, options(min_8bit_size), |step| start(COUNT, 10 + step));
        let off = largest_difference(&values, &numbers(&recorded["parameter"]));
        println!("{case}: the largest difference of a parameter is {off:e}");
        assert!(off <= allowed, "{case}: a parameter differs by {off}");
        if case == "small" {
            assert_eq!(state.tensors.keys().collect::<Vec<_>>(), ["state1", "state2"]);
            for name in ["state1", "state2"] {
                let got = state.tensors[name].to_vec::<f32>().unwrap();
                assert!(largest_difference(&got, &numbers(&recorded[name])) <= 1e-6, "{name}");
            }
            continue;
        }
        for name in ["state1", "state2"] {
            let (off, by) = different(&codes(&state, name), &recorded[name]);
            println!("{case}: {off} codes of {name} differ, by up to {by}");
            assert!(
                off <= most_off.0 && by <= most_off.1,
                "{case} {name}: {off} codes differ, by up to {by}"
            );
        }
    }
}

/// The script's network, its input and its target.
fn network(device: &Device) -> (Sequential, Tensor, Tensor) {
    let model = Sequential::new(&Scope::new(device, 1))
        .add("0", |s| Linear::new(s, 32, 128))
        .and_then(|model| model.add("1", Tanh::new))
        .and_then(|model| model.add("2", |s| Linear::new(s, 128, 32)))
        .unwrap();
    plimsoll::no_grad(|| {
        for (salt, (_, parameter)) in model.named_parameters().iter().enumerate() {
            let values = start(parameter.numel() as u64, 20 + salt as u64);
            let values = Tensor::from_slice(&values, parameter.shape(), device).unwrap();
            parameter.copy_(values.div_scalar(4.0).unwrap()).unwrap();
        }
    });
    let x = Tensor::from_slice(&start(64 * 32, 40), &[64, 32], device).unwrap();
    let y = (x.roll(&[1], &[1]).unwrap() * &x).unwrap().sin().unwrap();
    (model, x, y)
}

fn losses(
    optimizer: &mut dyn Optimizer,
    (model, x, y): &(Sequential, Tensor, Tensor),
    steps: usize,
) -> Vec<f32> {
    let step = |_| -> Result<f32> {
        let loss = model.forward(x)?.mse_loss(y)?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
        loss.item()
    };
    (0..steps).map(step).collect::<Result<_>>().unwrap()
}

/// The largest difference of losses, as a share of the loss.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f32::max)
}

const RATE: f64 = 3e-3;

fn rates() -> AdamW8bitOptions {
    AdamW8bitOptions { lr: RATE, ..AdamW8bitOptions::default() }
}

#[test]
fn losses_are_as_near_those_of_32_bits_as_with_bitsandbytes() {
    let (device, table) = (device(), table());
    let recorded = |name: &str| numbers(&table["losses"][name]);
    let model = network(&device);
    let mut adamw = AdamW8bit::new(model.0.parameters(), rates());
    let in_8_bits = losses(&mut adamw, &model, 60);
    let published = apart(&recorded("AdamW8bit"), &recorded("AdamW"));
    let (here, there) = (apart(&in_8_bits, &recorded("AdamW")), apart(&in_8_bits, &recorded("AdamW8bit")));
    println!("from 32 bits: {here} here, {published} with bitsandbytes; from bitsandbytes: {there}");
    assert!(here <= 1.5 * published && there <= published, "{here}, {there}, {published}");
    let model = network(&device);
    let options = AdamWOptions { lr: RATE, ..AdamWOptions::default() };
    let exact = losses(&mut AdamW::new(model.0.parameters(), options), &model, 60);
    assert!(apart(&exact, &recorded("AdamW")) <= 1e-4 * allowance() as f32);
}

fn fixture() -> PtFile {
    PtFile::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/adamw_8bit.pt")).unwrap()
}

#[test]
fn a_state_of_bitsandbytes_loads_and_training_goes_on() {
    let (device, table) = (device(), table());
    let saved = fixture().part("optimizer").optimizer_state(&device).unwrap();
    assert_eq!(saved.param_groups[0].params, [0, 1, 2, 3]);
    assert_eq!(saved.param_groups[0].options["betas"], serde_json::json!([0.9, 0.999]));
    assert_eq!((saved.state.len(), saved.state[&0].step), (4, Some(30)));
    let model = network(&device);
    model.0.load_state_dict(&fixture().part("model"), Strict::Yes).unwrap();
    let mut adamw = AdamW8bit::new(model.0.parameters(), AdamW8bitOptions::default());
    adamw.load_state_dict(&saved).unwrap();
    assert_eq!(adamw.param_groups[0].options, rates());
    let loaded = adamw.state_dict();
    for (number, state) in &saved.state {
        for (name, tensor) in &state.tensors {
            let bits = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(bits(tensor), bits(&loaded.state[number].tensors[name]), "{name}");
        }
        assert_eq!(state.tensors.len(), loaded.state[number].tensors.len());
    }
    let recorded = numbers(&table["losses"]["AdamW8bit"]);
    let off = apart(&losses(&mut adamw, &model, 30), &recorded[30..]);
    println!("losses differ by up to {off}");
    assert!(off <= 4e-3, "losses differ by up to {off}");
}

#[test]
fn a_resumed_training_goes_on_bit_for_bit() {
    let device = Device::cpu_with(CpuConfig::default());
    let folder = std::env::temp_dir().join(format!("plimsoll-adamw-8bit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("checkpoint.safetensors");
    let (model, resumed) = (network(&device), network(&device));
    let mut adamw = AdamW8bit::new(model.0.parameters(), rates());
    losses(&mut adamw, &model, 5);
    Checkpoint::default().model(&model.0).optimizer(&adamw).save(&path).unwrap();
    let saved = Checkpoint::open(&path).unwrap();
    saved.load_model(&resumed.0).unwrap();
    let mut other = AdamW8bit::new(resumed.0.parameters(), AdamW8bitOptions::default());
    saved.load_optimizer(&mut other).unwrap();
    assert_eq!(losses(&mut adamw, &model, 5), losses(&mut other, &resumed, 5));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let device = Device::cpu();
    let (model, _, _) = network(&device);
    let good = fixture().part("optimizer").optimizer_state(&device).unwrap();
    let check = |options: AdamW8bitOptions, spoil: &dyn Fn(&mut OptimizerState), message: &str| {
        let mut state = good.clone();
        spoil(&mut state);
        let error = AdamW8bit::new(model.parameters(), options).load_state_dict(&state).unwrap_err();
        assert_eq!(error.to_string(), format!("adamw8bit: load_state_dict: {message}"));
    };
    let other_map = |state: &mut OptimizerState| {
        let map = Tensor::zeros(&[256], &Device::cpu()).unwrap();
        state.state.get_mut(&0).unwrap().tensors.insert("qmap1".to_owned(), map);
    };
    check(rates(), &other_map, "`qmap1` of parameter 0 has values that differ from the fixed ones here");
    let large = AdamW8bitOptions { min_8bit_size: 5000, ..rates() };
    check(large, &|_| {}, "parameter 0 has `absmax1`; this optimizer keeps state1, state2");
    let small = AdamW8bitOptions { min_8bit_size: 1, ..rates() };
    check(small, &|_| {}, "`state1` of parameter 1 has type float32, not uint8");
    let error = fixture().optimizer_state(&device).unwrap_err().to_string();
    assert!(error.contains("no `param_groups`"), "{error}");
}

/// The bytes that the first step allocates for a matrix of 1,024 by 1,024 and a vector of 1,024, and keeps.
fn state_bytes(dtype: DType, make: impl Fn(Vec<Tensor>) -> Box<dyn Optimizer>) -> u64 {
    let device = Device::sim(SimConfig::new(1 << 30));
    let of = |shape: &[usize]| {
        let w = Tensor::zeros(shape, &device).unwrap().to_dtype(dtype).unwrap().requires_grad_(true).unwrap();
        w.set_grad(Some(w.detach())).unwrap();
        w
    };
    let mut optimizer = make(vec![of(&[1024, 1024]), of(&[1024])]);
    let before = device.memory_allocated();
    optimizer.step().unwrap();
    device.memory_allocated() - before
}

#[test]
fn the_state_takes_two_bytes_for_each_element_and_eight_for_each_block() {
    let small = 2 * 4 * 1024;
    let of_8bit = |parameters| -> Box<dyn Optimizer> { Box::new(AdamW8bit::new(parameters, rates())) };
    let of_32_bits =
        |parameters| -> Box<dyn Optimizer> { Box::new(AdamW::new(parameters, AdamWOptions::default())) };
    for dtype in [DType::F32, DType::BF16] {
        assert_eq!(state_bytes(dtype, of_8bit), (2 << 20) + 2 * 4 * (1 << 20) / 256 + small, "{dtype}");
    }
    assert_eq!(state_bytes(DType::F32, of_32_bits), (8 << 20) + small);
    let masters = |parameters| -> Box<dyn Optimizer> {
        Box::new(AdamW8bit::new(parameters, rates()).with_master_weights())
    };
    let of_matrix = (2 << 20) + 2 * 4 * 4096 + (4 << 20);
    assert_eq!(state_bytes(DType::BF16, masters), of_matrix + small + 4 * 1024);
}

#[test]
fn master_weights_take_the_steps_of_32_bits() {
    let device = device();
    let values = start(4096, 3);
    let of = |dtype| {
        let w = Tensor::from_slice(&values, &[64, 64], &device).unwrap().to_dtype(dtype).unwrap();
        w.requires_grad_(true).unwrap()
    };
    // The values have ten bits, so bfloat16 rounds them: both start from the rounded ones.
    let short = of(DType::BF16);
    let wide = short.detach().to_dtype(DType::F32).unwrap().requires_grad_(true).unwrap();
    let mut exact = AdamW8bit::new(vec![wide.clone()], rates());
    let mut mixed = AdamW8bit::new(vec![short.clone()], rates()).with_master_weights();
    for step in 0..4 {
        let grad = Tensor::from_slice(&start(4096, 50 + step), &[64, 64], &device).unwrap();
        let grad = grad.to_dtype(DType::BF16).unwrap();
        wide.set_grad(Some(grad.to_dtype(DType::F32).unwrap())).unwrap();
        short.set_grad(Some(grad)).unwrap();
        exact.step().unwrap();
        mixed.step().unwrap();
    }
    let bits = |x: &Tensor| x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(bits(&mixed.state_dict().state[&0].tensors["master_weight"]), bits(&wide));
    assert_eq!(bits(&short), bits(&wide.to_dtype(DType::BF16).unwrap()));
}

#[test]
fn captured_steps_are_the_steps_themselves_to_the_bit() {
    let device = Device::late(LateConfig::default());
    let run = |captures: bool| {
        let (model, x, y) = network(&device);
        let mut adamw = AdamW8bit::new(model.parameters(), rates());
        let mut captured = CapturedStep::new(&device).warm_up(1);
        for step in 0..6 {
            adamw.set_lr(1e-2 / f64::from(step + 1));
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                let loss = model.forward(&inputs[0])?.mse_loss(&inputs[1])?;
                optimizers[0].zero_grad();
                loss.backward()?;
                optimizers[0].step()?;
                Ok(vec![loss])
            };
            if captures {
                captured.run(&[&x, &y], &mut [&mut adamw], step).unwrap();
            } else {
                step(&[x.clone(), y.clone()], &mut [&mut adamw]).unwrap();
            }
        }
        assert_eq!(captured.captures(), u64::from(captures));
        model.parameters().iter().flat_map(|w| w.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

/// Blocks are of the elements in row-major order, whatever the order in memory.
#[test]
fn a_channels_last_parameter_has_the_state_of_a_row_major_one() {
    let device = device();
    let run = |format: MemoryFormat| {
        let of = |salt| {
            let x = Tensor::from_slice(&start(16 * 8 * 36, salt), &[16, 8, 6, 6], &device).unwrap();
            x.to_memory_format(format).unwrap()
        };
        let w = of(3).requires_grad_(true).unwrap();
        let mut adamw = AdamW8bit::new(vec![w.clone()], rates());
        for step in 0..3 {
            w.set_grad(Some(of(60 + step))).unwrap();
            adamw.step().unwrap();
        }
        let state = adamw.state_dict().state[&0].clone();
        (
            w.to_vec::<f32>().unwrap(),
            codes(&state, "state1"),
            state.tensors["absmax2"].to_vec::<f32>().unwrap(),
        )
    };
    assert_eq!(run(MemoryFormat::Contiguous), run(MemoryFormat::ChannelsLast));
}

#[test]
fn a_step_in_the_backward_pass_is_a_step() {
    let device = device();
    let (model, other) = (network(&device), network(&device));
    let mut adamw = AdamW8bit::new(model.0.parameters(), rates());
    let expected = losses(&mut adamw, &model, 3);
    let steps = step_in_backward(&other.0.parameters(), rates()).unwrap();
    let got: Vec<f32> = (0..3)
        .map(|_| {
            let loss = other.0.forward(&other.1).unwrap().mse_loss(&other.2).unwrap();
            loss.backward().unwrap();
            loss.item().unwrap()
        })
        .collect();
    assert_eq!(got, expected);
    drop(steps);
}

#[test]
fn float64_and_sharded_parameters_are_refused_by_name() {
    let device = Device::cpu_with(CpuConfig::default());
    let w = Tensor::zeros(&[4], &device).unwrap().to_dtype(DType::F64).unwrap().requires_grad_(true).unwrap();
    w.set_grad(Some(w.detach())).unwrap();
    let error = AdamW8bit::new(vec![w], rates()).step().unwrap_err().to_string();
    assert!(error.contains("is float64; use AdamW, or float32"), "{error}");
    let group = ProcessGroup::threads(1).remove(0);
    let mut model = network(&device).0;
    let sharded = fully_shard(&mut model, &group, FullyShardOptions::default()).unwrap();
    let mut adamw = AdamW8bit::new(sharded.parameters(), rates());
    let error = adamw.step().unwrap_err().to_string();
    assert!(error.contains("is sharded, and this optimizer needs complete parameters: use AdamW"), "{error}");
}
