//! The values in the pickle of a state dict, in an arena. Only known function names are accepted, and no function is called.

use plimsoll_trace::pickle::{self, Builder, Malformed, Scalar};
use serde_json::Value as Json;

use super::value::{KnownGlobal, StorageEntry, TensorEntry, Value};

/// The maximum nesting depth of dictionaries.
const DEEPEST: usize = 64;
/// The maximum number of values in a pickle; a model with a million tensors has about ten million.
const MOST_VALUES: usize = 50_000_000;
/// How many bytes of copied names, sizes and keys count as one value or one visit. This bounds memory, because any
/// number of tensors may share them.
const COPIED_BYTES: usize = 64;

/// What a pickle contains, with names: the keys of the dictionaries on the path, joined by dots.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) tensors: Vec<(String, TensorEntry)>,
    /// Numbers, booleans and `None`.
    pub(super) numbers: Vec<(String, Json)>,
}

/// Reads a pickle.
///
/// # Errors
/// Where and why it is not the pickle of a state dict.
pub(super) fn contents(pickle: &[u8]) -> Result<Contents, String> {
    let mut objects = Objects::default();
    let (_, top) =
        pickle::read(pickle, &mut objects).map_err(|(at, Refusal(why))| format!("byte {at}: {why}"))?;
    let visits_left = 2 * objects.values + 1000;
    let mut found = Found { contents: Contents::default(), name: String::new(), visits_left };
    objects.flatten(top, 0, &mut found)?;
    Ok(found.contents)
}

/// What was found so far. The number of visits is bounded, because repeatedly shared dictionaries could lead to more
/// tensors than fit in memory. Bytes copied for a tensor also count as visits.
struct Found {
    contents: Contents,
    /// The name of the value being visited.
    name: String,
    visits_left: usize,
}

impl Found {
    fn visit(&mut self, count: usize) -> Result<(), String> {
        let left = self.visits_left.checked_sub(count);
        self.visits_left = left.ok_or("it repeats the same dictionaries too often")?;
        Ok(())
    }

    /// Adds a number with the name of the value being visited.
    fn number(&mut self, number: Json) -> Result<(), String> {
        self.visit(self.name.len() / COPIED_BYTES)?;
        self.contents.numbers.push((self.name.clone(), number));
        Ok(())
    }
}

#[derive(Default)]
struct Objects {
    /// The number of values pushed onto the reader's stack.
    values: usize,
    /// The bytes copied for storages and tensors, in units of [`COPIED_BYTES`].
    copied: usize,
    texts: Vec<Box<str>>,
    /// The contents of lists, tuples and dictionaries; in a dictionary, keys and values alternate.
    nodes: Vec<Vec<Value>>,
    storages: Vec<StorageEntry>,
    tensors: Vec<TensorEntry>,
}

/// The reason why a pickle does not contain a state dict.
struct Refusal(String);

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl From<Malformed> for Refusal {
    fn from(why: Malformed) -> Self {
        Self(match why {
            Malformed::Io(why) => why.to_string(),
            Malformed::Ends => "it is truncated".to_owned(),
            Malformed::Protocol(version) => {
                format!("pickle protocol {version} is not supported, only 2 to 5")
            }
            Malformed::Opcode(byte) => {
                let name = pickle::opcode_name(byte);
                format!("the operation {name} ({byte:#04x}), which no state dict needs; nothing was run")
            }
            Malformed::Broken(how) => how.to_owned(),
            Malformed::LongText { most } => format!("more than {most} bytes in one string"),
        })
    }
}

/// Whether a PyTorch name refers to a tensor of any kind.
fn describes_tensors(module: &str, name: &str) -> bool {
    match module {
        "torch" => name.ends_with("Storage"),
        "torch._utils" => name.starts_with("_rebuild_"),
        _ => false,
    }
}

impl Builder for Objects {
    type Value = Value;
    type Error = Refusal;

