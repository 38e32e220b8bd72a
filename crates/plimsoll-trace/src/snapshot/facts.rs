//! Which keys a file has ([`Facts`]), and its encoding ([`Form`]). PyTorch's format has no version number, but the keys
//! show the version.

use super::{Key, KeySet, TextId};

/// A kind of dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The snapshot itself.
    Snapshot,
    /// An entry of `segments`.
    Segment,
    /// An entry of `blocks`.
    Block,
    /// An entry of a block's `history`, before PyTorch 2.1.
    History,
    /// An entry of a trace.
    Event,
    /// An entry of `frames`.
    Frame,
    /// An entry of `external_annotations`.
    Annotation,
}

impl Kind {
    /// Every kind, in the order of the variants.
    pub const ALL: [Self; 7] = [
        Self::Snapshot,
        Self::Segment,
        Self::Block,
        Self::History,
        Self::Event,
        Self::Frame,
        Self::Annotation,
    ];

    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Segment => "segment",
            Self::Block => "block",
            Self::History => "history entry",
            Self::Event => "trace entry",
            Self::Frame => "frame",
            Self::Annotation => "annotation",
        }
    }
}

/// A file's encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A pickle of this protocol.
    Pickle(u8),
    /// JSON.
    Json,
    /// A Plimsoll log.
    Log,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pickle(protocol) => write!(f, "a pickle of protocol {protocol}"),
            Self::Json => f.write_str("JSON"),
            Self::Log => f.write_str("a log of Plimsoll's"),
        }
    }
}

/// The keys that a file has, and those that were skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// For each kind of dictionary, the keys that at least one of them had.
    seen: [KeySet; Kind::ALL.len()],
    /// Unknown keys in order of first appearance, at most 64, and how often each occurs in a kind of dictionary.
    pub ignored: Vec<Ignored>,
    /// How often other unknown keys occur.
    pub ignored_beyond: u64,
    /// The file's encoding; `None` if the snapshot was never a file.
    pub form: Option<Form>,
}

/// How many unknown keys are counted by name.
const MOST_NAMED: usize = 64;

/// An unknown key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ignored {
    /// The kind of dictionary that contains the key.
    pub kind: Kind,
    /// The text of the key.
    pub key: TextId,
    /// How often the key occurs.
    pub times: u64,
}

impl Facts {
    /// The keys that at least one dictionary of this kind had.
    pub fn seen(&self, kind: Kind) -> KeySet {
        self.seen[kind as usize]
    }

    /// Records the keys of a dictionary of this kind.
    pub(crate) fn see(&mut self, kind: Kind, keys: KeySet) {
        let seen = &mut self.seen[kind as usize];
        *seen = seen.union(keys);
    }

    /// Counts an unknown key.
    pub(crate) fn ignore(&mut self, kind: Kind, key: TextId) {
        let known = self.ignored.iter().position(|ignored| (ignored.kind, ignored.key) == (kind, key));
        match known {
            Some(known) => self.ignored[known].times += 1,
            None if self.ignored.len() < MOST_NAMED => self.ignored.push(Ignored { kind, key, times: 1 }),
            None => self.ignored_beyond += 1,
        }
    }

    /// The range of PyTorch versions that write these keys, in words.
    pub fn written_by(&self) -> &'static str {
        let (top, event) = (self.seen(Kind::Snapshot), self.seen(Kind::Event));
        let (segment, block) = (self.seen(Kind::Segment), self.seen(Kind::Block));
        if top.contains(Key::HostSegments) {
            "PyTorch 2.13 or newer"
        } else if event.contains(Key::PoolId) {
            "PyTorch 2.12"
        } else if event.contains(Key::UserMetadata) {
            "PyTorch 2.11 or shortly before"
        } else if event.contains(Key::TimeUs) || block.contains(Key::Address) {
            "PyTorch 2.1 to 2.9"
        } else if segment.is_empty() && event.is_empty() {
            "an unknown version: there is neither a segment nor an event"
        } else {
            "PyTorch 1.12 to 2.0"
        }
    }
}
