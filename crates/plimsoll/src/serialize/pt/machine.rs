//! The pickle machine for state dicts: a stack, marks, a memo and an arena. It calls nothing.

use plimsoll_trace::pickle::opcode as op;

use super::value::{KnownGlobal, StorageEntry, TensorEntry, Value};

/// Dictionaries in dictionaries that are followed.
const DEEPEST: usize = 64;
/// Most values of a pickle; a model of a million tensors has some ten million.
const MOST_VALUES: usize = 50_000_000;

/// The tensors of a pickle with their names: keys of the dictionaries on the way, with dots between them.
///
/// # Errors
/// Where and why it is not the pickle of a state dict.
pub(super) fn tensors(pickle: &[u8]) -> Result<Vec<(String, TensorEntry)>, String> {
    let mut machine = Machine { bytes: pickle, ..Machine::default() };
    let top = loop {
        let at = machine.at;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(top)) => break top,
            Err(why) => return Err(format!("byte {at}: {why}")),
        }
    };
    let mut found = FoundTensors { tensors: Vec::new(), visits_left: 2 * machine.values + 1000 };
    machine.flatten(top, String::new(), 0, &mut found)?;
    Ok(found.tensors)
}

/// What was found so far. Visits are bounded: dictionaries that are shared again and again would lead to more tensors than
/// any memory holds.
struct FoundTensors {
    tensors: Vec<(String, TensorEntry)>,
    visits_left: usize,
}

#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    texts: Vec<&'a str>,
    /// Lists, tuples, and dictionaries as keys and values in turn.
    nodes: Vec<Vec<Value>>,
    values: usize,
    storages: Vec<StorageEntry>,
    tensors: Vec<TensorEntry>,
}

const ENDS: &str = "it ends in the middle";
const EMPTY: &str = "an operation takes from an empty stack";

/// Whether a name of PyTorch's stands for a tensor, of whatever kind.
fn describes_tensors(module: &str, name: &str) -> bool {
    match module {
        "torch" => name.ends_with("Storage"),
        "torch._utils" => name.starts_with("_rebuild_"),
        _ => false,
    }
}

