//! The keys of PyTorch's dictionaries: [`Key`], and sets of them.

use std::fmt;

use super::TextId;

macro_rules! keys {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// A key of any of a snapshot's dictionaries: PyTorch writes all of them, except `plimsoll_predict`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }

        impl Key {
            /// Every key, in the order of the variants.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The key's text, as PyTorch writes it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

keys! {
    Segments = "segments", DeviceTraces = "device_traces", AllocatorSettings = "allocator_settings",
    ExternalAnnotations = "external_annotations", HostSegments = "host_segments", HostTraces = "host_traces",
    Categories = "categories", Prediction = "plimsoll_predict",
    Device = "device", Address = "address", TotalSize = "total_size", AllocatedSize = "allocated_size",
    ActiveSize = "active_size", RequestedSize = "requested_size", Stream = "stream",
    SegmentType = "segment_type", SegmentPoolId = "segment_pool_id", IsExpandable = "is_expandable",
    Frames = "frames", ForwardFrames = "forward_frames", Blocks = "blocks", Size = "size", State = "state", History = "history", Addr = "addr",
    RealSize = "real_size", Action = "action", DeviceFree = "device_free", TimeUs = "time_us",
    CompileContext = "compile_context", UserMetadata = "user_metadata",
    InternalMetadata = "internal_metadata", PoolId = "pool_id", Category = "category",
    Filename = "filename", Name = "name", Line = "line", FxNodeOp = "fx_node_op",
    FxNodeName = "fx_node_name", FxOriginalTrace = "fx_original_trace", FxNodeInfo = "fx_node_info",
    Stage = "stage",
}

impl Key {
    /// The key whose text has this id.
    pub(crate) fn of(text: TextId) -> Option<Self> {
        Self::ALL.get(text.index()).copied()
    }

    /// The id of the key's text, which is the same in every [`Texts`](super::Texts).
    pub(crate) fn text(self) -> TextId {
        TextId::new(self as usize).expect("a table begins with the keys")
    }
}

/// A set of keys.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct KeySet(u64);

const _: () = assert!(Key::ALL.len() <= 64, "a set has 64 places");

impl KeySet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// Every key.
    pub const ALL: Self = Self(u64::MAX);

    /// The set of these keys.
    pub const fn of(keys: &[Key]) -> Self {
        let mut set = 0;
        let mut nth = 0;
        while nth < keys.len() {
            set |= 1 << keys[nth] as u64;
            nth += 1;
        }
        Self(set)
    }

    /// Whether the set contains the key.
    pub fn contains(self, key: Key) -> bool {
        self.0 & 1 << key as u64 != 0
    }

    /// Adds a key.
    pub fn insert(&mut self, key: Key) {
        self.0 |= 1 << key as u64;
    }

    /// The keys in either set.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The keys in both sets.
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The keys that `other` does not contain.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The keys, in the order of [`Key::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Key> {
        Key::ALL.into_iter().filter(move |&key| self.contains(key))
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Key::name)).finish()
    }
}
