//! Stochastic rounding of `bfloat16` parameters: the mean is right, steps that rounding to nearest loses arrive, and the bits are the
//! same everywhere.

use plimsoll::nn::{Linear, Module, Scope, Sequential};
use plimsoll::optim::{
    Adafactor, AdafactorOptions, Adam, AdamOptions, AdamW, AdamW8bit, AdamW8bitOptions, AdamWOptions,
    Algorithm, NAdam, NAdamOptions, Optimizer, OptimizerOf, RmsPropOptions, Sgd, SgdOptions,
};
use plimsoll::parallel::{DdpOptions, DistributedDataParallel};
use plimsoll::testing::LateConfig;
use plimsoll::{
    CapturedStep, Category, CpuConfig, DType, Device, ProcessGroup, Result, SimConfig, Tensor,
    label::{self, Span},
};

use crate::on_device::device;

fn short(values: &[f32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap().to_dtype(DType::BF16).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.detach().to_dtype(DType::F32).unwrap().to_vec().unwrap()
}

/// The parameter after some steps of this optimizer with a constant gradient.
fn stepped(optimizer: &mut dyn Optimizer, w: &Tensor, grad: f32, steps: usize) -> Vec<f32> {
    for _ in 0..steps {
        let grad = short(&vec![grad; w.numel()], w.shape(), w.device());
        w.set_grad(Some(grad)).unwrap();
        optimizer.step().unwrap();
    }
    values(w)
}

fn ones(count: usize, device: &Device) -> Tensor {
    let _owner = Span::of(Category::Parameter, label::intern("w"));
    short(&vec![1.0; count], &[count], device).requires_grad_(true).unwrap()
}

/// Each step is a twentieth of a unit. The deviation of the mean over all elements is below 1e-5.
#[test]
fn the_mean_of_many_steps_is_the_path_without_rounding() {
    const COUNT: usize = 1 << 16;
    let device = device();
    let check = |what: &str, optimizer: &mut dyn Optimizer, w: &Tensor, expected: f32| {
        let all = stepped(optimizer, w, 1.0, 40);
        let mean = all.iter().sum::<f32>() / COUNT as f32;
        println!("{what}: the mean is {mean}");
        assert!((mean - expected).abs() < 1e-4, "{what}: the mean is {mean}, not {expected}");
        assert!(all.iter().any(|x| (x - mean).abs() > 1e-3), "{what}: nothing was rounded");
    };
    let w = ones(COUNT, &device);
    let options = SgdOptions { lr: 2e-4, ..SgdOptions::default() };
    check("sgd", &mut Sgd::new(vec![w.clone()], options).with_stochastic_rounding(1), &w, 0.992);
    let w = ones(COUNT, &device);
    let options = AdamW8bitOptions { lr: 2e-4, weight_decay: 0.0, ..AdamW8bitOptions::default() };
    check("8 bits", &mut AdamW8bit::new(vec![w.clone()], options).with_stochastic_rounding(1), &w, 0.992);
    let w = ones(COUNT, &device);
    let options = AdamW8bitOptions { min_8bit_size: usize::MAX, ..options };
    check("32 bits", &mut AdamW8bit::new(vec![w.clone()], options).with_stochastic_rounding(1), &w, 0.992);
    // Rounding to nearest loses every step.
    let w = ones(4, &device);
    let options = SgdOptions { lr: 2e-4, ..SgdOptions::default() };
    assert_eq!(stepped(&mut Sgd::new(vec![w.clone()], options), &w, 1.0, 40), [1.0; 4]);
}

/// The running mean of squares decays by 0.001 of itself, which rounding to nearest loses.
#[test]
fn state_in_16_bits_is_rounded_stochastically_too() {
    let device = device();
    let square = |random: bool| {
        let w = ones(4096, &device);
        let mut adam = Adam::new(vec![w.clone()], AdamOptions { lr: 0.0, ..AdamOptions::default() });
        if random {
            adam = adam.with_stochastic_rounding(5);
        }
        stepped(&mut adam, &w, 1.0, 1);
        stepped(&mut adam, &w, 0.0, 300);
        let square = values(&adam.state_dict().state[&0].tensors["exp_avg_sq"]);
        square.iter().sum::<f32>() / 4096.0 / 1e-3
    };
    let (lost, kept) = (square(false), square(true));
    assert!((lost - 1.0).abs() < 1e-2, "without: {lost}");
    assert!((kept - 0.999f32.powi(300)).abs() < 1e-2, "with: {kept}");
}

/// A linear regression. Returns the loss, computed in 32 bits, after 400 steps.
fn trained<O: Algorithm>(dtype: DType, options: O, seed: Option<u64>) -> f32 {
    let device = device();
    let number = |i: u64, salt: u64| ((i * 2_654_435_761 + salt * 977) % 1000) as f32 / 500.0 - 1.0;
    let numbers = |count: u64, salt| (0..count).map(|i| number(i, salt)).collect::<Vec<f32>>();
    let of = |shape: &[usize], salt| {
        let count = shape.iter().product::<usize>() as u64;
        Tensor::from_slice(&numbers(count, salt), shape, &device).unwrap().to_dtype(DType::BF16).unwrap()
    };
    let (x, goal) = (of(&[256, 16], 1), of(&[16, 16], 2));
    let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
    let y = wide(&x).matmul(wide(&goal)).unwrap();
    // All weights begin 0.5 away from the goal.
    let w = (wide(&goal) + 0.5).unwrap().to_dtype(dtype).unwrap().requires_grad_(true).unwrap();
    let mut optimizer = OptimizerOf::new(vec![w.clone()], options);
    if let Some(seed) = seed {
        optimizer = optimizer.with_stochastic_rounding(seed);
    }
    let mut last = f32::NAN;
    for _ in 0..400 {
        let loss = wide(&x).matmul(wide(&w)).unwrap().mse_loss(&y).unwrap();
        optimizer.zero_grad();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        last = loss.item().unwrap();
    }
    last
}

#[test]
fn training_that_stalls_in_bfloat16_follows_32_bits() {
    let options = AdamWOptions { lr: 1e-3, weight_decay: 0.0, ..AdamWOptions::default() };
    let of_8_bits =
        AdamW8bitOptions { lr: 1e-3, weight_decay: 0.0, min_8bit_size: 1, ..AdamW8bitOptions::default() };
    let exact = trained(DType::F32, options, None);
    let nearest = trained(DType::BF16, options, None);
    let random = trained(DType::BF16, options, Some(3));
    let in_8_bits = trained(DType::BF16, of_8_bits, Some(3));
    println!(
        "loss {exact:.4} in 32 bits; bfloat16: {nearest:.4} to nearest, {random:.4} stochastic, {in_8_bits:.4} with moments in 8 bits"
    );
    assert!(nearest > 3.0 * exact, "{nearest}, {exact}");
    assert!((random / exact - 1.0).abs() < 0.1, "{random}, {exact}");
    assert!((in_8_bits / exact - 1.0).abs() < 0.1, "{in_8_bits}, {exact}");
}

/// Every elementwise rule, also those with a kernel of their own on a GPU.
#[test]
fn the_bits_depend_on_the_seed_the_name_and_the_step() {
    fn check<O: Algorithm>(options: &O) {
        let run = |name: &str, seed: u64| {
            let device = device();
            let _owner = Span::of(Category::Parameter, label::intern(name));
            let w = short(&[1.0; 256], &[256], &device).requires_grad_(true).unwrap();
            let mut optimizer =
                OptimizerOf::new(vec![w.clone()], options.clone()).with_stochastic_rounding(seed);
            stepped(&mut optimizer, &w, 1.0, 1);
            let first = values(&w);
            (first, stepped(&mut optimizer, &w, 1.0, 1))
        };
        let once = run("w", 1);
        assert_eq!(once, run("w", 1));
        assert_ne!(once, run("w", 2));
        assert_ne!(once, run("v", 1));
    }
    check(&AdamWOptions { lr: 2e-3, ..AdamWOptions::default() });
    check(&AdamWOptions { lr: 2e-3, amsgrad: true, ..AdamWOptions::default() });
    check(&AdamW8bitOptions { lr: 2e-3, min_8bit_size: 1, ..AdamW8bitOptions::default() });
    check(&SgdOptions { lr: 2e-3, momentum: 0.9, ..SgdOptions::default() });
    check(&RmsPropOptions { lr: 2e-4, momentum: 0.9, centered: true, ..RmsPropOptions::default() });
}

#[test]
fn captured_steps_draw_the_bits_of_the_steps_themselves() {
    let device = Device::late(LateConfig::default());
    let run = |captures: bool, make: &dyn Fn(Vec<Tensor>) -> Box<dyn Optimizer>| {
        let mut model =
            Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 32, 128)).unwrap();
        model.bfloat16().unwrap();
        let mut optimizer = make(model.parameters());
        let mut captured = CapturedStep::new(&device).warm_up(1);
        let x = short(&[1.0; 96], &[3, 32], &device);
        for _ in 0..6 {
            let step = |inputs: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> Result<Vec<Tensor>> {
                let loss = model.forward(&inputs[0])?.square()?.mean()?;
                optimizers[0].zero_grad();
                loss.backward()?;
                optimizers[0].step()?;
                Ok(vec![loss])
            };
            if captures {
                captured.run(&[&x], &mut [&mut *optimizer], step).unwrap();
            } else {
                step(std::slice::from_ref(&x), &mut [&mut *optimizer]).unwrap();
            }
        }
        model.parameters().iter().flat_map(values).collect::<Vec<_>>()
    };
    let adamw = |parameters| -> Box<dyn Optimizer> {
        Box::new(AdamW::new(parameters, AdamWOptions::default()).with_stochastic_rounding(2))
    };
    let in_8_bits = |parameters| -> Box<dyn Optimizer> {
        Box::new(AdamW8bit::new(parameters, AdamW8bitOptions::default()).with_stochastic_rounding(2))
    };
    let sgd = |parameters| -> Box<dyn Optimizer> {
        Box::new(
            Sgd::new(parameters, SgdOptions { lr: 1e-3, ..Default::default() }).with_stochastic_rounding(2),
        )
    };
    for make in [&adamw as &dyn Fn(Vec<Tensor>) -> Box<dyn Optimizer>, &in_8_bits, &sgd] {
        assert_eq!(run(true, make), run(false, make));
    }
}

