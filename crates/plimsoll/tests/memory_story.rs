//! Memory that grows, what a model's graph keeps, and rehearsals of whole training programs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll::label::Category;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{self, Linear, Module, Scope, Sequential};
use plimsoll::optim::{Adam, AdamOptions, Optimizer, clip_grad_norm_};
use plimsoll::{CpuConfig, Device, Error, Result, SimConfig, Tensor, memory, serialize};

fn devices() -> [Device; 2] {
    [Device::cpu_with(CpuConfig::default()), Device::sim(SimConfig::new(4 << 30))]
}

fn model(device: &Device) -> Sequential {
    Sequential::new(&Scope::new(device, 1))
        .add("fc1", |s| Linear::new(s, 64, 256))
        .unwrap()
        .add("relu", nn::ReLU::new)
        .unwrap()
        .add("fc2", |s| Linear::new(s, 256, 8))
        .unwrap()
}

#[test]
fn a_graph_that_is_kept_for_a_log_is_found_with_its_layers_and_the_users_line() {
    for device in devices() {
        let (model, x) = (model(&device), Tensor::ones(&[32, 64], &device).unwrap());
        let mut losses = Vec::new();
        let (mut forward, mut mean) = (0, 0);
        let growth = memory::growth(&device, 6, || -> Result<()> {
            forward = line!() + 1;
            let y = model.forward(&x)?;
            mean = line!() + 1;
            losses.push(y.square()?.mean()?); // with its graph
            Ok(())
        })
        .unwrap();
        let found: Vec<_> = growth
            .grown
            .iter()
            .map(|grown| (grown.label.as_str(), grown.category, grown.at.map(|at| (at.file(), at.line()))))
            .collect();
        let (forward, mean) = (Some((file!(), forward)), Some((file!(), mean)));
        assert_eq!(
            found,
            [
                ("relu", Category::Activation, forward),
                ("fc2", Category::Activation, forward),
                ("mean", Category::Temporary, mean),
            ],
            "{growth}"
        );
        assert_eq!(growth.bytes_per_step(), 32 * 256 * 4 + 32 * 8 * 4 + 512, "{growth}");
        assert_eq!(growth.grown[0].levels, [2, 3, 4, 5, 6].map(|steps| steps * 32 * 256 * 4));
        let text = growth.to_string();
        assert!(text.starts_with("memory grows by 33.50 KiB per step (6 steps ran)\n  relu (activation): 32.00 KiB per step, requested by relu at "), "{text}");
    }
}

#[test]
fn a_layer_inside_a_users_layer_is_named_by_the_users_line() {
    #[derive(Clone)]
    struct Net {
        fc: Linear,
    }
    const IN_FORWARD: u32 = line!() + 4;
    impl Module for Net {
        plimsoll::members!(fc);
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            self.fc.forward(input)
        }
    }
    let device = Device::sim(SimConfig::new(1 << 30));
    let model = Sequential::new(&Scope::new(&device, 1))
        .add("net", |s| Ok(Net { fc: Linear::new(&s.at("fc"), 4, 4)? }))
        .unwrap();
    let x = Tensor::ones(&[2, 4], &device).unwrap();
    let mut kept = Vec::new();
    let growth = memory::growth(&device, 4, || -> Result<()> {
        kept.push(model.forward(&x)?);
        Ok(())
    })
    .unwrap();
    let at = growth.grown[0].at.unwrap();
    assert_eq!((growth.grown[0].label.as_str(), at.file()), ("net.fc", file!()));
    assert!(at.line().abs_diff(IN_FORWARD) <= 1, "{at}");
}

#[test]
fn a_training_step_does_not_grow() {
    for device in devices() {
        let model = model(&device);
        let mut adam = Adam::new(model.parameters(), AdamOptions::default());
        let x = Tensor::ones(&[32, 64], &device).unwrap();
        memory::assert_no_growth(&device, 6, || -> Result<()> {
            let loss = model.forward(&x)?.square()?.mean()?;
            adam.zero_grad();
            loss.backward()?;
            clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
            adam.step()
        });
    }
}

