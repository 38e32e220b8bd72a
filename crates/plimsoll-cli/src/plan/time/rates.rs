//! How long operators take on a GPU, by kind: [`Operators::seconds`].
//!
//! An operator's time is a fixed time, plus the time for its arithmetic, plus the time for its memory traffic.
//! Arithmetic reaches a share of the datasheet's rate; traffic reaches a rate that depends on the multiprocessors, but
//! at most a share of the bandwidth. The rates were fitted to the kernels of the programs `FITTED` in
//! `tests/step_time/programs.py` on an H200 (docs/measurements/step-time.md). The kinds are those of
//! `python/plimsoll/techniques/kinds.py`.

use plimsoll_gpu::Gpu;

use crate::protocol::Counted;

/// Seconds between two kernels.
const GAP_S: f64 = 1.05e-6;
/// Microseconds of fixed time that each kernel of an operator adds after the first.
const KERNEL_US: f64 = 20.0;
/// The highest share of the datasheet's bandwidth that kernels reach.
const BANDWIDTH: f64 = 0.86;
/// For the H200 to which the rates were fitted: the product of multiprocessors and clock (in kHz), and the bandwidth.
const FITTED: (f64, f64) = (132.0 * 1_980_000.0, 4.8e12);
/// Memory traffic under bf16 autocast, relative to fp32. Products and activations need half the traffic, parameters and
/// optimizers all of it; 0.6 stands for the mix.
const NARROW: f64 = 0.6;
/// The number of channels at which a convolution reaches half of its rate.
const CHANNELS: f64 = 200.0;
/// The number of groups in a batch at which group norm reaches half of its bandwidth.
const GROUPS: f64 = 100.0;

/// A kind of operator.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// Microseconds of an operator that does almost nothing, including the gaps between its kernels.
    fixed_us: f64,
    /// The fraction of the datasheet's arithmetic rate that the operator reaches.
    arithmetic: f64,
    /// The fraction of an H200's bandwidth that the operator reaches.
    traffic: f64,
}

const fn kind(name: &'static str, fixed_us: f64, arithmetic: f64, traffic: f64) -> Kind {
    Kind { name, fixed_us, arithmetic, traffic }
}

/// The kinds. The first row is for operators that have no row of their own.
const KINDS: &[Kind] = &[
    kind("uneven", 1.9, 1.00, 0.50),
    kind("product", 7.1, 0.81, 0.30),
    kind("product narrow", 3.1, 1.00, 0.95),
    kind("product odd", 5.0, 0.75, 0.30),
    kind("product odd narrow", 5.0, 0.22, 0.30),
    kind("attention", 26.0, 0.72, 10.00),
    kind("attention backward", 13.6, 0.81, 1.30),
    kind("convolution", 18.8, 1.00, 0.63),
    kind("convolution backward", 95.9, 0.85, 1.30),
    kind("convolution channels last", 5.0, 1.00, 0.95),
    kind("convolution channels last backward", 8.3, 1.15, 1.30),
    kind("convolution in groups", 8.3, 0.33, 0.50),
    kind("convolution in groups backward", 95.9, 0.35, 0.86),
    kind("convolution by channels", 9.8, 0.64, 0.63),
    kind("convolution by channels backward", 184.0, 0.39, 0.16),
    kind("pointwise", 1.2, 1.00, 0.86),
    kind("list", 4.3, 1.00, 0.46),
    kind("copy", 1.6, 1.00, 0.30),
    kind("pad", 2.5, 1.00, 0.30),
    kind("gather", 5.0, 1.00, 0.20),
    kind("scatter", 10.0, 1.00, 0.25),
    kind("accumulate", 60.0, 1.00, 0.12),
    kind("sort", 19.0, 1.00, 0.06),
    kind("reduction", 2.3, 1.00, 0.20),
    kind("reduction of columns", 8.3, 1.00, 0.27),
    kind("layer norm", 2.7, 1.00, 0.40),
    kind("layer norm uneven", 2.0, 1.00, 0.11),
    kind("layer norm backward", 2.7, 1.00, 0.33),
    kind("layer norm backward uneven", 20.0, 1.00, 0.17),
    kind("group norm", 13.6, 1.00, 0.27),
    kind("group norm backward", 58.8, 1.00, 1.30),
    kind("batch norm", 1.0, 1.00, 0.22),
    kind("batch norm backward", 1.0, 1.00, 0.28),
    kind("softmax", 5.0, 1.00, 0.60),
    kind("softmax backward", 5.0, 1.00, 0.95),
    kind("pool", 0.8, 1.00, 0.34),
    kind("pool backward", 8.3, 1.00, 0.20),
    kind("recurrent", 12.0, 0.30, 0.50),
    kind("recurrent backward", 26.0, 0.30, 0.50),
];

/// The arithmetic rate that applies to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    F64,
    F32,
    Tf32,
    F16,
    Bf16,
}

impl Rate {
    pub(super) fn named(name: &str) -> Rate {
        match name {
            "f64" => Rate::F64,
            "tf32" => Rate::Tf32,
            "f16" => Rate::F16,
            "bf16" => Rate::Bf16,
            _ => Rate::F32,
        }
    }

