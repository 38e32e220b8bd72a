//! NPY, NumPy's file of one array: a magic number, a version, a header that is a Python dictionary, then the elements.
//!
//! The header is untrusted: its size is compared with the file's length before anything is allocated, and nothing is evaluated.
//! Arrays of Python objects, which NumPy pickles, are rejected.

use std::fs;
use std::path::Path;

use plimsoll_tensor::{bf16, f16};

use super::error::NpyError;
use super::{DataError, HostArray, HostElement};

impl HostArray {
    /// Reads a file that `numpy.save` wrote. Elements of `f8 f4 f2 i8 i4 i2 u1 b1` keep their type, in either byte
    /// order; `i1`, `u2` and `u4` become the next larger signed type. Column-major (`fortran_order`) arrays become
    /// row-major, with the same shape.
    ///
    /// ```no_run
    /// # use plimsoll::data::HostArray;
    /// let labels = HostArray::read_npy("data/labels.npy".as_ref())?;
    /// assert_eq!(labels.shape, [60_000]);
    /// # Ok::<(), plimsoll::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read, is not NPY, holds elements of a different type, or is not as long as its header says.
    pub fn read_npy(path: &Path) -> Result<Self, DataError> {
        let failed = |source| DataError::Io { path: path.to_owned(), doing: "read", source };
        let bytes = fs::read(path).map_err(failed)?;
        parse(&bytes).map_err(|problem| NpyError { path: path.to_owned(), problem }.into())
    }
}

/// A file's array, or a description of the problem with the file.
fn parse(bytes: &[u8]) -> Result<HostArray, String> {
    let (header, elements) = divide(bytes)?;
    let header = Header::parse(header)?;
    let (order, code) = header.descr.split_at_checked(1).unwrap_or(("", &header.descr));
    let big = match order {
        "<" | "|" | "=" => false,
        ">" => true,
        _ => return Err(unreadable(&header.descr)),
    };
    let array = |shape: Vec<usize>| match code {
        "f8" => read(elements, shape, big, f64::from_le_bytes),
        "f4" => read(elements, shape, big, f32::from_le_bytes),
        "f2" => read(elements, shape, big, f16::from_le_bytes),
        "i8" => read(elements, shape, big, i64::from_le_bytes),
        "i4" => read(elements, shape, big, i32::from_le_bytes),
        "i2" => read(elements, shape, big, i16::from_le_bytes),
        "u1" => read(elements, shape, big, |[byte]| byte),
        "b1" => read(elements, shape, big, |[byte]| byte != 0),
        "i1" => read(elements, shape, big, |byte| i16::from(i8::from_le_bytes(byte))),
        "u2" => read(elements, shape, big, |bytes| i32::from(u16::from_le_bytes(bytes))),
        "u4" => read(elements, shape, big, |bytes| i64::from(u32::from_le_bytes(bytes))),
        _ => Err(unreadable(&header.descr)),
    };
    if !header.column_major {
        return array(header.shape);
    }
    // Column-major elements are the row-major elements of the reversed shape.
    let reversed = array(header.shape.iter().rev().copied().collect())?;
    Ok(transposed(reversed, &header.shape))
}

fn unreadable(descr: &str) -> String {
    format!(
        "its elements are `{descr}`; f8, f4, f2, i8, i4, i2, i1, u4, u2, u1 and b1 are supported: convert it with \
         numpy's astype"
    )
}

/// The header and the elements.
fn divide(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let Some(rest) = bytes.strip_prefix(b"\x93NUMPY") else {
        return Err("it does not start with \\x93NUMPY; is it another format?".to_owned());
    };
    let cut = || format!("it has {} bytes, fewer than its header; download it again", bytes.len());
    let (&[major, _minor], rest) = rest.split_first_chunk().ok_or_else(cut)?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk().map(|(two, rest)| (usize::from(u16::from_le_bytes(*two)), rest)),
        2 | 3 => rest.split_first_chunk().map(|(four, rest)| (u32::from_le_bytes(*four) as usize, rest)),
        _ => return Err(format!("its format version {major} is not supported, only 1 to 3")),
    }
    .ok_or_else(cut)?;
    let (header, elements) = rest.split_at_checked(length).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text".to_owned())?;
    Ok((header, elements))
}

