//! A request: [`Request`], and the ids in it. Its result is in `allocation.rs`.
//!
//! These are plain values. Placement reads `bytes`, `stream` and `pool`. The [`Tag`] (category and label) and the stack
//! are stored and reported, but never affect placement. `allocator.rs` serves a request.

use std::fmt;

use crate::category::Category;

/// A device address: a number, never dereferenced here.
///
/// ```
/// # use plimsoll_alloc::Addr;
/// assert_eq!(Addr(0x5000_0000_0000).to_string(), "0x500000000000");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(pub u64);

impl Addr {
    /// The address plus `bytes`.
    pub(crate) fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A stream's handle. 0 is the default stream. A cached block serves only the stream of its segment.
///
/// ```
/// # use plimsoll_alloc::StreamId;
/// assert_eq!(StreamId::default(), StreamId(0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId(pub u64);

/// An opaque id of a label, such as a layer's path. 0 means no label.
///
/// ```
/// # use plimsoll_alloc::LabelId;
/// assert_eq!(LabelId::default(), LabelId(0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LabelId(pub u32);

/// A pool's id: a pair, as in PyTorch. (0, 0) is the default pool, (n, 0) a graph's, (0, n) a user's.
///
/// ```
/// # use plimsoll_alloc::PoolId;
/// assert_eq!(PoolId::DEFAULT, PoolId(0, 0));
/// assert_eq!(PoolId(0, 7).to_string(), "0_7");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The default pool.
    pub const DEFAULT: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.0, self.1)
    }
}

/// An opaque id of the place in the program (the stack) that made a request.
///
/// ```
/// # use plimsoll_alloc::{Request, StackId};
/// assert_eq!(Request { stack: Some(StackId(3)), ..Request::of(512) }.stack, Some(StackId(3)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// The category and label of a block. Never affects placement.
///
/// ```
/// # use plimsoll_alloc::{Category, LabelId, Tag};
/// let tag = Tag { category: Category::Gradient, label: LabelId(3) };
/// assert_ne!(tag, Tag::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag {
    /// The category.
    pub category: Category,
    /// The label.
    pub label: LabelId,
}

/// One request for device memory.
///
/// ```
/// # use plimsoll_alloc::{Category, LabelId, Request, StreamId};
/// let weight = Request { category: Category::Parameter, label: LabelId(7), ..Request::of(4096) };
/// assert_eq!(weight.stream, StreamId(0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The size in bytes, before rounding. 0 is allowed and allocates nothing.
    pub bytes: u64,
    /// The stream that will use the block.
    pub stream: StreamId,
    /// The pool to allocate from.
    pub pool: PoolId,
    /// The category.
    pub category: Category,
    /// The label.
    pub label: LabelId,
    /// The stack of the request, for the history.
    pub stack: Option<StackId>,
}

impl Request {
    /// A request for an unlabelled temporary of `bytes` from the default pool on the default stream. Set the other
    /// fields with struct update syntax.
    pub fn of(bytes: u64) -> Self {
        let Tag { category, label } = Tag::default();
        Self { bytes, stream: StreamId::default(), pool: PoolId::DEFAULT, category, label, stack: None }
    }

    /// Category and label as one value.
    pub fn tag(&self) -> Tag {
        Tag { category: self.category, label: self.label }
    }
}