impl<'a> Machine<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)).ok_or(ENDS)?;
        self.at += count;
        Ok(bytes)
    }

    fn number(&mut self, bytes: usize) -> Result<usize, String> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(number)).map_err(|_| ENDS.to_owned())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let end = rest.iter().take(1000).position(|&byte| byte == b'\n').ok_or(ENDS)?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| "a name that is not UTF-8".to_owned())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(format!("more than {MOST_VALUES} values"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| EMPTY.to_owned())
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or(EMPTY)?;
        Ok(self.stack.split_off(mark))
    }

    fn node(&mut self, values: Vec<Value>) -> usize {
        self.nodes.push(values);
        self.nodes.len() - 1
    }

    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let start = self.stack.len().checked_sub(count).ok_or(EMPTY)?;
        let values = self.stack.split_off(start);
        let node = self.node(values);
        self.push(Value::Tuple(node))
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "a text that is not UTF-8")?;
        self.texts.push(text);
        self.push(Value::Text(self.texts.len() - 1))
    }

    fn put(&mut self, index: usize) -> Result<(), String> {
        let top = *self.stack.last().ok_or(EMPTY)?;
        if index > self.memo.len() + (1 << 16) {
            return Err("a memo is written out of order".to_owned());
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    fn get(&mut self, index: usize) -> Result<(), String> {
        let value = self.memo.get(index).copied().flatten().ok_or("a memo that was never written is read")?;
        self.push(value)
    }

    fn extend(&mut self, values: Vec<Value>) -> Result<(), String> {
        match self.stack.last() {
            Some(&(Value::List(node) | Value::Dict(node))) => self.nodes[node].extend(values),
            Some(Value::Plain) => {} // a set
            _ => return Err("items of what is no list and no dictionary".to_owned()),
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Value>, String> {
        let opcode = self.number(1)? as u8;
        match opcode {
            op::PROTO => drop(self.take(1)?),
            op::FRAME => drop(self.take(8)?),
            op::STOP => return self.pop().map(Some),
            op::MARK => self.marks.push(self.stack.len()),
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.marked()?),
            op::DUP => {
                let top = *self.stack.last().ok_or(EMPTY)?;
                self.push(top)?;
            }
            op::NONE | op::NEWTRUE | op::NEWFALSE | op::EMPTY_SET => self.push(Value::Plain)?,
            op::BININT1 => {
                let number = self.number(1)? as i64;
                self.push(Value::Int(number))?;
            }
            op::BININT2 => {
                let number = self.number(2)? as i64;
                self.push(Value::Int(number))?;
            }
            op::BININT => {
                let number = self.number(4)? as u32 as i32;
                self.push(Value::Int(i64::from(number)))?;
            }
            op::LONG1 => {
                let length = self.number(1)?;
                self.long(length)?;
            }
            op::LONG4 => {
                let length = self.number(4)?;
                self.long(length)?;
            }
            op::BINFLOAT => {
                self.take(8)?;
                self.push(Value::Plain)?;
            }
            op::SHORT_BINUNICODE => {
                let length = self.number(1)?;
                self.text(length)?;
            }
            op::BINUNICODE => {
                let length = self.number(4)?;
                self.text(length)?;
            }
            op::BINUNICODE8 => {
                let length = self.number(8)?;
                self.text(length)?;
            }
            op::SHORT_BINBYTES | op::SHORT_BINSTRING => {
                let length = self.number(1)?;
                self.take(length)?;
                self.push(Value::Plain)?;
            }
            op::BINBYTES | op::BINSTRING => {
                let length = self.number(4)?;
                self.take(length)?;
                self.push(Value::Plain)?;
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let length = self.number(8)?;
                self.take(length)?;
                self.push(Value::Plain)?;
            }
            op::EMPTY_TUPLE => self.tuple(0)?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::TUPLE => {
                let values = self.marked()?;
                let node = self.node(values);
                self.push(Value::Tuple(node))?;
            }
            op::EMPTY_LIST | op::LIST => {
                let values = if opcode == op::LIST { self.marked()? } else { Vec::new() };
                let node = self.node(values);
                self.push(Value::List(node))?;
            }
            op::EMPTY_DICT | op::DICT => {
                let values = if opcode == op::DICT { self.marked()? } else { Vec::new() };
                let node = self.node(values);
                self.push(Value::Dict(node))?;
            }
            op::APPEND => {
                let value = self.pop()?;
                self.extend(vec![value])?;
            }
            op::SETITEM => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend(vec![key, value])?;
            }
            op::APPENDS | op::SETITEMS | op::ADDITEMS => {
                let values = self.marked()?;
                self.extend(values)?;
            }
            op::BINGET => {
                let index = self.number(1)?;
                self.get(index)?;
            }
            op::LONG_BINGET => {
                let index = self.number(4)?;
                self.get(index)?;
            }
            op::BINPUT => {
                let index = self.number(1)?;
                self.put(index)?;
            }
            op::LONG_BINPUT => {
                let index = self.number(4)?;
                self.put(index)?;
            }
            op::MEMOIZE => self.put(self.memo.len())?,
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.known(module, name)?;
            }
            op::STACK_GLOBAL => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => {
                    self.known(self.texts[module], self.texts[name])?;
                }
                _ => return Err("a function whose name is no text".to_owned()),
            },
            op::BINPERSID => {
                let storage = self.pop()?;
                self.storage(storage)?;
            }
            op::REDUCE => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.rebuild(function, arguments)?;
            }
            // Attributes of a dictionary, such as `_metadata` of a state dict: no tensors.
            op::BUILD => {
                self.pop()?;
                if !matches!(self.stack.last(), Some(Value::Dict(_) | Value::Tensor(_))) {
                    return Err("attributes of what is no state dict".to_owned());
                }
            }
            byte => {
                let name = op::name(byte);
                return Err(format!(
                    "the operation {name} ({byte:#04x}), which no state dict needs; nothing was run"
                ));
            }
        }
        Ok(None)
    }

    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|&high| high >= 0x80);
        let mut number = [if negative { 0xff } else { 0 }; 8];
        let value = match bytes.len() {
            0..=8 => {
                number[..bytes.len()].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(number))
            }
            _ => Value::Plain,
        };
        self.push(value)
    }

    fn known(&mut self, module: &str, name: &str) -> Result<(), String> {
        match KnownGlobal::of(module, name) {
            Some(known) => self.push(Value::Global(known)),
            None if describes_tensors(module, name) => Err(format!(
                "it has a tensor by `{module}.{name}`, of a type or layout that is not read (complex, 8-bit floats, quantized, \
                 sparse). Convert it to a dense one of floats or whole numbers, and save again"
            )),
            None => Err(format!(
                "it asks for `{module}.{name}`, which could run code; only state dicts are read. Nothing was run. \
                 Save model.state_dict() instead of the model"
            )),
        }
    }

    /// `("storage", type, key, device, length)`.
    fn storage(&mut self, value: Value) -> Result<(), String> {
        let fields = if let Value::Tuple(node) = value { self.nodes[node].as_slice() } else { &[] };
        let &[
            Value::Text(kind),
            Value::Global(KnownGlobal::Storage(dtype)),
            Value::Text(key),
            _,
            Value::Int(len),
            ..,
        ] = fields
        else {
            return Err("a storage that is described in another way than PyTorch does".to_owned());
        };
        let (key, len) = (self.texts[key], usize::try_from(len));
        // A key is a name in the archive's folder `data`, and nothing that leads elsewhere.
        let (true, false, Ok(len)) = (self.texts[kind] == "storage", key.contains(['/', '\\']), len) else {
            return Err("a storage that is described in another way than PyTorch does".to_owned());
        };
        self.storages.push(StorageEntry { dtype, key: key.to_owned(), len });
        self.push(Value::Storage(self.storages.len() - 1))
    }

    fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        let Value::Tuple(node) = value else { return None };
        let size =
            |value: &Value| if let Value::Int(size) = value { usize::try_from(*size).ok() } else { None };
        self.nodes[node].iter().map(size).collect()
    }

    /// What a function that is known would give: nothing is called.
    fn rebuild(&mut self, function: Value, arguments: Value) -> Result<(), String> {
        let Value::Tuple(arguments) = arguments else { return Err("arguments that are no tuple".to_owned()) };
        let given = self.nodes[arguments].clone();
        match function {
            Value::Global(KnownGlobal::OrderedDict) => {
                let node = self.node(Vec::new());
                self.push(Value::Dict(node))
            }
            Value::Global(KnownGlobal::Size) => self.push(*given.first().ok_or(EMPTY)?),
            Value::Global(KnownGlobal::RebuildParameter) => self.push(*given.first().ok_or(EMPTY)?),
            Value::Global(KnownGlobal::RebuildTensor) => {
                let entry = (|| {
                    let &[Value::Storage(storage), Value::Int(offset), shape, strides, ..] = given.as_slice()
                    else {
                        return None;
                    };
                    let StorageEntry { dtype, key, len } = self.storages[storage].clone();
                    let offset = usize::try_from(offset).ok()?;
                    let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
                    let entry = TensorEntry { dtype, storage: key, storage_len: len, offset, shape, strides };
                    (entry.shape.len() == entry.strides.len() && entry.fits()).then_some(entry)
                })();
                let entry = entry.ok_or("a tensor that does not lie in its storage")?;
                self.tensors.push(entry);
                self.push(Value::Tensor(self.tensors.len() - 1))
            }
            _ => Err("it calls what is no function; nothing was run".to_owned()),
        }
    }

    /// Adds the tensors below a value. Keys that are numbers count as texts; other values are passed over.
    fn flatten(
        &self,
        value: Value,
        path: String,
        depth: usize,
        found: &mut FoundTensors,
    ) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} dictionaries in one another"));
        }
        let Some(left) = found.visits_left.checked_sub(1) else {
            return Err("the same dictionaries again and again".to_owned());
        };
        found.visits_left = left;
        let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            Value::Tensor(tensor) => found.tensors.push((path, self.tensors[tensor].clone())),
            Value::Dict(node) => {
                for pair in self.nodes[node].chunks_exact(2) {
                    let key = match pair[0] {
                        Value::Text(text) => self.texts[text].to_owned(),
                        Value::Int(number) => number.to_string(),
                        _ => continue,
                    };
                    self.flatten(pair[1], join(&key), depth + 1, found)?;
                }
            }
            Value::List(node) | Value::Tuple(node) => {
                for (i, &value) in self.nodes[node].iter().enumerate() {
                    self.flatten(value, join(&i.to_string()), depth + 1, found)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pickle: &[u8]) -> String {
        tensors(pickle).unwrap_err()
    }

    #[test]
    fn a_pickle_that_asks_for_a_function_is_refused_by_its_name() {
        assert!(
            refused(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.")
                .starts_with("byte 2: it asks for `os.system`")
        );
        let by_stack = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.";
        assert!(refused(by_stack).contains("it asks for `builtins.eval`"));
        assert!(refused(b"\x80\x02(cos\nsystem\no.").contains("`os.system`"));
        assert!(refused(b"\x80\x02ios\nsystem\n.").contains("the operation INST"));
    }

    #[test]
    fn what_is_broken_is_an_error_with_its_place() {
        assert_eq!(refused(b""), "byte 0: it ends in the middle");
        assert_eq!(refused(b"\x80\x02}q\0X\xff\xff\xff\xff"), "byte 5: it ends in the middle");
        assert_eq!(refused(b"\x80\x02R."), "byte 2: an operation takes from an empty stack");
        assert_eq!(refused(b"\x80\x02h\x07."), "byte 2: a memo that was never written is read");
        assert_eq!(refused(b"\x80\x02K\x01u."), "byte 4: an operation takes from an empty stack");
        assert!(refused(b"\x80\x02ccollections\nOrderedDict\nK\x01R.").contains("no tuple"));
    }

    #[test]
    fn a_dictionary_that_contains_itself_ends() {
        // d = {}; d["x"] = d
        let error = refused(b"\x80\x02}q\0X\x01\0\0\0xh\0s.");
        assert_eq!(error, "more than 64 dictionaries in one another");
    }

    #[test]
    fn dictionaries_that_are_shared_again_and_again_are_refused() {
        // d = [d, d], forty times over: 2^40 leaves.
        let mut pickle = b"\x80\x04]\x94".to_vec();
        for memo in 0..40 {
            pickle.extend([b']', 0x94, b'(', b'h', memo, b'h', memo, b'e']);
        }
        pickle.push(b'.');
        assert!(refused(&pickle).contains("again and again"));
    }

    #[test]
    fn lists_in_lists_by_the_million_are_dropped_without_a_deep_stack() {
        let mut pickle = b"\x80\x02".to_vec();
        pickle.extend(std::iter::repeat_n(b']', 1_000_000));
        pickle.extend(std::iter::repeat_n(b'a', 999_999));
        pickle.push(b'.');
        assert!(refused(&pickle).contains("in one another"));
    }
}
