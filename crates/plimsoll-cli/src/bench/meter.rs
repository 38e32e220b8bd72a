//! The cost of a piece of work: time, and instructions where the processor's counters can be read.
//!
//! Only instructions of this thread in user space are counted. Many virtual machines and containers, and
//! systems other than Linux, have no counter; then [`Meter::why_no_instructions`] says why, and
//! `callgrind.rs` may help.

use std::time::Instant;

/// The cost of one of many equal pieces of work.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Nanoseconds.
    pub(crate) ns: f64,
    /// Instructions, if they were counted.
    pub(crate) instructions: Option<f64>,
}

impl Cost {
    /// The smaller of each value.
    pub(crate) fn min(self, other: Self) -> Self {
        let instructions = self.instructions.zip(other.instructions).map(|(a, b)| a.min(b));
        Self { ns: self.ns.min(other.ns), instructions }
    }
}

/// Does the work. It is a separate function so that callgrind can count from its start to its end.
#[inline(never)]
fn measured_work<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    work()
}

/// A clock and, where there is one, a counter.
pub(crate) struct Meter {
    counter: std::io::Result<counter::Instructions>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { counter: counter::Instructions::new() }
    }

    /// Why instructions are not counted, if they are not.
    pub(crate) fn why_no_instructions(&self) -> Option<String> {
        self.counter.as_ref().err().map(|why| format!("perf_event_open: {why}"))
    }

    /// Runs `count` equal pieces of work twice. Returns the cost of one in the second run.
    pub(crate) fn second<E>(
        &mut self,
        count: u32,
        mut work: impl FnMut() -> Result<(), E>,
    ) -> Result<Cost, E> {
        work()?;
        let before = self.instructions();
        let start = Instant::now();
        measured_work(work)?;
        let ns = start.elapsed().as_nanos() as f64;
        let instructions = before.zip(self.instructions()).map(|(before, after)| (after - before) as f64);
        let one_of = |all: f64| all / f64::from(count);
        Ok(Cost { ns: one_of(ns), instructions: instructions.map(one_of) })
    }

    /// Callgrind's pattern for the function around the measured run; it matches no other function.
    pub(crate) const WORK_SYMBOL: &str = "*meter*measured_work*";

    fn instructions(&mut self) -> Option<u64> {
        self.counter.as_mut().ok()?.so_far().ok()
    }
}

#[cfg(target_os = "linux")]
mod counter {
    use std::io;

    use perf_event::events::Hardware;
    use perf_event::{Builder, Counter};

    pub(super) struct Instructions(Counter);

    impl Instructions {
        pub(super) fn new() -> io::Result<Self> {
            let mut counter = Builder::new(Hardware::INSTRUCTIONS).build()?;
            counter.enable()?;
            Ok(Self(counter))
        }

        pub(super) fn so_far(&mut self) -> io::Result<u64> {
            self.0.read()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod counter {
    use std::io;

    pub(super) enum Instructions {}

    impl Instructions {
        pub(super) fn new() -> io::Result<Self> {
            Err(io::Error::other("only Linux has it"))
        }

        pub(super) fn so_far(&mut self) -> io::Result<u64> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_or_it_is_said_why_not() {
        let mut meter = Meter::new();
        let cost = meter.second(1000, || {
            (0..1000).for_each(|number| assert!(std::hint::black_box(number) < 1000));
            Ok::<(), ()>(())
        });
        let cost = cost.expect("the work does not fail");
        assert!(cost.ns > 0.0);
        match (cost.instructions, meter.why_no_instructions()) {
            (Some(instructions), None) => assert!(instructions >= 1.0),
            (None, Some(why)) => assert!(why.starts_with("perf_event_open: "), "{why}"),
            both => panic!("{both:?}"),
        }
    }
}