#[test]
fn a_resumed_optimizer_draws_the_same_bits() {
    let device = Device::cpu_with(CpuConfig::default());
    let options = AdamWOptions { lr: 2e-4, ..AdamWOptions::default() };
    let w = ones(4096, &device);
    let mut adamw = AdamW::new(vec![w.clone()], options).with_stochastic_rounding(4);
    stepped(&mut adamw, &w, 1.0, 3);
    let (copy, saved) = (ones(4096, &device), adamw.state_dict());
    let mut resumed = AdamW::new(vec![copy.clone()], options).with_stochastic_rounding(4);
    resumed.load_state_dict(&saved).unwrap();
    plimsoll::no_grad(|| copy.copy_(w.detach())).unwrap();
    assert_eq!(stepped(&mut adamw, &w, 1.0, 3), stepped(&mut resumed, &copy, 1.0, 3));
}

/// The generators of ranks differ, so that dropout does.
#[test]
fn replicas_round_alike() {
    let train = |group: &ProcessGroup| -> Result<Vec<f32>> {
        let device = Device::cpu_with(CpuConfig::default());
        let mut model = Linear::new(&Scope::new(&device, 1), 32, 64)?;
        model.bfloat16()?;
        device.manual_seed(100 + group.rank() as u64);
        let _ddp = DistributedDataParallel::new(&model, group, DdpOptions::default())?;
        let options = AdamWOptions { lr: 2e-4, ..AdamWOptions::default() };
        let mut adamw = AdamW::new(model.parameters(), options).with_stochastic_rounding(1);
        for _ in 0..4 {
            adamw.zero_grad();
            let x = Tensor::randn(&[4, 32], &device)?.to_dtype(DType::BF16)?;
            model.forward(&x)?.square()?.mean()?.backward()?;
            adamw.step()?;
        }
        Ok(model.parameters().iter().flat_map(values).collect())
    };
    let ranks = ProcessGroup::threads(2);
    let ends: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let each: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| train(rank))).collect();
        each.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    });
    assert_eq!(ends[0], ends[1]);
}

