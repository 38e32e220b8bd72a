//! A host that replays PyTorch's calls, and fails on any other call: [`Recorded`].

use std::collections::VecDeque;

use plimsoll_alloc::{Addr, DeviceStream, DriverError, EventId, PinnedDriver, Timed};

/// The memory of the nth pin call starts at n times this address, counted from 1.
const APART_BYTES: u64 = 1 << 40;

/// The remaining calls of one step.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) step: String,
    pub(crate) calls: VecDeque<String>,
    /// Whether unpin calls may come in any order: PyTorch empties dying pools in the order of a hash table, so two of
    /// them give any order.
    pub(crate) unpins_in_any_order: bool,
}

/// The address here for PyTorch's "nth+offset".
pub(crate) fn place(at: &str) -> Addr {
    let (nth, offset) = at.split_once('+').unwrap();
    Addr(start(nth).0 + number(offset))
}

fn start(nth: &str) -> Addr {
    Addr((number(nth) + 1) * APART_BYTES)
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

impl Recorded {
    /// Takes the next recorded call, which must begin with `asked`. Returns the rest of it.
    fn answer(&mut self, asked: &str) -> Vec<String> {
        let call =
            self.calls.pop_front().unwrap_or_else(|| panic!("{}: asked {asked}: PyTorch did not", self.step));
        let rest = call.strip_prefix(asked).and_then(|rest| rest.strip_prefix(' '));
        let rest = rest.unwrap_or_else(|| panic!("{}: asked {asked}: PyTorch asked {call}", self.step));
        rest.split(' ').map(str::to_owned).collect()
    }
}

impl PinnedDriver for Recorded {
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
        let answer = self.answer(&format!("pin {bytes}"));
        if answer == ["fails"] {
            return Err(DriverError::OutOfMemory);
        }
        Ok(Timed { value: start(&answer[0]), elapsed_us: number(&answer[1]) })
    }

    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
        let asked = format!("unpin {}", addr.0 / APART_BYTES - 1);
        let nth = self.calls.iter().position(|call| call.starts_with(&format!("{asked} ")));
        if let (Some(nth), true) = (nth, self.unpins_in_any_order) {
            self.calls.swap(0, nth);
        }
        let answer = self.answer(&asked);
        Ok(Timed { value: (), elapsed_us: number(&answer[0]) })
    }

    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError> {
        let answer = self.answer(&format!("record {}", on.stream.0));
        if answer == ["fails"] {
            return Err(DriverError::Failed("injected".into()));
        }
        Ok(EventId(number(&answer[0])))
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        Ok(self.answer(&format!("query {}", event.0)) == ["1"])
    }
}
