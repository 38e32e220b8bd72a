//! Tensor-parallel layers and models: the losses, gradients and memory of several ranks match those of a single rank.
//! `training.rs` clips, saves and loads.

mod training;

use std::thread;

use plimsoll::models::{Gpt2, Gpt2Config, Llama, LlamaConfig};
use plimsoll::nn::{
    ColumnParallelLinear, Embedding, Linear, Module, RowParallelLinear, Scope, VocabParallelEmbedding,
};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, clip_grad_norm_};
use plimsoll::parallel::{
    DdpOptions, DeviceMesh, DistributedDataParallel, FullyShardOptions, Shard, fully_shard,
};
use plimsoll::{DType, Device, ProcessGroup, Result, SimConfig, Tensor};

/// Runs `f` on each rank of a group of threads.
fn on_ranks<T: Send>(size: usize, f: impl Fn(&ProcessGroup) -> Result<T> + Sync) -> Vec<T> {
    let ranks = ProcessGroup::threads(size);
    thread::scope(|scope| {
        let f = &f;
        let running: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || f(&rank).unwrap())).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(0.05);
        assert!(error < 2e-4, "{what}, element {i}: {found}, expected {expected}");
    }
}

/// Values that are different everywhere.
fn values(shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..count).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
    Tensor::from_slice(&data, shape, &Device::cpu())
}

/// Rank `rank`'s part, along a dimension, of a matrix given as a vector of its elements.
fn part(whole: &Tensor, dim: usize, rank: usize, ranks: usize) -> Result<Vec<f32>> {
    let len = whole.shape()[dim].div_ceil(ranks);
    let start = (rank * len).min(whole.shape()[dim]);
    whole.narrow(dim as isize, start, len.min(whole.shape()[dim] - start))?.to_vec::<f32>()
}

