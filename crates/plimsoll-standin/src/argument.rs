//! Arguments from C callers: output pointers, input values, text.
//!
//! Only C code creates these values, as arguments of the exported functions; no code of ours constructs one. NVIDIA's
//! headers promise that each pointer is null or points to a value of its type. The unsafe blocks here rely on that
//! promise and nothing else.

use std::ffi::{CStr, c_char};

use crate::error::{Failure, Outcome};

/// An output pointer for one value, or null.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the answer.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the pointer is null.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, so by the contract above it points to a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Whether the pointer is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes an output that the caller may decline with a null pointer.
    pub(crate) fn offer(self, value: T) {
        // `put` fails only for a null pointer.
        let _declined = self.put(value);
    }

    /// Writes the bytes of a structure or text. The caller's buffer has at least that many.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the pointer is null.
    pub(crate) fn put_bytes(self, bytes: &[u8]) -> Outcome {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, so by the contract above the buffer is as long as the structure that the header names,
        // whose layout `bytes` has.
        unsafe { self.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The first bytes of an array. The caller's array has at least that many.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the pointer is null.
    pub(crate) fn get_bytes(self, count: usize) -> Outcome<Vec<u8>> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, so by the contract above the array is as long as the header says.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), count) }.to_vec())
    }

    /// The current value.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the pointer is null.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        // SAFETY: `as_ref` checks for null; otherwise, by the contract above, it points to a `T`.
        unsafe { self.0.as_ref() }.copied().ok_or(Failure::InvalidValue)
    }
}

/// The little-endian number in the bytes that [`Out::get_bytes`] returned.
pub(crate) fn little_endian(bytes: &[u8]) -> i64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// A text buffer of this many bytes.
///
/// # Errors
///
/// `InvalidValue` if the pointer is null or the buffer has no room for the terminating zero.
pub(crate) fn put_text(place: Out<c_char>, length: usize, text: &str) -> Outcome {
    let room = length.checked_sub(1).ok_or(Failure::InvalidValue)?;
    let mut bytes = text.as_bytes()[..text.len().min(room)].to_vec();
    bytes.push(0);
    place.put_bytes(&bytes)
}

/// A zero-terminated string, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text, with invalid UTF-8 replaced.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the pointer is null.
    pub(crate) fn read(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, so by the contract above it is a zero-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
