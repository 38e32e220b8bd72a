//! The pickle machine, with its stack, marks and memo: [`read`]. A [`Builder`] makes the values that the machine reads.

use std::io::Read;

use super::builder::{Builder, Malformed, Scalar, Slot};
use super::opcode as op;
use super::source::Source;

/// The machine reports its memory use to the builder each time it has read this many bytes.
const ACCOUNT_BYTES: u64 = 1 << 20;

/// Reads a pickle to its end. Returns the offset of the pickle's end, and the pickle's outermost value.
///
/// # Errors
/// If the bytes are not a pickle, or the builder rejects a value; in both cases, the error has the offset.
pub fn read<B: Builder>(input: impl Read, builder: &mut B) -> Result<(u64, B::Value), (u64, B::Error)> {
    let source = Source::new(input);
    Machine { source, builder, stack: Vec::new(), marks: Vec::new(), memo: Vec::new() }.run()
}

struct Machine<'a, R, B: Builder> {
    source: Source<R>,
    builder: &'a mut B,
    stack: Vec<B::Value>,
    /// The stack positions of the open marks.
    marks: Vec<usize>,
    memo: Vec<B::Value>,
}

impl<R: Read, B: Builder> Machine<'_, R, B> {
    /// Runs to `STOP`.
    fn run(mut self) -> Result<(u64, B::Value), (u64, B::Error)> {
        let mut account_at = ACCOUNT_BYTES;
        loop {
            let at = self.source.at();
            if at >= account_at {
                self.builder.account(self.heap_bytes()).map_err(|why| (at, why))?;
                account_at = at + ACCOUNT_BYTES;
            }
            match self.step() {
                Ok(None) => {}
                Ok(Some(top)) => return Ok((self.source.at(), top)),
                Err(why) => return Err((self.source.failed_at().unwrap_or(at), why)),
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        let values = self.stack.capacity() + self.memo.capacity();
        values * size_of::<B::Value>() + self.marks.capacity() * size_of::<usize>()
    }

    /// Runs one operation.
    #[inline]
    fn step(&mut self) -> Result<Option<B::Value>, B::Error> {
        let opcode = self.source.byte()?;
        match opcode {
            op::BINGET => {
                let index = self.source.byte()?;
                self.get(usize::from(index))?;
                self.gets()?;
            }
            op::LONG_BINGET => {
                let index = u32::from_le_bytes(self.source.array()?);
                self.get(index as usize)?;
                self.gets()?;
            }
            op::MEMOIZE => self.put(self.memo.len())?,
            op::BINPUT => {
                let index = self.source.byte()?;
                self.put(usize::from(index))?;
            }
            op::LONG_BINPUT => {
                let index = u32::from_le_bytes(self.source.array()?);
                self.put(index as usize)?;
            }
            op::MARK => self.marks.push(self.stack.len()),
            op::EMPTY_DICT => {
                let dict = self.builder.dict();
                self.push(dict)?;
            }
            op::EMPTY_LIST => {
                let list = self.builder.list();
                self.push(list)?;
            }
            op::SETITEMS => {
                let mark = self.mark()?;
                self.set(mark)?;
            }
            op::SETITEM => {
                let mark = self.place_below_top(2)?;
                self.set(mark)?;
            }
            op::APPENDS => {
                let mark = self.mark()?;
                self.append(mark)?;
            }
            op::APPEND => {
                let mark = self.place_below_top(1)?;
                self.append(mark)?;
            }
            op::BININT => {
                let number = i32::from_le_bytes(self.source.array()?);
                self.scalar(Scalar::Int(i64::from(number)))?;
            }
            op::BININT1 => {
                let number = self.source.byte()?;
                self.scalar(Scalar::Int(i64::from(number)))?;
            }
            op::BININT2 => {
                let number = u16::from_le_bytes(self.source.array()?);
                self.scalar(Scalar::Int(i64::from(number)))?;
            }
            op::LONG1 => {
                let length = u64::from(self.source.byte()?);
                self.long(length)?;
            }
            op::LONG4 => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.long(u64::from(length))?;
            }
            op::BINFLOAT => {
                let number = f64::from_be_bytes(self.source.array()?);
                self.scalar(Scalar::Float(number))?;
            }
            op::SHORT_BINUNICODE => {
                let length = u64::from(self.source.byte()?);
                self.text(length)?;
            }
            op::BINUNICODE => {
                let length = u64::from(u32::from_le_bytes(self.source.array()?));
                self.text(length)?;
            }
            op::BINUNICODE8 => {
                let length = u64::from_le_bytes(self.source.array()?);
                self.text(length)?;
            }
            op::NONE => self.scalar(Scalar::None)?,
            op::NEWTRUE => self.scalar(Scalar::Bool(true))?,
            op::NEWFALSE => self.scalar(Scalar::Bool(false))?,
            op::TUPLE2 => self.tuple(2)?,
            op::FRAME => drop(self.source.array::<8>()?),
            op::STOP => return self.pop().map(Some),
            other => self.rare(other)?,
        }
        Ok(None)
    }

    /// Runs operations that PyTorch's snapshots do not use, and rejects unsupported operations.
    #[cold]
    fn rare(&mut self, opcode: u8) -> Result<(), B::Error> {
        match opcode {
            op::PROTO => {
                let version = self.source.byte()?;
                if !(2..=5).contains(&version) {
                    return Err(Malformed::Protocol(version).into());
                }
            }
            op::LIST => {
                let (mark, list) = (self.mark()?, self.builder.list());
                self.insert(mark, list)?;
                self.append(mark + 1)?;
            }
            op::DICT => {
                let (mark, dict) = (self.mark()?, self.builder.dict());
                self.insert(mark, dict)?;
                self.set(mark + 1)?;
            }
            op::TUPLE => {
                let mark = self.mark()?;
                self.tuple(self.stack.len() - mark)?;
            }
            op::EMPTY_TUPLE => self.tuple(0)?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE3 => self.tuple(3)?,
            op::POP => drop(self.pop()?),
            // Items that are added to a set are not kept.
            op::POP_MARK | op::ADDITEMS => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            op::DUP => {
                let top = *self.stack.last().ok_or_else(empty_stack)?;
                self.push(top)?;
            }
            op::SHORT_BINBYTES | op::SHORT_BINSTRING => {
                let length = u64::from(self.source.byte()?);
                self.opaque(length)?;
            }
            op::BINBYTES | op::BINSTRING => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.opaque(u64::from(length))?;
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let length = u64::from_le_bytes(self.source.array()?);
                self.opaque(length)?;
            }
            op::EMPTY_SET => self.scalar(Scalar::Opaque)?,
            op::FROZENSET => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                self.scalar(Scalar::Opaque)?;
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                let known = self.builder.global(&module, &name)?;
                self.push(known)?;
            }
            op::INST => {
                let (module, name) = (self.line()?, self.line()?);
                self.builder.global(&module, &name)?;
                return Err(Malformed::Opcode(opcode).into());
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(module), Some(name)) = (self.builder.text_of(module), self.builder.text_of(name))
                else {
                    return Err(Malformed::Broken("an object whose name is not a string").into());
                };
                let known = self.builder.global(&module, &name)?;
                self.push(known)?;
            }
            op::BINPERSID => {
                let id = self.pop()?;
                let object = self.builder.persistent(id)?;
                self.push(object)?;
            }
            op::REDUCE => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let given = self.builder.reduce(function, arguments)?;
                self.push(given)?;
            }
            op::BUILD => {
                let (state, object) = (self.pop()?, *self.stack.last().ok_or_else(empty_stack)?);
                self.builder.build(object, state)?;
            }
            byte => return Err(Malformed::Opcode(byte).into()),
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, value: B::Value) -> Result<(), B::Error> {
        self.builder.pushed(1)?;
        self.stack.push(value);
        Ok(())
    }

    #[inline]
    fn scalar(&mut self, scalar: Scalar) -> Result<(), B::Error> {
        let value = self.builder.scalar(scalar);
        self.push(value)
    }

    fn insert(&mut self, mark: usize, value: B::Value) -> Result<(), B::Error> {
        self.builder.pushed(1)?;
        self.stack.insert(mark, value);
        Ok(())
    }

    #[inline]
    fn get(&mut self, index: usize) -> Result<(), B::Error> {
        let value = *self.memo.get(index).ok_or_else(never_written)?;
        self.push(value)
    }

    /// Reads a run of `GET`s. Stacks are written in this way, so `GET`s make up nine tenths of a file's operations.
    fn gets(&mut self) -> Result<(), B::Error> {
        let Self { source, memo, stack, .. } = self;
        let (window, before) = (source.window(), stack.len());
        let mut next = 0;
        while let Some(&[opcode, a, b, c, d]) = window[next..].first_chunk::<5>() {
            let (index, length) = match opcode {
                op::BINGET => (u32::from(a), 2),
                op::LONG_BINGET => (u32::from_le_bytes([a, b, c, d]), 5),
                _ => break,
            };
            stack.push(*memo.get(index as usize).ok_or_else(never_written)?);
            next += length;
        }
        source.pass(next);
        let count = self.stack.len() - before;
        self.builder.pushed(count)
    }

    #[inline]
    fn put(&mut self, index: usize) -> Result<(), B::Error> {
        let top = self.stack.last_mut().ok_or_else(empty_stack)?;
        *top = B::kept(*top, Slot::new(index));
        if index == self.memo.len() {
            self.memo.push(*top);
        } else if let Some(place) = self.memo.get_mut(index) {
            *place = *top;
        } else {
            // All known writers use the memo indices in ascending order.
            return Err(Malformed::Broken("a memo is written out of order").into());
        }
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<(), B::Error> {
        // Nearly all of these integers are addresses of 6 bytes and times of 7 bytes. The two shifts extend the sign.
        if let (1..=8, Some(&bytes)) = (length, self.source.window().first_chunk::<8>()) {
            let empty_bits = 64 - 8 * length as u32;
            self.scalar(Scalar::Int((i64::from_le_bytes(bytes) << empty_bits) >> empty_bits))?;
            self.source.pass(length as usize);
            return Ok(());
        }
        if length > 9 {
            return self.opaque(length);
        }
        let mut bytes = [0; 16];
        let given = self.source.bytes(length as usize)?;
        bytes[..given.len()].copy_from_slice(given);
        if given.last().is_some_and(|&high| high >= 0x80) {
            bytes[given.len()..].fill(0xff);
        }
        let number = i128::from_le_bytes(bytes);
        self.scalar(match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Scalar::Int(number),
            (_, Ok(number)) => Scalar::Big(number),
            _ => Scalar::Opaque,
        })
    }

    fn text(&mut self, length: u64) -> Result<(), B::Error> {
        if length > B::LONGEST_TEXT_BYTES {
            return Err(Malformed::LongText { most: B::LONGEST_TEXT_BYTES }.into());
        }
        let bytes = self.source.bytes(length as usize)?;
        let text = self.builder.text(bytes)?;
        self.push(text)
    }

    fn opaque(&mut self, length: u64) -> Result<(), B::Error> {
        self.source.skip(length)?;
        self.scalar(Scalar::Opaque)
    }

    fn tuple(&mut self, count: usize) -> Result<(), B::Error> {
        let start = self.place_below_top(count)?;
        let tuple = self.builder.tuple(&self.stack[start..])?;
        self.stack.truncate(start);
        self.push(tuple)
    }

    /// Appends the values above `mark` to the list below it.
    fn append(&mut self, mark: usize) -> Result<(), B::Error> {
        let list = self.below(mark)?;
        let list = self.builder.append(list, &self.stack[mark..])?;
        self.became(mark, list);
        Ok(())
    }

    /// Sets the keys and values above `mark` in the dictionary below it.
    fn set(&mut self, mark: usize) -> Result<(), B::Error> {
        let dict = self.below(mark)?;
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err(Malformed::Broken("a dict has a key without a value").into());
        }
        let dict = self.builder.set(dict, &self.stack[mark..])?;
        self.became(mark, dict);
        Ok(())
    }

    fn below(&self, mark: usize) -> Result<B::Value, Malformed> {
        mark.checked_sub(1).and_then(|below| self.stack.get(below)).copied().ok_or_else(empty_stack)
    }

    /// Updates the stack and the memo after the container below `mark` has received this value.
    fn became(&mut self, mark: usize, container: B::Value) {
        self.stack.truncate(mark);
        let below = &mut self.stack[mark - 1];
        let slot = B::slot(*below);
        *below = container;
        if let Some(place) = slot.index().and_then(|index| self.memo.get_mut(index)) {
            *place = container;
        }
    }

    /// The stack position of the first of the topmost `count` values.
    fn place_below_top(&self, count: usize) -> Result<usize, Malformed> {
        self.stack.len().checked_sub(count).ok_or_else(empty_stack)
    }

    fn mark(&mut self) -> Result<usize, Malformed> {
        let mark = self.marks.pop().ok_or_else(never_began)?;
        if mark > self.stack.len() { Err(empty_stack()) } else { Ok(mark) }
    }

    fn pop(&mut self) -> Result<B::Value, B::Error> {
        self.stack.pop().ok_or_else(|| empty_stack().into())
    }

    /// Reads a line of text: a name. At most 200 bytes are read; no known name is that long.
    fn line(&mut self) -> Result<String, Malformed> {
        let mut line = Vec::new();
        while line.len() < 200 {
            match self.source.byte()? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cold]
fn empty_stack() -> Malformed {
    Malformed::Broken("an operation pops from an empty stack")
}

#[cold]
fn never_written() -> Malformed {
    Malformed::Broken("a memo that was never written is read")
}

#[cold]
fn never_began() -> Malformed {
    Malformed::Broken("items end without a mark")
}
