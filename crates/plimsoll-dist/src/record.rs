//! Records of collective calls: a single call, and a group's latest calls with a hash of all its calls. If the hashes
//! of two ranks differ, the ranks called different collectives; the recorded calls show where they diverged.

use std::collections::VecDeque;
use std::fmt;

/// The number of calls that a record keeps.
const KEPT: usize = 64;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Every rank receives the parts of all ranks.
    AllGather,
    /// Part r of each rank goes to rank r.
    AllToAll,
    /// Every rank receives the buffer of one rank.
    Broadcast,
    /// No rank continues until all have arrived.
    Barrier,
}

impl Op {
    /// All operations, in the order of their numbers on the wire.
    const ALL: [Op; 4] = [Op::AllGather, Op::AllToAll, Op::Broadcast, Op::Barrier];

    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Op::AllGather => "all_gather",
            Op::AllToAll => "all_to_all",
            Op::Broadcast => "broadcast",
            Op::Barrier => "barrier",
        }
    }

    pub(crate) fn to_wire(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_wire(number: u8) -> Option<Op> {
        Op::ALL.get(usize::from(number)).copied()
    }
}

/// One call of a collective, as made by one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number of calls that this rank made in this group before this one.
    pub number: u64,
    /// The operation.
    pub op: Op,
    /// The size of the full buffer in bytes.
    pub bytes: u64,
    /// The owner of the bytes, such as a parameter, for messages. Empty if unknown.
    pub label: String,
    /// The element type, such as `float32`. Empty if unknown.
    pub dtype: String,
    /// The name of the group, such as `shard`. Empty for all ranks.
    pub group: String,
}

/// A description of the bytes that a collective moves.
///
/// ```
/// use plimsoll_dist::Content;
/// assert_eq!(Content::from("wte.weight"), Content { label: "wte.weight", dtype: "" });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content<'a> {
    /// The owner of the bytes, for messages; may differ between ranks.
    pub label: &'a str,
    /// The element type; must be the same on all ranks.
    pub dtype: &'a str,
}

impl<'a> From<&'a str> for Content<'a> {
    fn from(label: &'a str) -> Content<'a> {
        Content { label, dtype: "" }
    }
}

impl Call {
    /// A hash of all fields that must be the same on all ranks, that is, all except the label.
    pub fn hash(&self) -> u64 {
        let Call { number, op, bytes, dtype, group, .. } = self;
        let fields = [number.to_le_bytes(), u64::from(op.to_wire()).to_le_bytes(), bytes.to_le_bytes()];
        let hash = fnv(fnv(START, fields.as_flattened()), dtype.as_bytes());
        // A zero byte separates the two texts.
        if group.is_empty() { hash } else { fnv(fnv(hash, &[0]), group.as_bytes()) }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { number, op, bytes, label, dtype, group } = self;
        write!(f, "{} {number}", op.name())?;
        if !label.is_empty() {
            write!(f, " of `{label}`")?;
        }
        let size = match dtype.as_str() {
            _ if *op == Op::Barrier => String::new(),
            "" | "bytes" => format!("{bytes} bytes"),
            dtype => format!("{bytes} bytes of {dtype}"),
        };
        match (size.is_empty(), group.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => write!(f, " (group `{group}`)"),
            (false, true) => write!(f, " ({size})"),
            (false, false) => write!(f, " ({size}, group `{group}`)"),
        }
    }
}

/// The latest calls in a group, oldest first, and a hash of all calls so far.
///
/// ```
/// use plimsoll_dist::{Call, Op, Record};
/// let (mut a, mut b) = (Record::default(), Record::default());
/// let call = |bytes| {
///     let (label, dtype, group) = Default::default();
///     Call { number: 0, op: Op::AllGather, bytes, label, dtype, group }
/// };
/// a.push(call(8));
/// b.push(call(16));
/// assert_ne!(a.hash(), b.hash());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Record {
    calls: VecDeque<Call>,
    hash: u64,
}

impl Record {
    /// Adds a call. A record keeps 64 calls, and then drops the oldest, which still counts in the hash.
    pub fn push(&mut self, call: Call) {
        self.hash = fnv(self.hash ^ START, &call.hash().to_le_bytes());
        if self.calls.len() == KEPT {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// A hash of all calls. It is the same on two ranks that made the same calls in the same order.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The newest call.
    pub fn last(&self) -> Option<&Call> {
        self.calls.back()
    }

    /// The recorded calls, oldest first.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter()
    }
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a.
pub(crate) fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_the_last_64_and_hashes_all() {
        let (label, dtype, group) = (String::new(), String::new(), String::new());
        let first = Call { number: 0, op: Op::Barrier, bytes: 0, label, dtype, group };
        let call = |number| Call { number, ..first.clone() };
        let (mut all, mut later) = (Record::default(), Record::default());
        (0..100).for_each(|number| all.push(call(number)));
        (36..100).for_each(|number| later.push(call(number)));
        assert_eq!(all.calls().collect::<Vec<_>>(), later.calls().collect::<Vec<_>>());
        assert_ne!(all.hash(), later.hash());
        assert_eq!(all.last().map(|call| call.number), Some(99));
    }

    #[test]
    fn each_field_is_in_the_hash() {
        let call = Call {
            number: 1,
            op: Op::AllGather,
            bytes: 8,
            label: "a".to_owned(),
            dtype: "float32".to_owned(),
            group: String::new(),
        };
        assert_eq!(call.to_string(), "all_gather 1 of `a` (8 bytes of float32)");
        let in_group = Call { group: "shard".to_owned(), ..call.clone() };
        assert_eq!(in_group.to_string(), "all_gather 1 of `a` (8 bytes of float32, group `shard`)");
        let barrier = Call { op: Op::Barrier, ..in_group.clone() };
        assert_eq!(barrier.to_string(), "barrier 1 of `a` (group `shard`)");
        for other in [
            Call { number: 2, ..call.clone() },
            Call { op: Op::AllToAll, ..call.clone() },
            Call { bytes: 9, ..call.clone() },
            Call { dtype: "int64".to_owned(), ..call.clone() },
            in_group,
        ] {
            assert_ne!(call.hash(), other.hash(), "{other}");
        }
        assert!(Op::ALL.iter().all(|op| Op::from_wire(op.to_wire()) == Some(*op)));
        assert_eq!(Op::from_wire(4), None);
    }
}