    fn scalar(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::Int(number) => Value::Int(number),
            Scalar::Float(number) => Value::Float(number),
            Scalar::Bool(flag) => Value::Bool(flag),
            Scalar::None => Value::None,
            _ => Value::Plain,
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Result<Value, Refusal> {
        let text = std::str::from_utf8(bytes).map_err(|_| "a string that is not UTF-8")?;
        self.texts.push(text.into());
        Ok(Value::Text(self.texts.len() - 1))
    }

    fn tuple(&mut self, items: &[Value]) -> Result<Value, Refusal> {
        Ok(Value::Tuple(self.node(items)))
    }

    fn list(&mut self) -> Value {
        Value::List(self.node(&[]))
    }

    fn dict(&mut self) -> Value {
        Value::Dict(self.node(&[]))
    }

    fn append(&mut self, list: Value, items: &[Value]) -> Result<Value, Refusal> {
        let (Value::List(node) | Value::Dict(node)) = list else {
            return Err("items of something that is neither a list nor a dictionary".into());
        };
        self.nodes[node].extend_from_slice(items);
        Ok(list)
    }

    fn set(&mut self, dict: Value, items: &[Value]) -> Result<Value, Refusal> {
        self.append(dict, items)
    }

    fn text_of(&self, value: Value) -> Option<String> {
        if let Value::Text(text) = value { Some(self.texts[text].to_string()) } else { None }
    }

    fn global(&mut self, module: &str, name: &str) -> Result<Value, Refusal> {
        match KnownGlobal::of(module, name) {
            Some(known) => Ok(Value::Global(known)),
            None if describes_tensors(module, name) => Err(Refusal(format!(
                "it has a tensor made by `{module}.{name}`, whose type or layout is not supported (complex, 8-bit floats, \
                 quantized, sparse). Convert it to a dense one of floats or integers, and save again"
            ))),
            None => Err(Refusal(format!(
                "it asks for `{module}.{name}`, which could run code; only state dicts are read. Nothing was run. \
                 Save model.state_dict() instead of the model"
            ))),
        }
    }

    fn persistent(&mut self, id: Value) -> Result<Value, Refusal> {
        let storage = self.storage(id).ok_or("a storage in a format that PyTorch does not write")?;
        self.copied(storage.key.len())?;
        self.storages.push(storage);
        Ok(Value::Storage(self.storages.len() - 1))
    }

    fn reduce(&mut self, function: Value, arguments: Value) -> Result<Value, Refusal> {
        let Value::Tuple(arguments) = arguments else { return Err("arguments that are not a tuple".into()) };
        let given = &self.nodes[arguments];
        match function {
            Value::Global(KnownGlobal::OrderedDict) => Ok(self.dict()),
            Value::Global(KnownGlobal::Size | KnownGlobal::RebuildParameter) => {
                given.first().copied().ok_or("a function without its arguments".into())
            }
            Value::Global(KnownGlobal::RebuildTensor) => {
                let tensor = self.tensor(given).ok_or("a tensor outside its storage")?;
                self.copied(tensor.heap_bytes())?;
                self.tensors.push(tensor);
                Ok(Value::Tensor(self.tensors.len() - 1))
            }
            _ => Err("it calls something that is not a function; nothing was run".into()),
        }
    }

    /// Ignores attributes of a dictionary, such as `_metadata` of a state dict: they contain no tensors.
    fn build(&mut self, object: Value, _state: Value) -> Result<(), Refusal> {
        match object {
            Value::Dict(_) | Value::Tensor(_) => Ok(()),
            _ => Err("attributes of something that is not a state dict".into()),
        }
    }

    fn pushed(&mut self, count: usize) -> Result<(), Refusal> {
        self.values += count;
        if self.values > MOST_VALUES {
            Err(Refusal(format!("more than {MOST_VALUES} values")))
        } else {
            Ok(())
        }
    }
}

impl Objects {
    fn node(&mut self, values: &[Value]) -> usize {
        self.nodes.push(values.to_vec());
        self.nodes.len() - 1
    }

