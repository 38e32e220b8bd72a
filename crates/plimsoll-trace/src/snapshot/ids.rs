//! Indices into a snapshot's tables, each with its own type; and [`MaybeU64`].

use std::num::{NonZeroU16, NonZeroU32};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($nonzero:ty, $repr:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($nonzero);

        impl $name {
            /// The id of the entry at an index; `None` if the index is too large for an id.
            pub fn new(index: usize) -> Option<Self> {
                <$repr>::try_from(index.checked_add(1)?).ok().and_then(<$nonzero>::new).map(Self)
            }

            /// The index in the table.
            pub fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }
    };
}

id! {
    /// The id of a text in [`Texts`](super::Texts).
    TextId(NonZeroU32, u32)
}
id! {
    /// The id of a frame in [`Stacks`](super::Stacks).
    FrameId(NonZeroU32, u32)
}
id! {
    /// The id of a frame's `torch.fx` annotation in [`Stacks`](super::Stacks).
    FxId(NonZeroU32, u32)
}
id! {
    /// The id of a stack in [`Stacks`](super::Stacks). Equal stacks of one snapshot have equal ids.
    StackId(NonZeroU32, u32)
}
id! {
    /// The id of a pool in [`Pools`](super::Pools).
    PoolIndex(NonZeroU32, u32)
}
id! {
    /// The id of a category in [`Snapshot::categories`](super::Snapshot::categories).
    CategoryId(NonZeroU16, u16)
}

id! {
    /// The index of an event in one device's trace. The index after the last event stands for the moment when the
    /// snapshot was taken.
    EventIndex(NonZeroU32, u32)
}
id! {
    /// The index of a block's lifetime in [`Timeline::lives`](crate::timeline::Timeline::lives).
    LifeIndex(NonZeroU32, u32)
}

impl StackId {
    /// The stack without frames, which PyTorch writes if it recorded none.
    pub const EMPTY: Self = Self(NonZeroU32::MIN);
}

/// An optional number in eight bytes. `u64::MAX` means absent.
///
/// ```
/// # use plimsoll_trace::snapshot::MaybeU64;
/// assert_eq!(MaybeU64::from(7).get(), Some(7));
/// assert_eq!(MaybeU64::ABSENT.get(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaybeU64(u64);

impl MaybeU64 {
    /// The absent value.
    pub const ABSENT: Self = Self(u64::MAX);

    /// The number, if present.
    pub fn get(self) -> Option<u64> {
        (self != Self::ABSENT).then_some(self.0)
    }
}

impl From<u64> for MaybeU64 {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Option<u64>> for MaybeU64 {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::ABSENT, Self)
    }
}

impl Default for MaybeU64 {
    fn default() -> Self {
        Self::ABSENT
    }
}

impl std::fmt::Debug for MaybeU64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}
