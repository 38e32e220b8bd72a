//! File names, function names, scopes and metadata, without duplicates: [`Texts`].

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Key, TextId};

/// Texts by id. The first texts are the [`Key`]s, in order, so that a key is recognised by its id.
///
/// ```
/// # use plimsoll_trace::snapshot::Texts;
/// let mut texts = Texts::default();
/// let id = texts.intern("train.py").expect("room");
/// assert_eq!((texts.intern("train.py"), texts.get(id)), (Some(id), "train.py"));
/// ```
#[derive(Clone)]
pub struct Texts {
    /// All texts, concatenated.
    joined: String,
    /// The end of each text in `joined`.
    ends: Vec<usize>,
    known: HashTable<TextId>,
    hasher: DefaultHashBuilder,
}

impl Default for Texts {
    fn default() -> Self {
        let (joined, ends) = Default::default();
        let mut texts = Self { joined, ends, known: HashTable::new(), hasher: DefaultHashBuilder::default() };
        for key in Key::ALL {
            texts.intern(key.name());
        }
        texts
    }
}

impl Texts {
    /// The text with this id. The id must belong to this table.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn get(&self, id: TextId) -> &str {
        text(&self.joined, &self.ends, id)
    }

    /// The id of a text, which is added if it is new; `None` if ids run out.
    pub fn intern(&mut self, text: &str) -> Option<TextId> {
        self.intern_bytes(text.as_bytes())
    }

    /// Like [`Texts::intern`], for bytes that should be UTF-8. Invalid parts are replaced by U+FFFD.
    pub fn intern_bytes(&mut self, bytes: &[u8]) -> Option<TextId> {
        let hash = self.hasher.hash_one(bytes);
        let Self { joined, ends, .. } = self;
        let same = |&id: &TextId| text(joined, ends, id).as_bytes() == bytes;
        if let Some(&id) = self.known.find(hash, same) {
            return Some(id);
        }
        match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(valid) => self.insert(hash, valid),
            // The text is stored in its repaired form. Such texts are so rare that they can be repaired each time they
            // occur.
            Cow::Owned(repaired) => self.intern(&repaired),
        }
    }

    fn insert(&mut self, hash: u64, new: &str) -> Option<TextId> {
        let id = TextId::new(self.ends.len())?;
        self.joined.push_str(new);
        self.ends.push(self.joined.len());
        let Self { joined, ends, hasher, .. } = self;
        self.known.insert_unique(hash, id, |&id| hasher.hash_one(text(joined, ends, id).as_bytes()));
        Some(id)
    }

    /// The id of a text; `None` if the table does not contain the text.
    pub fn find(&self, wanted: &str) -> Option<TextId> {
        let hash = self.hasher.hash_one(wanted.as_bytes());
        self.known.find(hash, |&id| self.get(id) == wanted).copied()
    }

    /// The number of texts, including the keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Always false: the keys are always present.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The heap memory that the table takes, bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.joined.capacity() + self.ends.capacity() * 8 + self.known.capacity() * 8
    }
}

fn text<'a>(joined: &'a str, ends: &[usize], id: TextId) -> &'a str {
    let nth = id.index();
    let start = if nth == 0 { 0 } else { ends[nth - 1] };
    &joined[start..ends[nth]]
}

impl PartialEq for Texts {
    fn eq(&self, other: &Self) -> bool {
        self.joined == other.joined && self.ends == other.ends
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Texts({})", self.len())
    }
}