    /// Counts copied bytes, and rejects the pickle if they exceed the limit.
    fn copied(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.copied += bytes / COPIED_BYTES;
        if self.copied > self.values {
            Err("it repeats the same sizes or keys too often".into())
        } else {
            Ok(())
        }
    }

    /// Reads a storage from `("storage", type, key, device, length)`.
    fn storage(&self, id: Value) -> Option<StorageEntry> {
        let Value::Tuple(node) = id else { return None };
        let &[
            Value::Text(kind),
            Value::Global(KnownGlobal::Storage(dtype)),
            Value::Text(key),
            _,
            Value::Int(len),
            ..,
        ] = self.nodes[node].as_slice()
        else {
            return None;
        };
        let (key, len) = (&self.texts[key], usize::try_from(len).ok()?);
        // A key is a file name in the archive's folder `data`, and never a path that leads out of it.
        let is_pytorchs = &*self.texts[kind] == "storage" && !key.contains(['/', '\\']);
        is_pytorchs.then(|| StorageEntry { dtype, key: key.to_string(), len })
    }

    /// Reads a tensor from `(storage, offset, shape, strides, …)`, if it lies within its storage.
    fn tensor(&self, given: &[Value]) -> Option<TensorEntry> {
        let &[Value::Storage(storage), Value::Int(offset), shape, strides, ..] = given else { return None };
        let StorageEntry { dtype, key, len } = self.storages[storage].clone();
        let offset = usize::try_from(offset).ok()?;
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        let entry = TensorEntry { dtype, storage: key, storage_len: len, offset, shape, strides };
        (entry.shape.len() == entry.strides.len() && entry.fits()).then_some(entry)
    }

    fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        let Value::Tuple(node) = value else { return None };
        let size =
            |value: &Value| if let Value::Int(size) = value { usize::try_from(*size).ok() } else { None };
        self.nodes[node].iter().map(size).collect()
    }

