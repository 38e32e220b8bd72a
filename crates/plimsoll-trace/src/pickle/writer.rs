//! Writes pickles of protocol 4 that PyTorch's own viewer reads: [`Pickler`].

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::opcode as op;

/// The number of entries that one operation adds, as in CPython. PyTorch's viewer fails if there are many more.
const BATCH: usize = 1000;

/// Copies a pickled dict, and adds an entry. The pickle is not read: its last byte, which ends it, becomes the first
/// byte of the entry, because the pickle may say how many bytes come before its end (`FRAME`).
///
/// # Errors
/// I/O errors; [`io::ErrorKind::InvalidData`] if the input does not end like a pickle.
pub fn add_entry(
    input: &mut (impl Read + Seek),
    key: &str,
    text: &str,
    out: &mut (impl Write + ?Sized),
) -> io::Result<()> {
    let end = input.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    input.read_exact(&mut last)?;
    if last != [op::STOP] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a complete pickle"));
    }
    input.rewind()?;
    io::copy(&mut input.take(end), out)?;
    for text in [key, text] {
        let size = u32::try_from(text.len()).map_err(io::Error::other)?;
        out.write_all(&[op::BINUNICODE])?;
        out.write_all(&size.to_le_bytes())?;
        out.write_all(text.as_bytes())?;
    }
    out.write_all(&[op::SETITEM, op::STOP])
}

/// The memo index of a value that was written before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept(u32);

/// Writes values one after the other.
pub(crate) struct Pickler<W> {
    out: W,
    kept: u32,
}

impl<W: Write> Pickler<W> {
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[op::PROTO, 4])?;
        Ok(Self { out, kept: 0 })
    }

    /// Ends the pickle; its value is the last value that was written.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[op::STOP])?;
        Ok(self.out)
    }

    pub(crate) fn bool(&mut self, on: bool) -> io::Result<()> {
        self.out.write_all(&[if on { op::NEWTRUE } else { op::NEWFALSE }])
    }

    pub(crate) fn none(&mut self) -> io::Result<()> {
        self.out.write_all(&[op::NONE])
    }

    pub(crate) fn float(&mut self, number: f64) -> io::Result<()> {
        self.out.write_all(&[op::BINFLOAT])?;
        self.out.write_all(&number.to_be_bytes())
    }

    /// Writes an integer in the shortest form.
    pub(crate) fn int(&mut self, number: i128) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.out.write_all(&[op::BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            let [a, b] = short.to_le_bytes();
            return self.out.write_all(&[op::BININT2, a, b]);
        }
        if let Ok(int) = i32::try_from(number) {
            self.out.write_all(&[op::BININT])?;
            return self.out.write_all(&int.to_le_bytes());
        }
        let bytes = number.to_le_bytes();
        let sign = if number < 0 { 0xff } else { 0 };
        // Uses one byte more than the number needs if its top bit would be read as the sign.
        let mut length = bytes.iter().rposition(|&byte| byte != sign).map_or(1, |top| top + 1);
        if (bytes[length - 1] ^ sign) & 0x80 != 0 {
            length += 1;
        }
        self.out.write_all(&[op::LONG1, length as u8])?;
        self.out.write_all(&bytes[..length])
    }

    pub(crate) fn text(&mut self, text: &str) -> io::Result<Kept> {
        match u8::try_from(text.len()) {
            Ok(length) => self.out.write_all(&[op::SHORT_BINUNICODE, length])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                self.out.write_all(&[op::BINUNICODE])?;
                self.out.write_all(&length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())?;
        self.keep()
    }

    /// Writes a memoised value again.
    pub(crate) fn again(&mut self, Kept(index): Kept) -> io::Result<()> {
        match u8::try_from(index) {
            Ok(index) => self.out.write_all(&[op::BINGET, index]),
            Err(_) => {
                let [a, b, c, d] = index.to_le_bytes();
                self.out.write_all(&[op::LONG_BINGET, a, b, c, d])
            }
        }
    }

    /// Makes a pair of the last two values.
    pub(crate) fn pair(&mut self) -> io::Result<Kept> {
        self.out.write_all(&[op::TUPLE2])?;
        self.keep()
    }

    /// Begins a dictionary; keys and values follow alternately.
    pub(crate) fn begin_dict(&mut self) -> io::Result<Kept> {
        self.out.write_all(&[op::EMPTY_DICT])?;
        let kept = self.keep()?;
        self.out.write_all(&[op::MARK])?;
        Ok(kept)
    }

    /// Ends the innermost dictionary.
    pub(crate) fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[op::SETITEMS])
    }

    /// Begins a list; each entry is written between [`Self::before_item`] and [`Self::after_item`].
    pub(crate) fn begin_list(&mut self) -> io::Result<Kept> {
        self.out.write_all(&[op::EMPTY_LIST])?;
        self.keep()
    }

    pub(crate) fn before_item(&mut self, nth: usize) -> io::Result<()> {
        if nth.is_multiple_of(BATCH) { self.out.write_all(&[op::MARK]) } else { Ok(()) }
    }

    pub(crate) fn after_item(&mut self, nth: usize, count: usize) -> io::Result<()> {
        let full = (nth + 1).is_multiple_of(BATCH) || nth + 1 == count;
        if full { self.out.write_all(&[op::APPENDS]) } else { Ok(()) }
    }

    fn keep(&mut self) -> io::Result<Kept> {
        self.out.write_all(&[op::MEMOIZE])?;
        let kept = Kept(self.kept);
        self.kept = self.kept.checked_add(1).ok_or_else(|| io::Error::other("more than 2^32 values"))?;
        Ok(kept)
    }
}
