//! Measures training steps: time, losses and memory peaks.

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll::memory::{self, HistoryOptions};
use plimsoll::nn::Module;
use plimsoll::{CapturedStep, Device, ProcessGroup, Result, Tensor, Traced};

use super::{Arguments, Failure};

/// A model under training.
#[allow(dead_code, reason = "each example uses a part of them")]
pub(crate) trait Trained {
    /// Takes one step, captured or not, and returns its loss.
    fn step(&mut self, captured: Option<&mut CapturedStep>) -> Result<Tensor>;
    fn model(&self) -> &dyn Module;
    /// The ranks that train together.
    fn group(&self) -> Option<&ProcessGroup> {
        None
    }
    /// How many ranks train on different batches.
    fn batches(&self) -> usize {
        1
    }
}

/// Takes `count` steps and prints their losses, times and peaks; `per_step` is the number of `unit`s in a step. If
/// there are several ranks, the first one prints its own figures, the units of all ranks, and peaks that differ. With
/// `checksum` it prints a checksum of losses and parameters, with `snapshot=FILE` it saves the device's history, and
/// with `times` it shows the slowest kernels of one more step.
#[allow(dead_code, reason = "each example uses a part of them")]
pub(crate) fn show(
    arguments: &Arguments,
    device: &Device,
    count: usize,
    (per_step, unit): (usize, &str),
    training: &mut impl Trained,
) -> std::result::Result<(), Failure> {
    let (mut times, mut losses, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    let mut estimated = 0.0;
    let mut captured = arguments.captures.then(|| CapturedStep::new(device));
    let mut traced = arguments.traced.then(|| Traced::new(device));
    if arguments.option("snapshot").is_some() {
        memory::record_history(
            device,
            HistoryOptions { max_entries: 1_000_000, ..HistoryOptions::default() },
        );
    }
    for number in 0..count {
        device.mark_step(number as u64);
        let (start, before) = (Instant::now(), device.estimated_time());
        let loss = match &mut traced {
            Some(traced) => traced.run(|| training.step(captured.as_mut()))?,
            None => training.step(captured.as_mut())?,
        };
        hosts.push(start.elapsed().as_secs_f64() * 1e3);
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if let (Some(before), Some(now)) = (before, device.estimated_time()) {
            estimated = (now - before).as_secs_f64() * 1e3;
        }
        if device.has_values() {
            losses.push(loss.float()?.item::<f32>()?);
        }
    }
    let rank = training.group().map_or(0, ProcessGroup::rank);
    let peaks = [device.max_memory_allocated(), device.max_memory_reserved()];
    let own = peaks.map(u64::to_le_bytes);
    let all =
        training.group().map(|group| group.all_gather_bytes(own.as_flattened(), "peaks")).transpose()?;
    let sum = if arguments.checksum && device.has_values() {
        Some(checksum(&losses, training.model())?)
    } else {
        None
    };
    if rank > 0 {
        if let Some(sum) = sum {
            println!("rank {rank}: checksum {sum:016x}");
        }
        if arguments.times {
            // All ranks take the step that the first one measures.
            training.step(None)?;
            device.synchronize()?;
        }
        return Ok(());
    }
    let shown: Vec<String> = losses.iter().take(20).map(|loss| format!("{loss:.5}")).collect();
    println!("losses {}", shown.join(" "));
    let first = times.first().copied().unwrap_or(0.0);
    [&mut times, &mut hosts].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    let median = |all: &[f64]| all.get(all.len() / 2).copied().unwrap_or(0.0);
    println!("the host queues a step in {:.3} ms", median(&hosts));
    let rate = (per_step * training.batches()) as f64 / median(&times) * 1e3;
    println!("first step {first:.1} ms, median {:.2} ms, {rate:.0} {unit}/s", median(&times));
    if estimated > 0.0 {
        println!(
            "on the GPU about {estimated:.2} ms, {:.0} {unit}/s",
            (per_step * training.batches()) as f64 / estimated * 1e3
        );
    }
    println!("peak allocated {} reserved {}", peaks[0], peaks[1]);
    if let Some(traced) = &traced {
        println!("{:?}, {:?}, {} in use", traced.plan(), traced.difference(), traced.in_use_requests());
    }
    if let Some(other) = all.iter().flatten().position(|peaks| peaks[..] != *own.as_flattened()) {
        println!("rank {other} has other peaks");
    }
    if let Some(outside) = device.outside_bytes() {
        let reserved = device.memory_reserved();
        println!("of the GPU {} in use: reserved {reserved}, outside {outside}", reserved + outside);
    }
    if let Some(sum) = sum {
        println!("checksum {sum:016x}");
    }
    if let Some(path) = arguments.option("snapshot") {
        memory::save_snapshot(device, path)?;
    }
    if arguments.times {
        show_kernels(device, || training.step(None).map(drop))?;
    }
    Ok(())
}

/// A checksum of the bits of all losses and parameters (FNV-1a, by words): runs with the same bits have the same checksum.
fn checksum(losses: &[f32], model: &dyn Module) -> Result<u64> {
    let add = |sum: u64, x: &f32| (sum ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3);
    let start = losses.iter().fold(0xcbf2_9ce4_8422_2325, add);
    model.parameters().iter().try_fold(start, |sum, parameter| {
        Ok(parameter.detach().float()?.to_vec::<f32>()?.iter().fold(sum, add))
    })
}

/// Shows the slowest kernels of a step on a GPU; on a simulated one, the estimated times of its operators.
fn show_kernels(device: &Device, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let ((done, spans), times) = plimsoll::cuda_kernel_times(|| device.record_timeline(step));
    let mut by_op: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for span in &spans {
        let (count, ms) = by_op.entry(span.op).or_default();
        *count += 1;
        *ms += span.duration.as_secs_f64() * 1e3;
    }
    for (op, (count, ms)) in by_op {
        println!("{ms:8.3} ms {count:5} {op}");
    }
    let total: f64 = times.iter().map(|time| time.total_ms).sum();
    println!("{total:.2} ms in {} launches", times.iter().map(|time| time.count).sum::<u64>());
    for time in times.iter().take(60) {
        println!("{:8.3} ms {:5} {} {}", time.total_ms, time.count, time.op, time.work);
    }
    done
}