    /// Adds the tensors and numbers below a value. Numeric keys count as strings; other values are skipped.
    fn flatten(&self, value: Value, depth: usize, found: &mut Found) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("dictionaries nested more than {DEEPEST} deep"));
        }
        found.visit(1)?;
        match value {
            Value::Tensor(tensor) => {
                let tensor = &self.tensors[tensor];
                let copied = found.name.len() + tensor.heap_bytes();
                found.visit(copied / COPIED_BYTES)?;
                found.contents.tensors.push((found.name.clone(), tensor.clone()));
            }
            Value::None => found.number(Json::Null)?,
            Value::Bool(flag) => found.number(flag.into())?,
            Value::Int(number) => found.number(number.into())?,
            Value::Float(number) => found.number(number.into())?,
            Value::Dict(node) => {
                for pair in self.nodes[node].chunks_exact(2) {
                    match pair[0] {
                        Value::Text(text) => self.flatten_at(&self.texts[text], pair[1], depth, found)?,
                        Value::Int(number) => {
                            self.flatten_at(&number.to_string(), pair[1], depth, found)?;
                        }
                        _ => {}
                    }
                }
            }
            Value::List(node) | Value::Tuple(node) => {
                for (i, &value) in self.nodes[node].iter().enumerate() {
                    self.flatten_at(&i.to_string(), value, depth, found)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the tensors and numbers below an item of the container being visited.
    fn flatten_at(&self, key: &str, item: Value, depth: usize, found: &mut Found) -> Result<(), String> {
        let length = found.name.len();
        if length > 0 {
            found.name.push('.');
        }
        found.name.push_str(key);
        let flattened = self.flatten(item, depth + 1, found);
        found.name.truncate(length);
        flattened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(pickle: &[u8]) -> Result<Vec<(String, TensorEntry)>, String> {
        contents(pickle).map(|contents| contents.tensors)
    }

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
        assert!(refused(b"\x80\x02ios\nsystem\n.").contains("`os.system`"));
        assert!(refused(b"\x80\x02icollections\nOrderedDict\n.").contains("the operation INST"));
    }

    #[test]
    fn what_is_broken_is_an_error_with_its_place() {
        assert_eq!(refused(b""), "byte 0: it is truncated");
        assert_eq!(refused(b"\x80\x02}q\0X\xff\xff\xff\xff"), "byte 10: it is truncated");
        assert_eq!(refused(b"\x80\x02R."), "byte 2: an operation pops from an empty stack");
        assert_eq!(refused(b"\x80\x02h\x07."), "byte 2: a memo that was never written is read");
        assert_eq!(refused(b"\x80\x02K\x01u."), "byte 4: items end without a mark");
        assert_eq!(refused(b"\x80\x06}."), "byte 0: pickle protocol 6 is not supported, only 2 to 5");
        assert!(refused(b"\x80\x02ccollections\nOrderedDict\nK\x01R.").contains("not a tuple"));
    }

    #[test]
    fn a_dictionary_that_contains_itself_ends() {
        // d = {}; d["x"] = d
        let error = refused(b"\x80\x02}q\0X\x01\0\0\0xh\0s.");
        assert_eq!(error, "dictionaries nested more than 64 deep");
    }

    #[test]
    fn dictionaries_that_are_shared_again_and_again_are_refused() {
        // d = [d, d], nested forty times: 2^40 leaves.
        let mut pickle = b"\x80\x04]\x94".to_vec();
        for memo in 0..40 {
            pickle.extend([b']', 0x94, b'(', b'h', memo, b'h', memo, b'e']);
        }
        pickle.push(b'.');
        assert!(refused(&pickle).contains("too often"));
    }

    /// A list of tensors that share one storage with one element, and one shape with this many dimensions of size 1.
    fn tensors_of_one_shape(count: usize, dimensions: usize, key: &str) -> Vec<u8> {
        let mut pickle = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\0".to_vec();
        pickle.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX");
        pickle.extend((key.len() as u32).to_le_bytes());
        pickle.extend(key.bytes());
        pickle.extend(b"X\x03\0\0\0cpuK\x01tQq\x01(");
        pickle.extend(b"K\x01".repeat(dimensions));
        pickle.extend(b"tq\x02](");
        pickle.extend(b"h\0(h\x01K\0h\x02h\x02tR".repeat(count));
        pickle.extend(b"e.");
        pickle
    }

    #[test]
    fn sizes_and_keys_that_are_shared_again_and_again_are_refused() {
        let found = tensors(&tensors_of_one_shape(10_000, 4, "0")).unwrap();
        assert_eq!((found.len(), &*found[9_999].0, &*found[9_999].1.shape), (10_000, "9999", &[1; 4][..]));
        assert_eq!(tensors(&tensors_of_one_shape(1, 10_000, "0")).unwrap().len(), 1);
        assert!(refused(&tensors_of_one_shape(1_000, 10_000, "0")).contains("too often"));
        assert!(refused(&tensors_of_one_shape(1_000, 4, &"0".repeat(1 << 20))).contains("too often"));
    }

    #[test]
    fn a_name_that_is_shared_again_and_again_is_refused() {
        // {name: [a tensor, a tensor, …]}
        let name = [b"}X".to_vec(), (1_u32 << 20).to_le_bytes().to_vec(), vec![b'n'; 1 << 20]].concat();
        let mut pickle = tensors_of_one_shape(1_000, 4, "0");
        let list = pickle.windows(2).position(|two| two == b"](").unwrap();
        pickle.splice(list..list, name);
        pickle.pop();
        pickle.extend(b"s.");
        assert!(refused(&pickle).contains("too often"));
    }

    #[test]
    fn lists_in_lists_by_the_million_are_dropped_without_a_deep_stack() {
        let mut pickle = b"\x80\x02".to_vec();
        pickle.extend(std::iter::repeat_n(b']', 1_000_000));
        pickle.extend(std::iter::repeat_n(b'a', 999_999));
        pickle.push(b'.');
        assert!(refused(&pickle).contains("nested more than"));
    }
}
