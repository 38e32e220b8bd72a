//! AdamW with moments in 8 bits: one step of many parameters in one launch.

use std::sync::OnceLock;

use plimsoll_cuda::Args;

use super::one_by_one::{Stepped, slots};
use super::table::{Column, room_for, table};
use super::{StepSlot, halves};
use crate::cuda::{CudaCall, flag, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str =
    concat!(include_str!("table.cu"), include_str!("rounding.cu"), include_str!("adamw_8bit.cu"));
/// Elements per block; the same value as in the kernel text.
const CHUNK: u64 = 4096;
/// The maximum number of parameters per launch: a kernel's arguments can have at most 32,764 bytes.
const MOST: usize = 384;

/// The options of the rule.
pub(crate) struct Options<'n> {
    /// The numbers of a step: step size (negative), eps, decay factor, beta1, 1 - beta1, beta2, 1 - beta2.
    pub(crate) numbers: &'n dyn Fn(u64) -> [f64; 7],
    /// The fractions that the codes of the first and of the second moment stand for.
    pub(crate) maps: [&'static [f32]; 2],
}

/// The properties that must be equal for all parameters of a launch.
fn kind(slot: &Stepped<'_>) -> (u64, [DType; 3], [bool; 2]) {
    let rounded = slot.rounded.map_or(DType::F32, |rounded| rounded.dtype);
    let is_8bit = slot.state.len() > 2;
    (slot.step, [slot.parameter.dtype, slot.grad.dtype, rounded], [is_8bit, slot.seed.is_some()])
}

/// `grads -> parameters, states[, rounded]` in place.
pub(crate) fn step(
    call: &mut CudaCall<'_>,
    forms: &[StepSlot],
    rounds: bool,
    options: &Options<'_>,
) -> Result<()> {
    let mut all = slots(call, forms, rounds);
    // Weights and small biases alternate in a model: two launches, not one for each parameter.
    all.sort_by_key(|slot| slot.state.len() > 2);
    for alike in all.chunk_by(|a, b| kind(a) == kind(b)) {
        alike.chunks(MOST).try_for_each(|some| launch(call, options, some))?;
    }
    Ok(())
}

/// The bits of both maps as lists of numbers. They are the same in each step.
fn texts_of(maps: [&'static [f32]; 2]) -> [&'static str; 2] {
    static TEXTS: OnceLock<[String; 2]> = OnceLock::new();
    let text = |map: &[f32]| {
        let each: Vec<String> = map.iter().map(|value| format!("{:#x}u", value.to_bits())).collect();
        each.join(",")
    };
    TEXTS.get_or_init(|| maps.map(text)).each_ref().map(String::as_str)
}

fn launch(call: &mut CudaCall<'_>, options: &Options<'_>, slots: &[Stepped<'_>]) -> Result<()> {
    let (step, [parameter, grad, rounded], [is_8bit, is_random]) = kind(&slots[0]);
    let room = room_for(slots.len(), MOST);
    let [signed, unsigned] = texts_of(options.maps);
    let source = call
        .source(TEXT)
        .with("P", name(parameter))
        .with("G", name(grad))
        .with("R", name(rounded))
        .with("EIGHT", flag(is_8bit))
        .with("ROUNDS", flag(slots[0].rounded.is_some()))
        .with("RANDOM", flag(is_random))
        .with("MOST", room.to_string())
        .with("SIGNED", signed)
        .with("UNSIGNED", unsigned);
    let state = |nth: usize| move |slot: &Stepped<'_>| slot.state(nth);
    let (mean, square, mean_sizes, square_sizes) = (state(0), state(1), state(2), state(3));
    let columns: [Column<'_, Stepped<'_>>; 8] = [
        &|slot| slot.parameter.len() as u64,
        &|slot| slot.parameter.address,
        &|slot| slot.grad.address,
        &mean,
        &square,
        &mean_sizes,
        &square_sizes,
        &|slot| slot.seed.or(slot.rounded.map(|rounded| rounded.address)).unwrap_or(0),
    ];
    let (words, blocks) = table(slots, room, CHUNK, &columns);
    let [size, eps, keep, beta1, fresh1, beta2, fresh2] = (options.numbers)(step);
    let numbers = halves([size, eps, keep, beta1, fresh1, beta2, fresh2, 0.0]);
    let args = Args::new().words(&words).words(&[numbers[0], numbers[1], numbers[2], numbers[3], 2 * step]);
    call.launch(source, [blocks, 1, 1], 256, args)
}