/// The header's dictionary, such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`.
struct Header {
    descr: String,
    column_major: bool,
    shape: Vec<usize>,
}

impl Header {
    fn parse(text: &str) -> Result<Self, String> {
        let value = |key: &str| {
            let after = [format!("'{key}'"), format!("\"{key}\"")]
                .iter()
                .find_map(|quoted| text.split_once(quoted.as_str()).map(|(_, after)| after));
            after
                .and_then(|after| after.trim_start().strip_prefix(':'))
                .map(str::trim_start)
                .ok_or_else(|| format!("its header has no '{key}': {}", text.trim()))
        };
        let odd = |key: &str| format!("'{key}' of its header cannot be read: {}", text.trim());
        let descr = value("descr")?;
        let quote = descr.chars().next().filter(|quote| ['\'', '"'].contains(quote));
        let descr = match quote.and_then(|quote| descr[1..].split_once(quote)) {
            Some((descr, _)) => descr.to_owned(),
            // A list: a structured type, with named fields.
            None => {
                let (list, _) = descr.split_once("'fortran_order'").unwrap_or((descr, ""));
                return Err(unreadable(list.trim_end_matches([',', ' '])));
            }
        };
        let column_major = match value("fortran_order")? {
            order if order.starts_with("True") => true,
            order if order.starts_with("False") => false,
            _ => return Err(odd("fortran_order")),
        };
        let shape = value("shape")?.strip_prefix('(').and_then(|shape| shape.split_once(')'));
        let (shape, _) = shape.ok_or_else(|| odd("shape"))?;
        let extents = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty());
        let shape =
            extents.map(|extent| extent.parse().map_err(|_| odd("shape"))).collect::<Result<_, _>>()?;
        Ok(Self { descr, column_major, shape })
    }
}

/// Elements of `N` bytes each.
fn read<const N: usize, T: HostElement>(
    bytes: &[u8],
    shape: Vec<usize>,
    big: bool,
    element: impl Fn([u8; N]) -> T,
) -> Result<HostArray, String> {
    let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    let expected = elements.and_then(|elements| elements.checked_mul(N));
    if expected != Some(bytes.len()) {
        let expected = expected.map_or("more than fit".to_owned(), |expected| expected.to_string());
        return Err(format!(
            "its header promises {expected} bytes of values of shape {shape:?}, but it has {}; download it again",
            bytes.len()
        ));
    }
    let one = |bytes: &[u8]| {
        let mut little = [0; N];
        little.copy_from_slice(bytes);
        if big {
            little.reverse();
        }
        element(little)
    };
    Ok(HostArray::new(shape, bytes.chunks_exact(N).map(one).collect()))
}

/// Reverses the array's dimensions; `shape` is the shape of the result.
fn transposed(array: HostArray, shape: &[usize]) -> HostArray {
    macro_rules! each_type {
        ($($rust:ty),*) => {
            $(if let Some(values) = array.as_slice::<$rust>() {
                return HostArray::new(shape.to_vec(), reversed(values, shape));
            })*
        };
    }
    each_type!(f64, f32, f16, bf16, i64, i32, i16, u8, bool);
    array
}

fn reversed<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
    let mut at = vec![0; shape.len()];
    let mut out = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        // In column-major order, the first dimension varies fastest.
        let place = at.iter().zip(shape).rev().fold(0, |place, (at, extent)| place * extent + at);
        out.push(values[place]);
        for (at, extent) in at.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < *extent {
                break;
            }
            *at = 0;
        }
    }
    out
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod tests;