#[test]
fn parallel_layers_are_parts_of_the_usual_ones() {
    for (lead, tokens) in [(&[][..], 4), (&[1], 6), (&[3], 4)] {
        let shape = [lead, &[tokens, 8]].concat();
        let x = values(&shape).unwrap().requires_grad_(true).unwrap();
        let scope = Scope::new(&Device::cpu(), 1);
        let up = Linear::new(&scope.at("up"), 8, 12).unwrap();
        let down = Linear::new(&scope.at("down"), 12, 8).unwrap();
        let y = down.forward(&up.forward(&x).unwrap().tanh().unwrap()).unwrap();
        y.mul(values(&shape).unwrap()).unwrap().sum().unwrap().backward().unwrap();
        let grad = |tensor: &Tensor| tensor.grad().unwrap();
        let dim = lead.len();
        let found = on_ranks(2, |rank| {
            let at = rank.rank();
            let scope = Scope::new(&Device::cpu(), 1).tensor_parallel(rank);
            let up = ColumnParallelLinear::new(&scope.at("up"), 8, 12)?;
            let down = RowParallelLinear::new(&scope.at("down"), 12, 8)?;
            let own = |whole: &Tensor| whole.narrow(dim as isize, at * tokens / 2, tokens / 2)?.copy();
            let x = own(&x.detach())?.requires_grad_(true)?;
            let y = down.forward(&up.forward(&x)?.tanh()?)?;
            y.mul(&own(&values(&shape)?)?)?.sum()?.backward()?;
            let grads = [&x, up.weight(), up.bias().unwrap(), down.weight(), down.bias().unwrap()];
            let grads =
                grads.iter().map(|it| it.grad().unwrap().to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
            Ok((y.to_vec::<f32>()?, grads))
        });
        for (rank, (out, grads)) in found.iter().enumerate() {
            close(out, &part(&y.detach(), dim, rank, 2).unwrap(), "output");
            close(&grads[0], &part(&grad(&x), dim, rank, 2).unwrap(), "gradient of the input");
            close(&grads[1], &part(&grad(up.weight()), 0, rank, 2).unwrap(), "of the columns");
            close(&grads[2], &part(&grad(up.bias().unwrap()), 0, rank, 2).unwrap(), "of their bias");
            close(&grads[3], &part(&grad(down.weight()), 1, rank, 2).unwrap(), "of the rows");
            close(&grads[4], &grad(down.bias().unwrap()).to_vec::<f32>().unwrap(), "of the whole bias");
        }
    }
}

#[test]
fn a_vocabulary_is_cut_even_if_it_does_not_divide() {
    let tokens = |device: &Device| Tensor::from_slice(&[0i64, 36, 12, 13, 25, 24, 1, 35], &[2, 4], device);
    let whole = Embedding::new(&Scope::new(&Device::cpu(), 1), 37, 4).unwrap();
    let y = whole.forward(&tokens(&Device::cpu()).unwrap()).unwrap();
    y.square().unwrap().sum().unwrap().backward().unwrap();
    let found = on_ranks(2, |rank| {
        let scope = Scope::new(&Device::cpu(), 1).tensor_parallel(rank);
        let embedding = VocabParallelEmbedding::new(&scope, 37, 4)?;
        let y = embedding.forward(&tokens(&Device::cpu())?)?;
        y.square()?.sum()?.backward()?;
        Ok((y.to_vec::<f32>()?, embedding.weight().grad().unwrap().to_vec::<f32>()?))
    });
    for (rank, (out, grad)) in found.iter().enumerate() {
        close(out, &part(&y.detach(), 1, rank, 2).unwrap(), "rows");
        close(grad, &part(&whole.weight().grad().unwrap(), 0, rank, 2).unwrap(), "gradient");
    }
    let errors = on_ranks(2, |rank| {
        let scope = Scope::new(&Device::cpu(), 1).tensor_parallel(rank);
        let embedding = VocabParallelEmbedding::new(&scope, 37, 4)?;
        let wrong = Tensor::from_slice(&[0i64, 37], &[1, 2], &Device::cpu())?;
        Ok(embedding.forward(&wrong).map(drop).map_err(|error| error.to_string()))
    });
    assert!(errors[1].is_err(), "{errors:?}");
}

/// A model with a loss.
trait Language: Module {
    fn loss_of(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor>;
}

impl Language for Gpt2 {
    fn loss_of(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.loss(tokens, targets)
    }
}

impl Language for Llama {
    fn loss_of(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.loss(tokens, targets)
    }
}

fn gpt2(scope: &Scope, recomputes: bool) -> Result<Box<dyn Language>> {
    let config = Gpt2Config {
        vocab_size: 101,
        n_positions: 16,
        n_embd: 32,
        n_layer: 2,
        n_head: 4,
        dropout: 0.0,
        gradient_checkpointing: recomputes,
        recompute_mlp: 1,
        ..Gpt2Config::small()
    };
    Ok(Box::new(Gpt2::new(scope, config)?))
}

fn llama(scope: &Scope, recomputes: bool) -> Result<Box<dyn Language>> {
    let config = LlamaConfig {
        vocab_size: 100,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        attention_bias: true,
        mlp_bias: true,
        gradient_checkpointing: recomputes,
        recompute_mlp: 1,
        ..LlamaConfig::default()
    };
    Ok(Box::new(Llama::new(scope, config)?))
}

type Build = fn(&Scope, bool) -> Result<Box<dyn Language>>;

/// Tokens and targets `[2, 8]` of one part of a batch; the last target of each sequence does not count.
fn batch(part: usize, step: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let token = |i: usize| ((i * 31 + step * 17 + part * 7) % 100) as i64;
    let tokens: Vec<i64> = (0..16).map(token).collect();
    let targets: Vec<i64> = (0..16).map(|i| if i % 8 == 7 { -100 } else { token(i + 1) }).collect();
    Ok((Tensor::from_slice(&tokens, &[2, 8], device)?, Tensor::from_slice(&targets, &[2, 8], device)?))
}

/// The losses of four steps on this mesh.
fn losses(world: &ProcessGroup, tp: usize, build: Build, recomputes: bool) -> Result<Vec<f32>> {
    let device = Device::cpu_with(Default::default());
    let mesh = DeviceMesh::new(world, &[("dp", world.size() / tp), ("tp", tp)])?;
    let model = build(&Scope::new(&device, 1).tensor_parallel(mesh.group("tp")?), recomputes)?;
    let dp = mesh.group("dp")?;
    let ddp = DistributedDataParallel::new(&*model, dp, DdpOptions::default())?;
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
    let mut losses = Vec::new();
    for step in 0..4 {
        adamw.zero_grad();
        // The batch has two parts. A single rank trains on both.
        let own: Vec<usize> = (0..2).filter(|part| dp.size() == 1 || *part == dp.rank()).collect();
        let mut sum = 0.0;
        for (i, part) in own.iter().enumerate() {
            let (tokens, targets) = batch(*part, step, &device)?;
            let pass = || -> Result<f32> {
                let loss = model.loss_of(&tokens, &targets)?;
                loss.mul_scalar(1.0 / own.len() as f64)?.backward()?;
                loss.item::<f32>()
            };
            sum += if i + 1 < own.len() { ddp.no_sync(pass)? } else { pass()? };
        }
        losses.push(sum / own.len() as f32);
        adamw.step()?;
    }
    Ok(losses)
}

#[test]
fn models_of_two_by_two_ranks_have_the_losses_of_one() {
    let builds: [(&str, Build); 2] = [("GPT-2", gpt2), ("Llama", llama)];
    for (name, build) in builds {
        for recomputes in [false, true] {
            let one = on_ranks(1, |world| losses(world, 1, build, recomputes)).remove(0);
            assert!(one[3] < one[0], "{name} learns: {one:?}");
            for (size, tp) in [(2, 2), (4, 2)] {
                let found = on_ranks(size, |world| losses(world, tp, build, recomputes));
                let parts = size / tp;
                for step in 0..4 {
                    // Ranks 0 and tp have different parts of the batch.
                    let mean = (0..parts).map(|part| found[part * tp][step]).sum::<f32>() / parts as f32;
                    close(&[mean], &[one[step]], &format!("{name}, {size} ranks, step {step}"));
                }
                for rank in 0..size {
                    assert_eq!(found[rank], found[rank / tp * tp], "ranks of a group have one loss");
                }
            }
        }
    }
}

#[test]
fn a_simulated_rank_of_a_group_has_the_bytes_of_a_real_one() {
    let builds: [Build; 2] = [gpt2, llama];
    for build in builds {
        let peaks = |group: &ProcessGroup, device: &Device| -> Result<[u64; 2]> {
            let model = build(&Scope::new(device, 1).tensor_parallel(group), false)?;
            let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
            device.reset_peak_memory_stats();
            for step in 0..3 {
                adamw.zero_grad();
                let (tokens, targets) = batch(0, step, device)?;
                model.loss_of(&tokens, &targets)?.backward()?;
                adamw.step()?;
            }
            Ok([device.max_memory_allocated(), device.max_memory_reserved()])
        };
        let real = on_ranks(2, |group| peaks(group, &Device::cpu_with(Default::default())));
        for (rank, real) in real.iter().enumerate() {
            let device = Device::sim(SimConfig::new(1 << 30));
            assert_eq!(peaks(&ProcessGroup::simulated(rank, 2), &device).unwrap(), *real, "rank {rank}");
        }
    }
}

#[test]
fn sizes_that_do_not_divide_and_what_is_not_supported_are_refused_by_name() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let scope = |ranks| Scope::new(&device, 1).tensor_parallel(&ProcessGroup::simulated(0, ranks));
    let refused = |outcome: Result<()>, expected: &str| {
        let error = outcome.expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    let message = "4 attention heads do not divide among 3 tensor parallel ranks";
    refused(gpt2(&scope(3), false).map(drop), message);
    refused(llama(&scope(4), false).map(drop), "2 key heads do not divide among 4");
    let wide = ColumnParallelLinear::new(&scope(3).at("fc"), 8, 16).map(drop);
    refused(wide, "16 rows or columns of `fc.weight` do not divide among 3");
    let model = gpt2(&scope(2), false).unwrap();
    let odd = Tensor::from_slice(&[1i64; 7], &[1, 7], &device).unwrap();
    refused(model.loss_of(&odd, &odd).map(drop), "7 tokens of a sequence do not divide among 2");
    let even = Tensor::from_slice(&[1i64; 8], &[1, 8], &device).unwrap();
    refused(model.forward(&even).map(drop), "use `loss`");
    refused(
        clip_grad_norm_(&model.parameters(), 1.0, 2.0).map(drop),
        "only a part of transformer.wte.weight",
    );
    let config = Gpt2Config { n_embd: 32, n_head: 4, n_layer: 1, vocab_size: 100, ..Gpt2Config::small() };
    let mut model = Gpt2::new(&scope(2), config).unwrap();
    let world = ProcessGroup::simulated(0, 2);
    let sharded = fully_shard(&mut model, &world, FullyShardOptions::default()).map(drop);
    refused(sharded, "only a part of transformer.wte.weight");
    let options = FullyShardOptions { shard: Shard::Nothing, ..FullyShardOptions::default() };
    let together = fully_shard(&mut model, &world, options).map(drop);
    refused(
        together,
        "the ranks [0, 1] have different parts of transformer.wte.weight: pass the other dimension",
    );
}

#[test]
fn a_deferred_model_that_is_converted_still_adds_the_gradients_of_what_is_not_cut() {
    let gradients = on_ranks(2, |world| {
        let device = Device::cpu_with(Default::default());
        let config = LlamaConfig {
            vocab_size: 100,
            hidden_size: 32,
            intermediate_size: 48,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            ..LlamaConfig::default()
        };
        let mut model = Llama::new(&Scope::new(&device, 1).deferred().tensor_parallel(world), config)?;
        model.bfloat16()?;
        let (tokens, targets) = batch(0, 0, &device)?;
        model.loss(&tokens, &targets)?.backward()?;
        let norms = model.named_parameters().into_iter().filter(|(name, _)| name.contains("norm"));
        norms.map(|(_, norm)| norm.grad().unwrap().to_dtype(DType::F32)?.to_vec::<f32>()).collect()
    });
    let [one, two]: [Vec<Vec<f32>>; 2] = gradients.try_into().unwrap();
    assert_eq!(one.len(), 3);
    assert_eq!(one, two);
}