#[test]
fn the_assertion_says_what_grew_and_shows_an_error() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let text = |run: &mut dyn FnMut()| {
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    let mut kept = Vec::new();
    let x = Tensor::ones(&[1024], &device).unwrap();
    let grew = text(&mut || {
        memory::assert_no_growth(&device, 0, || -> Result<()> {
            kept.push(x.exp()?);
            Ok(())
        });
    });
    assert!(
        grew.starts_with("memory grows by 4.00 KiB per step (4 steps ran)\n  exp (temporary): "),
        "{grew}"
    );
    assert!(grew.contains(file!()), "{grew}");
    let failed = text(&mut || {
        memory::assert_no_growth(&device, 4, || Err(Error::argument("step", "on purpose")));
    });
    assert_eq!(failed, "a step failed: step: on purpose");
}

#[test]
fn what_gpt2s_graph_keeps_adds_up() {
    let device = Device::sim(SimConfig::new(80 << 30));
    let model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small()).unwrap();
    let tokens = Tensor::from_slice(&[7i64; 512], &[2, 256], &device).unwrap();
    // As requested: blocks can be larger, by up to 1 MiB.
    let requested = || device.memory_stats()["requested_bytes.all.current"];
    let before = (device.memory_allocated(), requested());
    let loss = model.loss(&tokens, &tokens).unwrap();
    let kept = requested() - before.1;
    let memory = loss.saved_memory();
    // The graph also lists the tokens, which were there before.
    let listed: u64 =
        memory.saved.iter().filter(|kept| kept.category != Category::Input).map(|kept| kept.bytes).sum();
    let share = listed as f64 / kept as f64;
    assert!((0.99..1.01).contains(&share), "{share}: {memory}");
    let parameters: u64 = model.parameters().iter().map(|parameter| parameter.storage_bytes()).sum();
    assert!(memory.parameter_bytes() as f64 > 0.98 * parameters as f64, "{}", memory.parameter_bytes());
    assert!(
        memory.saved[0].owner.starts_with("transformer.") || memory.saved[0].owner.starts_with("lm_head")
    );
    drop(loss);
    assert_eq!(device.memory_allocated(), before.0);
}

#[test]
fn a_rehearsal_goes_to_its_end() {
    let train = |device: &Device| -> std::result::Result<f32, Box<dyn std::error::Error>> {
        let model = model(device);
        let mut adam = Adam::new(model.parameters(), AdamOptions::default());
        let x = Tensor::randn(&[32, 64], device)?;
        let mut last = f32::NAN;
        for _ in 0..3 {
            let loss = model.forward(&x)?.square()?.mean()?;
            adam.zero_grad();
            loss.backward()?;
            adam.step()?;
            last = loss.item()?;
        }
        let path =
            std::env::temp_dir().join(format!("plimsoll-rehearsal-{}.safetensors", std::process::id()));
        std::fs::write(&path, "weights of a real run")?;
        let saved = serialize::save(&model.state_dict(), &path);
        // Zeros replace nothing.
        let is_replaced = std::fs::read(&path)? != b"weights of a real run";
        assert_eq!(is_replaced, saved.is_ok() && device.has_values());
        std::fs::remove_file(&path)?;
        saved?;
        Ok(last)
    };
    let device = Device::sim(SimConfig::new(1 << 30));
    assert!(train(&device).unwrap_err().to_string().contains("call `Device::rehearse`"));
    let device = Device::sim(SimConfig::new(1 << 30));
    device.rehearse();
    assert_eq!(train(&device).unwrap(), 0.0);
    let rehearsal = device.rehearsal().unwrap();
    assert_eq!(rehearsal.reads, 3 + 4, "{rehearsal}");
    assert_eq!((rehearsal.places[0].op, rehearsal.places[0].reads), ("item", 3));
    assert!(
        rehearsal.places.iter().all(|place| place.at.is_some_and(|at| at.file() == file!())),
        "{rehearsal}"
    );
    let cpu = Device::cpu_with(CpuConfig::default());
    train(&cpu).unwrap();
    assert_eq!(
        device.max_memory_allocated(),
        cpu.max_memory_allocated(),
        "the rehearsal's memory is that of the run"
    );
}
