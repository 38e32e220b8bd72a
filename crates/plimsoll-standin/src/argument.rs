//! What a C caller hands over: places to write to, values to read, text.
//!
//! Only C makes these, as arguments of the exported functions: no code of ours constructs one. By the
//! contract of each function in NVIDIA's headers such a pointer is null or leads to a value of that type,
//! which is all that the unsafe blocks here rely on.

use std::ffi::{CStr, c_char};

use crate::error::{Failure, Outcome};

/// A place for one value, or null.
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
    /// `InvalidValue` if the caller gave no place for it.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, and so, by the contract at the top, a place for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes an answer that the caller may decline by a null pointer.
    pub(crate) fn offer(self, value: T) {
        // A null pointer is the one reason for which `put` refuses.
        let _declined = self.put(value);
    }

    /// Writes the bytes of a structure or a text, of which the caller has at least that many.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the caller gave no place for it.
    pub(crate) fn put_bytes(self, bytes: &[u8]) -> Outcome {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, and so, by the contract at the top, as long as the structure that the header
        // names, whose layout `bytes` has.
        unsafe { self.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The first bytes of an array, of which the caller has at least that many.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the caller gave none.
    pub(crate) fn get_bytes(self, count: usize) -> Outcome<Vec<u8>> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, and so, by the contract at the top, as long as the array that the header names.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), count) }.to_vec())
    }

    /// The value that is there now.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the caller gave none.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        // SAFETY: `as_ref` looks for null; else, by the contract at the top, a `T` is there.
        unsafe { self.0.as_ref() }.copied().ok_or(Failure::InvalidValue)
    }
}

/// The number in bytes that [`Out::get_bytes`] gave, the lowest first.
pub(crate) fn little_endian(bytes: &[u8]) -> i64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// A place for text of so many bytes.
///
/// # Errors
///
/// `InvalidValue` if there is no place, or none for even the ending zero.
pub(crate) fn put_text(place: Out<c_char>, length: usize, text: &str) -> Outcome {
    let room = length.checked_sub(1).ok_or(Failure::InvalidValue)?;
    let mut bytes = text.as_bytes()[..text.len().min(room)].to_vec();
    bytes.push(0);
    place.put_bytes(&bytes)
}

/// Text that ends with a zero, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the caller gave none.
    pub(crate) fn read(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: not null, and so, by the contract at the top, text that ends with a zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
