//! Whether a set fits the GPU: [`Fit`], according to the GPU's [`Limits`].

/// Whether a set fits the GPU, and by how many bytes of its reserved memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fit {
    /// The set fits, and leaves this many bytes free.
    Room(u64),
    /// The set fits, but leaves only this many bytes free, so it may not fit on a real GPU.
    Close(u64),
    /// The set fits, and leaves this many bytes free, but only because the allocator releases cached memory when memory
    /// runs short, which takes time.
    Tight(u64),
    /// The set does not fit: it needs at least this many more bytes.
    Short(u64),
    /// The program did not run with this set, or did not finish; the text says why.
    Unknown(String),
}

/// The limits on the memory that the program may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The maximum number of bytes that fit.
    pub(super) capacity_bytes: u64,
    /// The maximum number of bytes that the program may reserve and still leave enough [room](Fit::Room).
    pub(super) roomy_bytes: u64,
}

impl Fit {
    /// Whether the set fits, with or without enough headroom.
    pub(super) fn fits(&self) -> bool {
        matches!(self, Fit::Room(_) | Fit::Close(_) | Fit::Tight(_))
    }

    pub(super) fn has_room(&self) -> bool {
        matches!(self, Fit::Room(_))
    }

    pub(super) fn is_tight(&self) -> bool {
        matches!(self, Fit::Tight(_))
    }

    /// The word for a small headroom: tight or close.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Fit::Close(_) => ", close",
            Fit::Tight(_) => ", tight",
            Fit::Room(_) | Fit::Short(_) | Fit::Unknown(_) => "",
        }
    }
}

impl Limits {
    /// How well a program fits if it runs with this many reserved bytes. A program that catches out-of-memory errors may
    /// use more than the capacity.
    pub(super) fn fit(self, reserved_bytes: u64) -> Fit {
        let left_bytes = self.capacity_bytes.saturating_sub(reserved_bytes);
        if self.is_close(reserved_bytes) { Fit::Close(left_bytes) } else { Fit::Room(left_bytes) }
    }

    /// How well a program fits if its allocator has to release cached memory.
    pub(super) fn tight(self, reserved_bytes: u64) -> Fit {
        Fit::Tight(self.capacity_bytes.saturating_sub(reserved_bytes))
    }

    /// The result for a program that does not fit and needs this many bytes.
    pub(super) fn short(self, bytes: u64) -> Fit {
        Fit::Short(bytes.saturating_sub(self.capacity_bytes))
    }

    /// Whether this many reserved bytes leave too little room.
    pub(super) fn is_close(self, reserved_bytes: u64) -> bool {
        reserved_bytes > self.roomy_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_has_room_or_is_close() {
        let limits = Limits { capacity_bytes: 100, roomy_bytes: 98 };
        for (bytes, fit) in
            [(90, Fit::Room(10)), (98, Fit::Room(2)), (99, Fit::Close(1)), (100, Fit::Close(0))]
        {
            assert_eq!(limits.fit(bytes), fit);
        }
        assert_eq!(limits.short(130), Fit::Short(30));
        assert!(limits.tight(97).fits() && !limits.tight(97).has_room());
    }
}
