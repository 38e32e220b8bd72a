//! Whether a program fits: [`Verdict`].

use super::growth::Growth;
use super::shortage::Shortage;
use crate::exit::Exit;
use crate::protocol::Refusal;

/// Whether a program fits, or why this is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The program fits. `spare_bytes` of the GPU's memory are left, and `caught` is the number of out-of-memory errors
    /// that the program caught.
    Fits { spare_bytes: u64, caught: u64 },
    /// A request failed.
    RunsOut(Shortage),
    /// Memory grows, and runs out before the program ends, or it is unknown when the program ends.
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
