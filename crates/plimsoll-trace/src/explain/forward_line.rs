//! The line of the forward pass that a request of the backward pass belongs to: [`ForwardLine`].

use crate::snapshot::FrameId;

/// A line of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardLine {
    /// The user's line.
    pub frame: FrameId,
    /// The library line that it called, if any.
    pub package_line: Option<FrameId>,
    /// How the line was found.
    pub by: FoundBy,
}

/// How a forward line was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundBy {
    /// The recording has the forward operator's stack: anomaly mode was on.
    Recorded,
    /// The derivative's name matches an operator of the line, at the right place in the order.
    Operator,
    /// Only order and sizes match.
    Order,
}

impl FoundBy {
    /// The confidence, in words.
    pub fn confidence(self) -> &'static str {
        match self {
            Self::Recorded => "certain",
            Self::Operator => "likely",
            Self::Order => "a guess",
        }
    }
}
