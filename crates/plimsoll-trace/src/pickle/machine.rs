//! The pickle machine: a stack, marks and a memo: [`read`].

use std::io::Read;

use super::opcode as op;
use super::source::Source;
use crate::error::{SnapshotError, Why};
use crate::grant::Grant;
use crate::snapshot::Snapshot;
use crate::torch::objects::Objects;
use crate::torch::value::{Slot, Value};

/// The longest text accepted; `fx_original_trace` is the longest that PyTorch writes.
const LONGEST_TEXT_BYTES: u64 = 16 << 20;
/// How often the memory use is checked, in bytes of the file.
const ACCOUNT_BYTES: u64 = 1 << 20;

/// Reads a pickle to its end. `grant` bounds the memory it may use.
///
/// # Errors
/// Anything that is not a pickled snapshot, with its offset.
pub(crate) fn read(input: impl Read, grant: &Grant) -> Result<Snapshot, SnapshotError> {
    let objects = Objects::new().map_err(|why| SnapshotError { at: None, why })?;
    let mut machine = Machine {
        source: Source::new(input),
        objects,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    match machine.run(grant) {
        Ok(top) => {
            let at = machine.source.at();
            machine.objects.assemble(top).map_err(|why| SnapshotError::at(at, why))
        }
        Err((at, why)) => Err(SnapshotError::at(at, why)),
    }
}

struct Machine<R> {
    source: Source<R>,
    objects: Objects,
    stack: Vec<Value>,
    /// The stack positions of the open marks.
    marks: Vec<usize>,
    memo: Vec<Value>,
}

impl<R: Read> Machine<R> {
    /// Runs to `STOP` and returns the outermost value.
    fn run(&mut self, grant: &Grant) -> Result<Value, (u64, Why)> {
        let mut account_at = ACCOUNT_BYTES;
        loop {
            let at = self.source.at();
            if at >= account_at {
                self.account(grant).map_err(|why| (at, why))?;
                account_at = at + ACCOUNT_BYTES;
            }
            match self.step() {
                Ok(None) => {}
                Ok(Some(top)) => return Ok(top),
                Err(why @ (Why::Ends | Why::Io(_))) => return Err((self.source.taken(), why)),
                Err(why) => return Err((at, why)),
            }
        }
    }

    /// Fails if the file uses more memory than its length justifies.
    fn account(&self, grant: &Grant) -> Result<(), Why> {
        let values = self.stack.capacity() + self.memo.capacity();
        let own = values * size_of::<Value>() + self.marks.capacity() * size_of::<usize>();
        grant.check((own + self.objects.heap_bytes()) as u64)
    }

    /// Runs one operation.
    #[inline]
    fn step(&mut self) -> Result<Option<Value>, Why> {
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
            op::EMPTY_DICT => self.stack.push(Value::EmptyDict(Slot::NONE)),
            op::EMPTY_LIST => self.stack.push(Value::EmptyList(Slot::NONE)),
            op::SETITEMS => {
                let mark = self.mark()?;
                self.set(mark)?;
            }
            op::SETITEM => {
                let mark = self.stack.len().checked_sub(2).ok_or_else(empty_stack)?;
                self.set(mark)?;
            }
            op::APPENDS => {
                let mark = self.mark()?;
                self.append(mark)?;
            }
            op::APPEND => {
                let mark = self.stack.len().checked_sub(1).ok_or_else(empty_stack)?;
                self.append(mark)?;
            }
            op::BININT => {
                let number = i32::from_le_bytes(self.source.array()?);
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::BININT1 => {
                let number = self.source.byte()?;
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::BININT2 => {
                let number = u16::from_le_bytes(self.source.array()?);
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::LONG1 => {
                let length = u64::from(self.source.byte()?);
                self.long(length)?;
            }
            op::LONG4 => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.long(u64::from(length))?;
            }
            op::BINFLOAT => self.stack.push(Value::Float(f64::from_be_bytes(self.source.array()?))),
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
            op::NONE => self.stack.push(Value::None),
            op::NEWTRUE => self.stack.push(Value::Bool(true)),
            op::NEWFALSE => self.stack.push(Value::Bool(false)),
            op::TUPLE2 => self.tuple(2)?,
            op::FRAME => drop(self.source.array::<8>()?),
            op::STOP => return self.pop().map(Some),
            other => self.rare(other)?,
        }
        Ok(None)
    }

    /// Operations that PyTorch's dumps do not use, and those that are refused.
    #[cold]
    fn rare(&mut self, opcode: u8) -> Result<(), Why> {
        match opcode {
            op::PROTO => {
                let version = self.source.byte()?;
                if !(2..=5).contains(&version) {
                    return Err(Why::Protocol(version));
                }
            }
            op::LIST => {
                let mark = self.mark()?;
                self.stack.insert(mark, Value::EmptyList(Slot::NONE));
                self.append(mark + 1)?;
            }
            op::DICT => {
                let mark = self.mark()?;
                self.stack.insert(mark, Value::EmptyDict(Slot::NONE));
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
            op::POP_MARK => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            op::DUP => {
                let top = *self.stack.last().ok_or_else(empty_stack)?;
                self.stack.push(top);
            }
            op::SHORT_BINBYTES => {
                let length = u64::from(self.source.byte()?);
                self.opaque(length)?;
            }
            op::BINBYTES => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.opaque(u64::from(length))?;
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let length = u64::from_le_bytes(self.source.array()?);
                self.opaque(length)?;
            }
            op::EMPTY_SET => self.stack.push(Value::Opaque),
            op::ADDITEMS => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            op::FROZENSET => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                self.stack.push(Value::Opaque);
            }
            op::GLOBAL | op::INST => {
                let module = self.line()?;
                let name = self.line()?;
                return Err(Why::Global(format!("{module}.{name}")));
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                return Err(Why::Global(format!("{}.{}", self.word(module), self.word(name))));
            }
            byte => return Err(Why::Opcode { byte, name: op::name(byte) }),
        }
        Ok(())
    }

    #[inline]
    fn get(&mut self, index: usize) -> Result<(), Why> {
        let value = *self.memo.get(index).ok_or_else(never_written)?;
        self.stack.push(value);
        Ok(())
    }

    /// A run of `GET`s, which is how a stack is written: nine tenths of a file's operations.
    fn gets(&mut self) -> Result<(), Why> {
        let Self { source, memo, stack, .. } = self;
        let window = source.window();
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
        Ok(())
    }

    #[inline]
    fn put(&mut self, index: usize) -> Result<(), Why> {
        let top = self.stack.last_mut().ok_or_else(empty_stack)?;
        *top = top.kept(Slot::new(index));
        if index == self.memo.len() {
            self.memo.push(*top);
        } else if let Some(place) = self.memo.get_mut(index) {
            *place = *top;
        } else {
            // Writers write indices in order.
            return Err(Why::Broken("a memo is written out of order"));
        }
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<(), Why> {
        // Nearly all are addresses of 6 bytes and times of 7; the sign is spread from the top.
        if let (1..=8, Some(&bytes)) = (length, self.source.window().first_chunk::<8>()) {
            let empty_bits = 64 - 8 * length as u32;
            self.stack.push(Value::Int((i64::from_le_bytes(bytes) << empty_bits) >> empty_bits));
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
        let value = match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Value::Int(number),
            (_, Ok(number)) => Value::Big(number),
            _ => Value::Opaque,
        };
        self.stack.push(value);
        Ok(())
    }

    fn text(&mut self, length: u64) -> Result<(), Why> {
        if length > LONGEST_TEXT_BYTES {
            return Err(Why::TooMany { what: "bytes in one text", most: LONGEST_TEXT_BYTES });
        }
        let bytes = self.source.bytes(length as usize)?;
        self.stack.push(self.objects.text(bytes)?);
        Ok(())
    }

    fn opaque(&mut self, length: u64) -> Result<(), Why> {
        self.source.skip(length)?;
        self.stack.push(Value::Opaque);
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<(), Why> {
        let start = self.stack.len().checked_sub(count).ok_or_else(empty_stack)?;
        let tuple = self.objects.tuple(&self.stack[start..])?;
        self.stack.truncate(start);
        self.stack.push(tuple);
        Ok(())
    }

    /// Appends the values above `mark` to the list below it.
    fn append(&mut self, mark: usize) -> Result<(), Why> {
        let list = self.below(mark)?;
        let list = self.objects.append(list, &self.stack[mark..])?;
        self.became(mark, list);
        Ok(())
    }

    /// Sets the keys and values above `mark` in the dictionary below it.
    fn set(&mut self, mark: usize) -> Result<(), Why> {
        let dict = self.below(mark)?;
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err(Why::Broken("a dict has a key without a value"));
        }
        let dict = self.objects.set(dict, &self.stack[mark..])?;
        self.became(mark, dict);
        Ok(())
    }

    fn below(&self, mark: usize) -> Result<Value, Why> {
        mark.checked_sub(1).and_then(|below| self.stack.get(below)).copied().ok_or_else(empty_stack)
    }

    /// The container below `mark` became this value: updates the stack and the memo.
    fn became(&mut self, mark: usize, container: Value) {
        self.stack.truncate(mark);
        let below = &mut self.stack[mark - 1];
        let slot = below.slot();
        *below = container;
        if let Some(place) = slot.index().and_then(|index| self.memo.get_mut(index)) {
            *place = container;
        }
    }

    fn mark(&mut self) -> Result<usize, Why> {
        let mark = self.marks.pop().ok_or_else(never_began)?;
        if mark > self.stack.len() { Err(empty_stack()) } else { Ok(mark) }
    }

    fn pop(&mut self) -> Result<Value, Why> {
        self.stack.pop().ok_or_else(empty_stack)
    }

    /// A line of text, for the name in a refusal.
    fn line(&mut self) -> Result<String, Why> {
        let mut line = Vec::new();
        while line.len() < 200 {
            match self.source.byte()? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// A text value, for the name in a refusal.
    fn word(&self, value: Value) -> String {
        match value {
            Value::Text(text) => self.objects.word(text).chars().take(200).collect(),
            other => other.what().to_owned(),
        }
    }
}

#[cold]
fn empty_stack() -> Why {
    Why::Broken("an operation takes from an empty stack")
}

#[cold]
fn never_written() -> Why {
    Why::Broken("a memo that was never written is read")
}

#[cold]
fn never_began() -> Why {
    Why::Broken("items end that never began")
}
