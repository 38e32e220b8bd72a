//! Whether a program fits: [`Verdict`].

use super::growth::Growth;
use super::shortage::Shortage;
use crate::exit::Exit;
use crate::protocol::Refusal;

/// Whether it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It fits, with this much of the GPU's memory to spare. The program caught this many requests that
    /// ran out of memory.
    Fits { spare_bytes: u64, caught: u64 },
    /// A request failed.
    RunsOut(Shortage),
    /// Memory grows. It runs out before the program ends, or the program's end is unknown.
    Grows(Growth),
    /// A technique of `--with` cannot be applied to the program.
    Refused(Refusal),
    /// The program failed for a reason other than memory, with a possible cause.
    Failed { how: String, hint: Option<String> },
    /// There is no answer, for this reason.
    Unknown(String),
}

impl Verdict {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Verdict::Fits { .. } => Exit::Done,
            Verdict::RunsOut(_) | Verdict::Grows(_) | Verdict::Unknown(_) => Exit::OutOfMemory,
            Verdict::Refused(_) => Exit::Usage,
            Verdict::Failed { .. } => Exit::Program,
        }
    }
}
