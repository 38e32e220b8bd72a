//! Training on ranks that share layers: one norm of all gradients, the whole model's state, and logits.

use std::fs;
use std::path::PathBuf;

use plimsoll::nn::Scope;
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::parallel::{DeviceMesh, FullyShardOptions, FullyShardedDataParallel, Shard, fully_shard};
use plimsoll::serialize::{self, Checkpoint, DistributedFiles, Strict};
use plimsoll::{Device, ProcessGroup, Result, SimConfig, Tensor, no_grad};

use super::{Build, Language, batch, close, gpt2, llama, on_ranks};

const BUILDS: [(&str, Build); 2] = [("GPT-2", gpt2), ("Llama", llama)];

/// A model on a mesh of `dp` and `tp`, in training.
struct Training {
    device: Device,
    model: Box<dyn Language>,
    sharded: FullyShardedDataParallel,
    adamw: AdamW,
    mesh: DeviceMesh,
}

impl Training {
    fn new(world: &ProcessGroup, tp: usize, build: Build, is_bfloat16: bool, seed: u64) -> Result<Training> {
        let device = Device::cpu_with(Default::default());
        let mesh = DeviceMesh::new(world, &[("dp", world.size() / tp), ("tp", tp)])?;
        let mut model = build(&Scope::new(&device, seed).tensor_parallel(mesh.group("tp")?), false)?;
        if is_bfloat16 {
            model.bfloat16()?;
        }
        let options = FullyShardOptions { shard: Shard::Nothing, ..FullyShardOptions::default() };
        let sharded = fully_shard(&mut *model, mesh.submesh("dp")?, options)?;
        let adamw = AdamW::new(sharded.parameters(), AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
        let adamw = if is_bfloat16 { adamw.with_master_weights() } else { adamw };
        Ok(Training { device, model, sharded, adamw, mesh })
    }

    /// Computes the gradients of a batch of two parts.
    fn backward(&mut self, step: usize) -> Result<()> {
        self.adamw.zero_grad();
        let dp = self.mesh.group("dp")?;
        let own: Vec<usize> = (0..2).filter(|part| dp.size() == 1 || *part == dp.rank()).collect();
        self.sharded.set_requires_gradient_sync(own.len() == 1);
        for (i, part) in own.iter().enumerate() {
            let (tokens, targets) = batch(*part, step, &self.device)?;
            let loss = self.model.loss_of(&tokens, &targets)?.mul_scalar(1.0 / own.len() as f64)?;
            self.sharded.set_requires_gradient_sync(i + 1 == own.len());
            loss.backward()?;
        }
        Ok(())
    }

    fn step(&mut self, step: usize) -> Result<f32> {
        self.backward(step)?;
        let norm = self.sharded.clip_grad_norm_(0.5)?.unwrap().item::<f32>()?;
        self.adamw.step()?;
        Ok(norm)
    }

    /// The gradients as a whole, in the order of parameters.
    fn gradients(&self) -> Result<Vec<Vec<f32>>> {
        let ranks = self.mesh.group("tp")?;
        let each = self.sharded.named_parameters().iter().map(|it| {
            let grad = it.rows.grad().unwrap();
            if grad.shape() == it.full_shape {
                return grad.to_vec::<f32>();
            }
            // Any order will do to compare sums.
            let dim = (0..grad.shape().len()).find(|dim| grad.shape()[*dim] != it.full_shape[*dim]).unwrap();
            let missing = it.full_shape[dim].div_ceil(ranks.size()) - grad.shape()[dim];
            let mut rest = grad.shape().to_vec();
            rest[dim] = missing;
            let rest = Tensor::full(&rest, 0.0, grad.dtype(), &self.device)?;
            let grad = no_grad(|| Tensor::cat(&[&grad, &rest], dim as isize))?;
            ranks.all_gather_tensor(&grad, dim)?.to_vec::<f32>()
        });
        each.collect()
    }
}

#[test]
fn gradients_are_clipped_by_the_norm_of_the_whole_model() {
    for (name, build) in BUILDS {
        let train = |world: &ProcessGroup, tp: usize| -> Result<(Vec<f32>, Vec<f32>)> {
            let mut training = Training::new(world, tp, build, false, 1)?;
            let norms = (0..3).map(|step| training.step(step)).collect::<Result<Vec<f32>>>()?;
            training.backward(3)?;
            training.sharded.clip_grad_norm_(0.1)?;
            // Sorted, because thirds of queries, keys and values are gathered in a different order.
            let sorted = |mut values: Vec<f32>| {
                values.retain(|value| *value != 0.0);
                values.sort_by(f32::total_cmp);
                values
            };
            Ok((norms, training.gradients()?.into_iter().flat_map(sorted).collect()))
        };
        let (norms, gradients) = on_ranks(1, |world| train(world, 1)).remove(0);
        assert!(norms.iter().all(|norm| *norm > 0.5), "{norms:?} are clipped");
        for (size, tp) in [(2, 2), (4, 2)] {
            for (rank, found) in on_ranks(size, |world| train(world, tp)).into_iter().enumerate() {
                let what = format!("{name}, rank {rank} of {size}");
                for (found, expected) in found.0.iter().zip(&norms) {
                    assert!((found / expected - 1.0).abs() < 1e-5, "{what}: {found}, expected {expected}");
                }
                close(&found.1, &gradients, &what);
            }
        }
    }
}

/// A folder that is deleted when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ranks_save_and_load_under_the_names_and_shapes_of_the_whole_model() {
    for ((name, build), is_bfloat16) in BUILDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let folder = std::env::temp_dir().join(format!("plimsoll-shared-layers-{}", std::process::id()));
        let folder = Folder(folder.join(format!("{name}-{is_bfloat16}")));
        let path = |name: &str| folder.0.join(name);
        let new = |world: &ProcessGroup, tp, seed| Training::new(world, tp, build, is_bfloat16, seed);
        let load = |training: &mut Training, run: PathBuf| {
            let saved = Checkpoint::open(run).unwrap();
            let source = saved.model_source();
            training.sharded.load_state_dict(&*training.model, &source, Strict::Yes).unwrap();
            training.sharded.load_optimizer(&mut training.adamw, &saved).unwrap();
        };
        let save = |training: &Training, run: PathBuf| {
            let saved = training.sharded.checkpoint(&*training.model, &training.adamw).unwrap();
            saved.save(run, 2).unwrap()
        };
        fs::create_dir_all(&folder.0).unwrap();
        on_ranks(1, |world| {
            let mut training = new(world, 1, 1)?;
            (0..2).try_for_each(|step| training.step(step).map(drop))?;
            save(&training, path("one"));
            serialize::save(&training.model.state_dict(), path("one.safetensors")).unwrap();
            Ok(())
        });
        let read = |name: &str| fs::read(path(name)).unwrap();
        for size in [2, 4] {
            let run = path(&format!("{size}"));
            let saved = on_ranks(size, |world| {
                let mut training = new(world, 2, 9)?;
                load(&mut training, path("one"));
                // Also as state in memory.
                let state = training.sharded.optimizer_state_dict(&training.adamw)?;
                let dict = training.sharded.state_dict(&*training.model)?;
                if world.rank() == 0 {
                    serialize::save(&dict, path("dict.safetensors")).unwrap();
                    assert!(read("dict.safetensors") == read("one.safetensors"), "{name}");
                }
                let first = &state.state[&0];
                assert_eq!(first.tensors.is_empty(), world.rank() > 0);
                Ok(save(&training, run.clone()))
            });
            assert!(saved.iter().all(|saved| *saved == run.join("step-00000002")), "{saved:?}");
            let files = DistributedFiles::open(&run).unwrap();
            files.verify().unwrap();
            files.consolidate(path("whole.safetensors")).unwrap();
            assert!(read("whole.safetensors") == read("one.safetensors"), "{name}, {size} ranks");
            // The optimizer's state is that of one rank, bit for bit.
            on_ranks(1, |world| {
                let (mut before, mut after) = (new(world, 1, 5)?, new(world, 1, 6)?);
                load(&mut before, path("one"));
                load(&mut after, run.clone());
                let (before, after) = (before.adamw.state_dict(), after.adamw.state_dict());
                assert_eq!(before.param_groups, after.param_groups);
                assert_eq!(before.state.len(), after.state.len());
                for (number, state) in &before.state {
                    assert_eq!(state.step, after.state[number].step);
                    assert_eq!(state.tensors.len(), if is_bfloat16 { 3 } else { 2 });
                    for (key, tensor) in &state.tensors {
                        let found = after.state[number].tensors[key].to_bytes()?;
                        assert!(found == tensor.to_bytes()?, "{name}: {key} of {number}");
                    }
                }
                Ok(())
            });
        }
        // Complete state in memory is divided.
        let whole = on_ranks(1, |world| {
            let mut training = new(world, 1, 5)?;
            load(&mut training, path("one"));
            training.sharded.optimizer_state_dict(&training.adamw)
        })
        .remove(0);
        on_ranks(2, |world| {
            let (mut from_file, mut from_memory) = (new(world, 2, 7)?, new(world, 2, 8)?);
            load(&mut from_file, path("one"));
            from_memory.sharded.load_optimizer_state_dict(&mut from_memory.adamw, &whole)?;
            let (found, expected) = (from_memory.adamw.state_dict(), from_file.adamw.state_dict());
            for (number, state) in &expected.state {
                for (key, tensor) in &state.tensors {
                    assert!(found.state[number].tensors[key].to_bytes()? == tensor.to_bytes()?, "{key}");
                }
            }
            Ok(())
        });
    }
}