/// Six bytes for each element of a parameter instead of eighteen: no 32-bit copy, and moments in 16 bits.
#[test]
fn no_copies_in_32_bits_are_kept() {
    let bytes = |make: &dyn Fn(Vec<Tensor>) -> OptimizerOf<AdamWOptions>| {
        let device = Device::sim(SimConfig::new(1 << 30));
        let w = short(&vec![0.0; 1 << 20], &[1 << 20], &device).requires_grad_(true).unwrap();
        w.set_grad(Some(w.detach())).unwrap();
        let (before, mut optimizer) = (device.memory_allocated(), make(vec![w.clone()]));
        optimizer.step().unwrap();
        device.memory_allocated() - before
    };
    let adamw = |parameters| AdamW::new(parameters, AdamWOptions::default());
    assert_eq!(bytes(&|parameters| adamw(parameters).with_stochastic_rounding(1)), 4 << 20);
    assert_eq!(bytes(&|parameters| adamw(parameters).with_master_weights()), 12 << 20);
}

#[test]
fn what_cannot_be_rounded_is_refused_before_anything_changes() {
    let device = Device::cpu();
    let of = |dtype| {
        let w =
            Tensor::ones(&[4, 4], &device).unwrap().to_dtype(dtype).unwrap().requires_grad_(true).unwrap();
        w.set_grad(Some(w.detach())).unwrap();
        w
    };
    let refused = |w: &Tensor, optimizer: &mut dyn Optimizer| {
        let error = optimizer.step().unwrap_err().to_string();
        assert_eq!(values(w), [1.0; 16]);
        error
    };
    let w = of(DType::BF16);
    let why = "this optimizer does not round stochastically: use AdamW, or master weights";
    let mut nadam = NAdam::new(vec![w.clone()], NAdamOptions::default()).with_stochastic_rounding(1);
    assert_eq!(refused(&w, &mut nadam), format!("nadam: {why}"));
    let mut adafactor =
        Adafactor::new(vec![w.clone()], AdafactorOptions::default()).with_stochastic_rounding(1);
    assert_eq!(refused(&w, &mut adafactor), format!("adafactor: {why}"));
    let adamw = |w: &Tensor| AdamW::new(vec![w.clone()], AdamWOptions::default()).with_stochastic_rounding(1);
    let both = refused(&w, &mut adamw(&w).with_master_weights());
    assert_eq!(both, "adamw: stochastic rounding replaces master weights: use one of them");
    let w = of(DType::F16);
    let half = refused(&w, &mut adamw(&w));
    assert!(half.ends_with("is float16; stochastic rounding is for bfloat16: use master weights"), "{half}");
    // In 32 bits there is nothing to round.
    let (w, same) = (of(DType::F32), of(DType::F32));
    adamw(&w).step().unwrap();
    AdamW::new(vec![same.clone()], AdamWOptions::default()).step().unwrap();
    assert_eq!(values(&w), values(&same));
}
