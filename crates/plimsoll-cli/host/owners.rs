//! The owners of large pieces of memory: their names ([`Names`]), and the current owner of a thread's requests.

use std::cell::Cell;

use crate::spin::Spin;

/// The maximum number of owners; further names become [`Owner::OTHER`].
pub(crate) const MOST: usize = 192;

/// The maximum length of a name.
const LENGTH: usize = 120;

/// An owner's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u16);

impl Owner {
    /// `malloc`, `calloc`, `realloc`: Python's long strings, NumPy's arrays, C++'s vectors.
    pub(crate) const OTHER: Owner = Owner(0);
    /// Aligned memory: the allocator of PyTorch's CPU tensors.
    pub(crate) const TENSORS: Owner = Owner(1);
    /// Arenas of Python's allocator for small objects.
    pub(crate) const OBJECTS: Owner = Owner(2);
    pub(crate) const MAPPED: Owner = Owner(3);
    pub(crate) const PINNED: Owner = Owner(4);
    pub(crate) const SHARED: Owner = Owner(5);
    /// Tensors into which data was copied from the GPU.
    pub(crate) const COPIES: Owner = Owner(6);
    /// Memory of our own hooks.
    pub(crate) const OURS: Owner = Owner(7);
}

const FIRST: [&str; 8] = [
    "buffers of libraries and Python",
    "CPU tensors",
    "Python objects",
    "anonymous mappings",
    "pinned memory",
    "shared memory",
    "copies from the GPU",
    "plimsoll",
];

pub(crate) struct Names {
    texts: [[u8; LENGTH]; MOST],
    lengths: [u8; MOST],
    count: usize,
}

pub(crate) static NAMES: Spin<Names> =
    Spin::new(Names { texts: [[0; LENGTH]; MOST], lengths: [0; MOST], count: FIRST.len() });

impl Names {
    pub(crate) fn of(&self, owner: usize) -> &[u8] {
        match FIRST.get(owner) {
            Some(name) => name.as_bytes(),
            None => &self.texts[owner][..usize::from(self.lengths[owner])],
        }
    }

    /// The owner with this name, which may be new. A long name is truncated.
    pub(crate) fn numbered(&mut self, name: &[u8]) -> Owner {
        let name = &name[..name.len().min(LENGTH)];
        if let Some(known) = (0..self.count).find(|&owner| self.of(owner) == name) {
            return Owner(known as u16);
        }
        if self.count == MOST {
            return Owner::OTHER;
        }
        let owner = self.count;
        self.texts[owner][..name.len()].copy_from_slice(name);
        self.lengths[owner] = name.len() as u8;
        self.count += 1;
        Owner(owner as u16)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

thread_local! {
    static SCOPE: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// Sets the owner of this thread's requests from now on. Returns the previous one.
pub(crate) fn enter(owner: Option<Owner>) -> Option<Owner> {
    SCOPE.replace(owner)
}

/// The owner of this thread's requests; `without` if the thread has none.
pub(crate) fn current(without: Owner) -> Owner {
    // A thread that is ending may have none left.
    SCOPE.try_with(Cell::get).ok().flatten().unwrap_or(without)
}