#[test]
fn logits_of_any_length_are_those_of_one_rank() {
    for (name, build) in BUILDS {
        for length in [1, 7, 8] {
            let logits = |world: &ProcessGroup| -> Result<(Vec<usize>, Vec<f32>)> {
                let device = Device::cpu_with(Default::default());
                let model = build(&Scope::new(&device, 1).tensor_parallel(world), false)?;
                let (tokens, _) = batch(0, 0, &device)?;
                let logits = no_grad(|| model.forward(&tokens.narrow(1, 0, length)?))?;
                Ok((logits.shape().to_vec(), logits.to_vec()?))
            };
            let (shape, expected) = on_ranks(1, logits).remove(0);
            for (found_shape, found) in on_ranks(2, logits) {
                assert_eq!(found_shape, shape);
                close(&found, &expected, name);
            }
        }
    }
}

#[test]
fn meshes_in_which_ranks_that_share_layers_are_not_neighbours_do_not_save() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let mesh = DeviceMesh::new(&ProcessGroup::simulated(1, 4), &[("tp", 2), ("dp", 2)]).unwrap();
    let mut model = gpt2(&Scope::new(&device, 1).tensor_parallel(mesh.group("tp").unwrap()), false).unwrap();
    let options = FullyShardOptions { shard: Shard::Nothing, ..FullyShardOptions::default() };
    let sharded = fully_shard(&mut *model, mesh.submesh("dp").unwrap(), options).unwrap();
    let adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
    let error = sharded.checkpoint(&*model, &adamw).map(drop).unwrap_err().to_string();
    assert!(error.contains("the ranks [1, 3] share layers, but are not neighbours in the mesh"), "{error}");
    assert!(mesh.submesh("pp").unwrap_err().to_string().contains("there is no dimension `pp` in tp=2,dp=2"));
}
