//! The line of the program that called an operation, for reports of memory.
//!
//! Operations are `#[track_caller]`, and note their caller before they request memory (`called`). A caller inside this library is not
//! what a user looks for, so functions that run other code (a layer, a backward pass, an optimizer's step) open an [`Entry`]: memory that
//! is requested by a line of the library belongs to the innermost line of the program that is waiting for it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

/// A place in a source file.
pub type Line = &'static Location<'static>;

thread_local! {
    /// Where the last operation was called.
    static CALLED: Cell<Option<Line>> = const { Cell::new(None) };
    /// The innermost line of the program whose call has not returned.
    static ENTERED: Cell<Option<Line>> = const { Cell::new(None) };
}

/// Notes where an operation was called.
#[inline]
pub(crate) fn called(at: Line) {
    CALLED.set(Some(at));
}

/// The line of the program that memory is requested for now, if it is known.
pub(crate) fn line() -> Option<Line> {
    // Memory may be requested while a thread ends, after its variables are gone.
    let called = CALLED.try_with(Cell::get).ok().flatten();
    called.filter(|at| is_of_program(at)).or_else(|| ENTERED.try_with(Cell::get).ok().flatten())
}

/// Two places that determine [`line()`], without the work of finding out which one it is.
#[inline]
pub(crate) fn places() -> [usize; 2] {
    let address = |at: Option<Line>| at.map_or(0, |at| std::ptr::from_ref(at).addr());
    [address(CALLED.get()), address(ENTERED.get())]
}

/// Restores the line that memory is requested for when it is dropped, after other code has run in the middle of an operation.
pub(crate) struct Kept([Option<Line>; 2]);

impl Kept {
    pub(crate) fn new() -> Kept {
        Kept([CALLED.try_with(Cell::get).ok().flatten(), ENTERED.try_with(Cell::get).ok().flatten()])
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = CALLED.try_with(|called| called.set(self.0[0]));
        let _ = ENTERED.try_with(|entered| entered.set(self.0[1]));
    }
}

/// Until it is dropped, memory that lines of this library request belongs to the line of the program that opened it.
///
/// ```
/// use plimsoll_tensor::caller::Entry;
/// use plimsoll_tensor::{Device, Result, Tensor};
/// #[track_caller]
/// fn forward(x: &Tensor) -> Result<Tensor> {
///     let _entry = Entry::here(); // the line that called `forward`
///     x.exp()
/// }
/// forward(&Tensor::ones(&[4], &Device::cpu())?)?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an entry ends when it is dropped"]
pub struct Entry {
    before: Option<Line>,
    /// It belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl Entry {
    /// Opens an entry for the caller of the `#[track_caller]` function that calls this. If that is a line of this library, the entry
    /// around it stays in effect.
    #[track_caller]
    #[inline]
    pub fn here() -> Entry {
        let at = Location::caller();
        let before = ENTERED.get();
        CALLED.set(None);
        if is_of_program(at) {
            ENTERED.set(Some(at));
        }
        Entry { before, _not_send: PhantomData }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        ENTERED.set(self.before);
    }
}

/// Whether a line belongs to the program, and not to this library or to Rust's. Recent answers are kept.
fn is_of_program(at: Line) -> bool {
    const PLACES: usize = 128;
    thread_local! {
        static RECENT: [Cell<(usize, bool)>; PLACES] = const { [const { Cell::new((0, false)) }; PLACES] };
    }
    let address = std::ptr::from_ref(at).addr();
    let known = RECENT.try_with(|recent| {
        let place = &recent[(address >> 3) % PLACES];
        let (known, answer) = place.get();
        if known == address {
            return answer;
        }
        let answer = is_file_of_program(at.file());
        place.set((address, answer));
        answer
    });
    known.unwrap_or_else(|_| is_file_of_program(at.file()))
}

/// Sources of this library are in folders such as `plimsoll-tensor/src` or, from a registry, `plimsoll-tensor-0.1.0/src`.
fn is_file_of_program(file: &str) -> bool {
    let mut folders = file.split(['/', '\\']).peekable();
    if file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/") {
        return false;
    }
    while let Some(folder) = folders.next() {
        if folders.peek() == Some(&"src") && is_crate(folder) {
            return false;
        }
    }
    true
}

/// Whether a folder has the name of one of the two crates, with or without a version.
fn is_crate(folder: &str) -> bool {
    let rest = folder.strip_prefix("plimsoll-tensor").or_else(|| folder.strip_prefix("plimsoll"));
    rest.is_some_and(|rest| {
        rest.is_empty()
            || rest.strip_prefix('-').is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_library_is_not_of_the_program() {
        for file in [
            "crates/plimsoll/src/nn/linear.rs",
            "/home/me/.cargo/registry/src/index-1/plimsoll-tensor-0.1.0/src/dispatch/mod.rs",
            "C:\\plimsoll\\crates\\plimsoll-tensor\\src\\lib.rs",
            "/rustc/abc/library/core/src/option.rs",
        ] {
            assert!(!is_file_of_program(file), "{file}");
        }
        for file in
            ["src/main.rs", "crates/plimsoll/tests/memory.rs", "plimsoll-cli/src/main.rs", "plimsoll/src.rs"]
        {
            assert!(is_file_of_program(file), "{file}");
        }
    }

    #[test]
    fn the_innermost_entry_of_the_program_counts() {
        assert!(line().is_none());
        called(Location::caller()); // in this crate's sources
        assert!(line().is_none());
        let entry = Entry::here();
        assert!(line().is_none(), "an entry from the library");
        drop(entry);
    }
}
