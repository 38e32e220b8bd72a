//! The interface for constructing a pickle's values: [`Builder`]. The builder decides which of the Python objects that
//! a pickle names are known.

use std::io;

/// Constructs the values of a pickle. By default, a builder rejects Python objects: in Python, the operations behind
/// [`Self::global`], [`Self::persistent`], [`Self::reduce`] and [`Self::build`] can run code.
///
/// ```
/// use std::io::Error;
/// use plimsoll_trace::pickle::{self, Builder, Malformed, Scalar};
/// /// Adds whole numbers up; every value is their sum so far.
/// #[derive(Default)]
/// struct Sum(i64);
/// impl Builder for Sum {
///     type Value = i64;
///     type Error = Malformed;
///     fn scalar(&mut self, scalar: Scalar) -> i64 {
///         if let Scalar::Int(number) = scalar { self.0 += number }
///         self.0
///     }
///     fn text(&mut self, _: &[u8]) -> Result<i64, Malformed> { Ok(self.0) }
///     fn tuple(&mut self, _: &[i64]) -> Result<i64, Malformed> { Ok(self.0) }
///     fn list(&mut self) -> i64 { self.0 }
///     fn dict(&mut self) -> i64 { self.0 }
///     fn append(&mut self, _: i64, _: &[i64]) -> Result<i64, Malformed> { Ok(self.0) }
///     fn set(&mut self, _: i64, _: &[i64]) -> Result<i64, Malformed> { Ok(self.0) }
///     fn text_of(&self, _: i64) -> Option<String> { None }
///     fn global(&mut self, _: &str, name: &str) -> Result<i64, Malformed> {
///         Err(Malformed::Io(Error::other(name.to_owned())))
///     }
/// }
/// let (_, sum) = pickle::read(b"\x80\x04](K\x01K\x02e.".as_slice(), &mut Sum::default()).map_err(|(_, why)| why)?;
/// assert_eq!(sum, 3);
/// let (at, _) = pickle::read(b"\x80\x04cos\nsystem\n.".as_slice(), &mut Sum::default()).unwrap_err();
/// assert_eq!(at, 2);
/// # Ok::<(), Malformed>(())
/// ```
pub trait Builder {
    /// A value; for a container, a handle to it.
    type Value: Copy;
    /// Why a pickle is rejected.
    type Error: From<Malformed>;

    /// The longest string that is accepted.
    const LONGEST_TEXT_BYTES: u64 = u64::MAX;

    /// Makes a scalar.
    fn scalar(&mut self, scalar: Scalar) -> Self::Value;

    /// Makes a string from its bytes.
    ///
    /// # Errors
    /// If the string is not accepted.
    fn text(&mut self, bytes: &[u8]) -> Result<Self::Value, Self::Error>;

    /// Makes a tuple of these items.
    ///
    /// # Errors
    /// If the tuple is not accepted.
    fn tuple(&mut self, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// Makes an empty list.
    fn list(&mut self) -> Self::Value;

    /// Makes an empty dictionary.
    fn dict(&mut self) -> Self::Value;

    /// Appends items to a list. Returns the list's new value.
    ///
    /// # Errors
    /// If the value is not a list, or the items are not accepted.
    fn append(&mut self, list: Self::Value, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// Sets alternating keys and values in a dictionary. Returns the dictionary's new value.
    ///
    /// # Errors
    /// If the value is not a dictionary, or the items are not accepted.
    fn set(&mut self, dict: Self::Value, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// The value's text, if it is a string.
    fn text_of(&self, value: Self::Value) -> Option<String>;

    /// Returns a Python object by its module and name.
    ///
    /// # Errors
    /// If the object is not known.
    fn global(&mut self, module: &str, name: &str) -> Result<Self::Value, Self::Error>;

    /// Returns an object outside the pickle, by its id. By default, no such object is known.
    ///
    /// # Errors
    /// If the id is not known.
    fn persistent(&mut self, _id: Self::Value) -> Result<Self::Value, Self::Error> {
        Err(Malformed::Opcode(super::opcode::BINPERSID).into())
    }

    /// Returns the result of a function with these arguments. By default, no function is known.
    ///
    /// # Errors
    /// If the function or the arguments are not known.
    fn reduce(
        &mut self,
        _function: Self::Value,
        _arguments: Self::Value,
    ) -> Result<Self::Value, Self::Error> {
        Err(Malformed::Opcode(super::opcode::REDUCE).into())
    }

    /// Sets an object's attributes. By default, no object can have attributes.
    ///
    /// # Errors
    /// If the object cannot have attributes.
    fn build(&mut self, _object: Self::Value, _state: Self::Value) -> Result<(), Self::Error> {
        Err(Malformed::Opcode(super::opcode::BUILD).into())
    }

    /// The memo index of a container whose value changes as it is filled; [`Slot::NONE`] for all other values.
    fn slot(_value: Self::Value) -> Slot {
        Slot::NONE
    }

    /// The value with a memo index.
    fn kept(value: Self::Value, _slot: Slot) -> Self::Value {
        value
    }

    /// Called with the number of values that were pushed onto the stack, for a builder that limits this number.
    ///
    /// # Errors
    /// If there are more values than are accepted.
    fn pushed(&mut self, _count: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Called from time to time with the memory that the machine itself uses, for a builder that limits the memory.
    ///
    /// # Errors
    /// If the machine uses more memory than is accepted.
    fn account(&mut self, _machine_bytes: usize) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A scalar value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer above the range of `i64`.
    Big(u64),
    /// A floating-point number.
    Float(f64),
    /// Bytes, a set, or an integer beyond 64 bits; the contents are not kept.
    Opaque,
}

/// The memo index of a container. With it, the memo is updated when the container's value changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// The slot of a container that is not in the memo.
    pub const NONE: Self = Self(u32::MAX);

    pub(super) fn new(index: usize) -> Self {
        u32::try_from(index).map_or(Self::NONE, Self)
    }

    pub(super) fn index(self) -> Option<usize> {
        (self != Self::NONE).then_some(self.0 as usize)
    }
}

/// Why a pickle cannot be read.
#[derive(Debug)]
pub enum Malformed {
    /// I/O errors, or errors of the decompressor.
    Io(io::Error),
    /// The pickle ends too early.
    Ends,
    /// A protocol other than 2 to 5.
    Protocol(u8),
    /// An operation that is not supported; its byte.
    Opcode(u8),
    /// An operation that pops from an empty stack, or reads a memo entry that was never written.
    Broken(&'static str),
    /// A string longer than [`Builder::LONGEST_TEXT_BYTES`].
    LongText {
        /// The maximum number of bytes that are accepted.
        most: u64,
    },
}
