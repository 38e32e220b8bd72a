//! A [`Builder`] makes a pickle's values, and decides which of the Python objects that the pickle names are known.

use std::io;

/// Makes the values of a pickle. It refuses what it does not know: in Python, the operations behind [`Self::global`],
/// [`Self::persistent`], [`Self::reduce`] and [`Self::build`] can run code.
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
    /// Why a pickle is refused.
    type Error: From<Malformed>;

    /// The longest text accepted.
    const LONGEST_TEXT_BYTES: u64 = u64::MAX;

    /// A value without parts.
    fn scalar(&mut self, scalar: Scalar) -> Self::Value;

    /// A text, by its bytes.
    ///
    /// # Errors
    /// A text that is not accepted.
    fn text(&mut self, bytes: &[u8]) -> Result<Self::Value, Self::Error>;

    /// A tuple of these items.
    ///
    /// # Errors
    /// A tuple that is not accepted.
    fn tuple(&mut self, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// An empty list.
    fn list(&mut self) -> Self::Value;

    /// An empty dictionary.
    fn dict(&mut self) -> Self::Value;

    /// Appends items to a list; returns its new value.
    ///
    /// # Errors
    /// A value that is no list, and items that are not accepted.
    fn append(&mut self, list: Self::Value, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// Sets alternating keys and values in a dictionary; returns its new value.
    ///
    /// # Errors
    /// A value that is no dictionary, and items that are not accepted.
    fn set(&mut self, dict: Self::Value, items: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// The value's text, if it is a text.
    fn text_of(&self, value: Self::Value) -> Option<String>;

    /// A Python object, by its module and name.
    ///
    /// # Errors
    /// One that is not known.
    fn global(&mut self, module: &str, name: &str) -> Result<Self::Value, Self::Error>;

    /// An object that lies outside the pickle, by its id. By default none is known.
    ///
    /// # Errors
    /// An id that is not known.
    fn persistent(&mut self, _id: Self::Value) -> Result<Self::Value, Self::Error> {
        Err(Malformed::Opcode(super::opcode::BINPERSID).into())
    }

    /// What a function returns for its arguments. By default none is known.
    ///
    /// # Errors
    /// A function or arguments that are not known.
    fn reduce(
        &mut self,
        _function: Self::Value,
        _arguments: Self::Value,
    ) -> Result<Self::Value, Self::Error> {
        Err(Malformed::Opcode(super::opcode::REDUCE).into())
    }

    /// Gives an object its attributes. By default none may have any.
    ///
    /// # Errors
    /// An object that may have none.
    fn build(&mut self, _object: Self::Value, _state: Self::Value) -> Result<(), Self::Error> {
        Err(Malformed::Opcode(super::opcode::BUILD).into())
    }

    /// A container's memo index, if its value changes as it is filled.
    fn slot(_value: Self::Value) -> Slot {
        Slot::NONE
    }

    /// The same value with a memo index.
    fn kept(value: Self::Value, _slot: Slot) -> Self::Value {
        value
    }

    /// Reports that this many values were put on the stack, for a builder that limits them.
    ///
    /// # Errors
    /// More than are accepted.
    fn pushed(&mut self, _count: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Reports the machine's own memory now and then, for a builder that limits it.
    ///
    /// # Errors
    /// More than is accepted.
    fn account(&mut self, _machine_bytes: usize) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A value without parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer past `i64`.
    Big(u64),
    /// A number with a fraction.
    Float(f64),
    /// Bytes, a set, an integer past 64 bits: their contents are not kept.
    Opaque,
}

/// A container's memo index, so that the memo can be updated when the container's value changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Of a container that is not in the memo.
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
    /// An error of the system, or of the decompressor.
    Io(io::Error),
    /// It ends in the middle.
    Ends,
    /// A protocol that is not 2 to 5.
    Protocol(u8),
    /// An operation that is not supported, by its byte.
    Opcode(u8),
    /// An operation that takes from an empty stack, or a memo that was never written.
    Broken(&'static str),
    /// A text longer than [`Builder::LONGEST_TEXT_BYTES`].
    LongText {
        /// The most bytes.
        most: u64,
    },
}