    fn of(self, gpu: &Gpu) -> f64 {
        let flops = gpu.flops;
        let rate = match self {
            Rate::F64 => flops.f64,
            Rate::F32 => flops.f32,
            Rate::Tf32 => flops.tf32.unwrap_or(flops.f32),
            Rate::F16 => flops.f16,
            Rate::Bf16 => flops.bf16.unwrap_or(flops.f32),
        };
        rate as f64
    }
}

/// Identical operators of a step.
#[derive(Debug, Clone)]
pub(super) struct Operators {
    kind: &'static Kind,
    rate: Rate,
    /// The size on which the speed depends: a convolution's channels, a group norm's groups, or a recurrent layer's
    /// steps. Otherwise 0.
    width: f64,
    /// The FLOPs of one operator.
    pub(super) flops: f64,
    /// Bytes that one operator reads and writes.
    bytes: f64,
    pub(super) number: f64,
}

impl Operators {
    pub(super) fn of(row: &Counted) -> Operators {
        Operators {
            kind: KINDS.iter().find(|it| it.name == row.kind).unwrap_or(&KINDS[0]),
            rate: Rate::named(&row.rate),
            width: row.width as f64,
            flops: row.flops as f64,
            bytes: row.bytes as f64,
            number: row.number as f64,
        }
    }

    /// The same operators on this fraction of the data.
    pub(super) fn share(&self, share: f64) -> Operators {
        Operators { flops: self.flops * share, bytes: self.bytes * share, ..self.clone() }
    }

    /// Seconds that one operator takes if it is divided into this many parts.
    pub(super) fn seconds(&self, gpu: &Gpu, is_narrow: bool, parts: f64) -> Seconds {
        let rate = if is_narrow { Rate::Bf16 } else { self.rate };
        self.at(rate.of(gpu), gpu, is_narrow, parts)
    }

    /// Seconds that one operator takes if its products run at `rate`, in FLOP/s.
    fn at(&self, rate: f64, gpu: &Gpu, is_narrow: bool, parts: f64) -> Seconds {
        let Kind { name, fixed_us, mut arithmetic, mut traffic } = *self.kind;
        if name.starts_with("convolution") && self.width > 0.0 {
            arithmetic *= self.width / (self.width + CHANNELS);
        }
        if name.starts_with("group norm") && self.width > 0.0 {
            traffic *= self.width / (self.width + GROUPS);
        }
        let speed = f64::from(gpu.multiprocessors) * f64::from(gpu.clock_khz) / FITTED.0;
        let reached = (traffic * FITTED.1 * speed).min(BANDWIDTH * gpu.bandwidth.memory_bytes_per_s as f64);
        let bytes = if is_narrow { self.bytes * NARROW } else { self.bytes };
        Seconds {
            fixed: parts * self.times() * (fixed_us * 1e-6 + GAP_S),
            arithmetic: self.flops / (arithmetic * rate),
            traffic: bytes / reached,
        }
    }

    /// How often an operator runs its kernels in sequence: once per step for a recurrent layer, otherwise once.
    fn times(&self) -> f64 {
        if self.kind.name.starts_with("recurrent") { self.width.max(1.0) } else { 1.0 }
    }

    /// The number of kernels that one operator launches.
    pub(super) fn kernels(&self) -> f64 {
        self.times() * (1.0 + self.kind.fixed_us / KERNEL_US)
    }

    /// The type in which an operator multiplies matrices; `None` for other operators.
    pub(super) fn product(&self) -> Option<Rate> {
        (self.kind.name.starts_with("product") && self.flops > 0.0).then_some(self.rate)
    }

    /// Seconds that a product takes at a different rate, in FLOP/s.
    pub(super) fn seconds_at(&self, rate: u64, gpu: &Gpu) -> f64 {
        self.at(rate as f64, gpu, false, 1.0).all()
    }
}

/// The parts of an operator's time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seconds {
    /// Seconds for starting kernels.
    pub(super) fixed: f64,
    pub(super) arithmetic: f64,
    pub(super) traffic: f64,
}

impl Seconds {
    pub(super) fn all(self) -> f64 {
        self.fixed + self.arithmetic + self.traffic
    }

    pub(super) fn add(&mut self, times: f64, other: Seconds) {
        self.fixed += times * other.fixed;
        self.arithmetic += times * other.arithmetic;
        self.traffic += times * other.traffic;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_operator_has_rates() {
        let python = include_str!("../../../python/plimsoll/techniques/kinds.py");
        let table = python.split_once("NAMES = {").unwrap().1.split_once('}').unwrap().0;
        let names: Vec<&str> = table.lines().filter_map(|line| line.trim().split('"').nth(1)).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(KINDS.iter().any(|it| it.name == name), "`{name}` has no row");
        }
    }

    #[test]
    fn a_convolution_of_few_channels_is_slower() {
        let gpu = plimsoll_gpu::named("H200").unwrap();
        let of = |width| {
            let kind = "convolution".to_owned();
            let rate = "tf32".to_owned();
            Operators::of(&Counted {
                kind,
                rate,
                width,
                flops: 10_u64.pow(12),
                number: 1,
                ..Counted::default()
            })
        };
        let seconds = |width| of(width).seconds(gpu, false, 1.0).arithmetic;
        assert!((seconds(200) / seconds(200 * 1000) - 2.0).abs() < 0.01);
    }
}
