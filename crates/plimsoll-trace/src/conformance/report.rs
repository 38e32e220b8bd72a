//! The result of a replay: [`Report`], with the first difference explained ([`Divergence`]).

use std::fmt;

use plimsoll_alloc::Explanation;

/// The result of a replay, up to its last row or to the first difference.
#[derive(Debug)]
pub struct Report {
    /// The number of rows that were compared, including the row that differs.
    pub rows: usize,
    /// The first difference; `None` if everything is equal.
    pub divergence: Option<Divergence>,
}

/// The first row for which the two allocators differ.
#[derive(Debug)]
pub struct Divergence {
    /// The number of the line in the file, or of the step in the program.
    pub at: usize,
    /// The request or other operation, as text.
    pub asked: String,
    /// The figures that differ after the row.
    pub differences: Vec<Difference>,
    /// If the row is a request, the candidate blocks.
    pub choice: Option<Choice>,
}

/// One figure that differs.
#[derive(Debug)]
pub struct Difference {
    /// The name of the statistic, address or list of calls.
    pub what: String,
    /// PyTorch's value.
    pub theirs: String,
    /// Our value.
    pub ours: String,
}

/// The candidate blocks for a request, and where each allocator placed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The free blocks, and the block that our allocator uses, with the reason.
    pub explanation: Explanation,
    /// Where PyTorch placed the block.
    pub theirs: Answer,
    /// Where our allocator placed the block.
    pub ours: Answer,
}

/// The address of a block that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The block is at this address.
    At(u64),
    /// There is no block, because memory ran out.
    OutOfMemory,
    /// The address is not recorded.
    Untold,
}

impl Answer {
    /// The answer with this address; out of memory if there is no address.
    pub(crate) fn of(addr: Option<u64>) -> Self {
        addr.map_or(Self::OutOfMemory, Self::At)
    }
}

impl Difference {
    /// The difference between two figures; `None` if they are equal.
    pub(crate) fn between<T: PartialEq + fmt::Display + ?Sized>(
        what: &str,
        theirs: &T,
        ours: &T,
    ) -> Option<Self> {
        let differ = theirs != ours;
        differ.then(|| Self { what: what.to_owned(), theirs: theirs.to_string(), ours: ours.to_string() })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.divergence {
            None => write!(f, "{} rows, no difference", self.rows),
            Some(divergence) => write!(f, "{} rows, the last differs\n{divergence}", self.rows),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at {}: {}", self.at, self.asked)?;
        for Difference { what, theirs, ours } in &self.differences {
            writeln!(f, "  {what}: PyTorch {theirs}, ours {ours}")?;
        }
        match &self.choice {
            Some(choice) => choice.fmt(f),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { block_bytes, segment_bytes, candidates } = &self.explanation;
        writeln!(
            f,
            "  needs {block_bytes} bytes, or a segment of {segment_bytes}; free blocks that are large enough:"
        )?;
        for candidate in candidates {
            let mark = |answer, name| if answer == Answer::At(candidate.addr.0) { name } else { "" };
            let (theirs, ours) = (mark(self.theirs, " <- PyTorch"), mark(self.ours, " <- ours"));
            writeln!(
                f,
                "    {} {} bytes, segment {}: {}{theirs}{ours}",
                candidate.addr, candidate.bytes, candidate.segment_number, candidate.verdict
            )?;
        }
        for (name, answer) in [("PyTorch", self.theirs), ("ours", self.ours)] {
            match answer {
                Answer::OutOfMemory => writeln!(f, "  {name} ran out of memory")?,
                Answer::At(addr) if !candidates.iter().any(|candidate| candidate.addr.0 == addr) => {
                    writeln!(f, "  {name} took new memory, at {addr:#x}")?;
                }
                Answer::At(_) | Answer::Untold => {}
            }
        }
        Ok(())
    }
}
