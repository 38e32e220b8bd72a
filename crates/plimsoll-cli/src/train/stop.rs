//! Ctrl-C and SIGTERM. The first signal ends the run after its step, so that it can save; the second ends the process
//! immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Exit;

/// Whether the run must end, and because of which signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

/// A signal that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// `kill`, the end of a batch job.
    Terminate,
    /// The terminal was closed.
    HangUp,
}

impl Stop {
    /// Catches the signals from this call onward.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let seen = Arc::new(AtomicBool::new(false));
            // This order matters: the first signal finds `seen` unset, and sets it.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&seen))?;
            flag::register(signal, seen)?;
            flag::register_usize(signal, Arc::clone(&stop.0), signal as usize)?;
        }
        Ok(stop)
    }

    /// The signal that arrived, if one did.
    pub(crate) fn signal(&self) -> Option<Signal> {
        match self.0.load(Ordering::SeqCst) as i32 {
            0 => None,
            SIGTERM => Some(Signal::Terminate),
            SIGHUP => Some(Signal::HangUp),
            _ => Some(Signal::Interrupt),
        }
    }
}

impl Signal {
    /// Its number.
    pub(super) fn number(self) -> u8 {
        (self.exit() as u8) - 128
    }

    /// The signal with this number; 0 is none.
    pub(super) fn of_number(number: u8) -> Option<Signal> {
        [Signal::Interrupt, Signal::Terminate, Signal::HangUp]
            .into_iter()
            .find(|signal| signal.number() == number)
    }

    /// Its name in C headers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Signal::Interrupt => "SIGINT",
            Signal::Terminate => "SIGTERM",
            Signal::HangUp => "SIGHUP",
        }
    }

    /// 128 plus the signal's number, as shells report it.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Signal::Interrupt => Exit::Interrupted,
            Signal::Terminate => Exit::Terminated,
            Signal::HangUp => Exit::HungUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_128_and_the_signals_number() {
        for (signal, number) in
            [(Signal::Interrupt, SIGINT), (Signal::Terminate, SIGTERM), (Signal::HangUp, SIGHUP)]
        {
            assert_eq!(signal.exit() as i32, 128 + number);
            let stop = Stop::default();
            assert_eq!(stop.signal(), None);
            stop.0.store(number as usize, Ordering::SeqCst);
            assert_eq!(stop.signal(), Some(signal));
            assert_eq!(
                (i32::from(signal.number()), Signal::of_number(signal.number())),
                (number, Some(signal))
            );
        }
    }
}
