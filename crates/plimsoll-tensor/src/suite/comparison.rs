//! Compares many cases on a device with its own kernels, several at a time: most of the time goes to the compiler, which can use
//! several cores.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Case, Outcome, check_near, check_near_in};
use crate::device::Device;
use crate::dtype::DType;

/// The results of many cases on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The number of checks that agree with the host.
    pub agree: usize,
    /// A message for each check that does not agree, in the order of the cases.
    pub differ: Vec<String>,
    /// Operators without a kernel on the device.
    pub missing: BTreeSet<&'static str>,
}

impl Comparison {
    fn add(&mut self, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(Outcome::Agrees) => self.agree += 1,
            Ok(Outcome::Missing(op)) => drop(self.missing.insert(op)),
            Err(why) => self.differ.push(why),
        }
    }

    fn append(&mut self, mut other: Comparison) {
        self.agree += other.agree;
        self.differ.append(&mut other.differ);
        self.missing.append(&mut other.missing);
    }
}

/// Runs cases and their derivatives on a device and on the host, in `float32` with every layout of the inputs, and in `bfloat16`,
/// `float16` and `float64`. Uses one thread for each processor, up to 16.
pub fn compare_cases(cases: &[Case], device: &Device) -> Comparison {
    let threads = thread::available_parallelism().map_or(1, usize::from).clamp(1, 16);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return done };
            done.push((at, compare(case, device)));
        }
    };
    let mut done: Vec<(usize, Comparison)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    });
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().fold(Comparison::default(), |mut all, (_, one)| {
        all.append(one);
        all
    })
}

fn compare(case: &Case, device: &Device) -> Comparison {
    let mut comparison = Comparison::default();
    comparison.add(check_near(case, device));
    for float in [DType::BF16, DType::F16, DType::F64] {
        comparison.add(check_near_in(case, device, float));
    }
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuConfig;

    #[test]
    fn what_differs_is_listed_in_the_order_of_the_cases() {
        let right = |name: &str| Case::new(name, &[&[3]], |ins| Ok(std::iter::once(ins[0].exp()?).collect()));
        let wrong = |name: &str| {
            let calls = AtomicUsize::new(0);
            Case::new(name, &[&[3]], move |ins| {
                let call = calls.fetch_add(1, Ordering::Relaxed) as f64;
                Ok(std::iter::once(ins[0].add_scalar(call)?).collect())
            })
        };
        let cases = [wrong("first"), right("second"), wrong("third"), right("fourth")];
        let comparison = compare_cases(&cases, &Device::cpu_with(CpuConfig::default()));
        assert_eq!((comparison.agree, comparison.differ.len()), (8, 8), "{comparison:?}");
        let of_first = comparison.differ.iter().take_while(|why| why.starts_with("first")).count();
        let of_third = comparison.differ.iter().skip(4).filter(|why| why.starts_with("third")).count();
        assert_eq!((of_first, of_third), (4, 4));
        assert!(comparison.missing.is_empty());
    }
}
