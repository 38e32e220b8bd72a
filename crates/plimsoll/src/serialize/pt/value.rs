//! The values in the pickle of a state dict, which live in an arena, and its tensors.

use std::borrow::Cow;

/// A value. Containers are indices of nodes in an arena, so a copy refers to the same container, and dropping values never
/// recurses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// Bytes, sets and very large numbers: values that contain neither a tensor nor an option of an optimizer.
    Plain,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(usize),
    Tuple(usize),
    List(usize),
    Dict(usize),
    /// The name of a known function or type.
    Global(KnownGlobal),
    Storage(usize),
    Tensor(usize),
}

/// The functions and types that `torch.save` of a state dict names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownGlobal {
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`, and `_rebuild_tensor`.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`, and `_rebuild_parameter_with_state`.
    RebuildParameter,
    /// `torch.Size`: a tuple.
    Size,
    /// The type of a storage, by the type of its elements.
    Storage(&'static str),
}

/// A storage type's name, without `Storage`, and PyTorch's name for its elements.
const STORAGES: [(&str, &str); 10] = [
    ("Double", "float64"),
    ("Float", "float32"),
    ("Half", "float16"),
    ("BFloat16", "bfloat16"),
    ("Long", "int64"),
    ("Int", "int32"),
    ("Short", "int16"),
    ("Char", "int8"),
    ("Byte", "uint8"),
    ("Bool", "bool"),
];

impl KnownGlobal {
    /// The function or type that a name of a module refers to, if it is known.
    pub(super) fn of(module: &str, name: &str) -> Option<KnownGlobal> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => KnownGlobal::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => KnownGlobal::RebuildTensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                KnownGlobal::RebuildParameter
            }
            ("torch", "Size") => KnownGlobal::Size,
            ("torch", name) => {
                let plain = name.strip_suffix("Storage")?;
                KnownGlobal::Storage(STORAGES.iter().find(|(storage, _)| *storage == plain)?.1)
            }
            _ => return None,
        })
    }
}

/// A storage that a tensor lies in.
#[derive(Clone, Debug)]
pub(super) struct StorageEntry {
    pub(super) dtype: &'static str,
    pub(super) key: String,
    pub(super) len: usize,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct TensorEntry {
    pub(super) dtype: &'static str,
    pub(super) storage: String,
    pub(super) storage_len: usize,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

impl TensorEntry {
    /// The bytes of its key and sizes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.storage.len() + size_of_val(&*self.shape) + size_of_val(&*self.strides)
    }

    /// Whether every element lies in the storage, and the number of elements is plausible.
    pub(super) fn fits(&self) -> bool {
        let elements = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let Some(elements) = elements else { return false };
        if elements == 0 {
            return true;
        }
        let last =
            self.shape.iter().zip(&self.strides).try_fold(self.offset, |at, (&size, &stride)| {
                at.checked_add((size - 1).checked_mul(stride)?)
            });
        // An expanded tensor has more elements than its storage, but a real one is never this much larger.
        last.is_some_and(|last| last < self.storage_len) && elements / 1024 <= self.storage_len
    }

    /// The bytes of the tensor's elements in row-major order, gathered from the storage.
    pub(super) fn gathered<'a>(&self, storage: &'a [u8], size: usize) -> Cow<'a, [u8]> {
        let elements: usize = self.shape.iter().product();
        let mut row_major = 1;
        let dense = self.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let is_next = n == 1 || stride == row_major;
            row_major *= n;
            is_next
        });
        if elements == 0 {
            return Cow::Borrowed(&[]);
        }
        if dense {
            return Cow::Borrowed(&storage[self.offset * size..][..elements * size]);
        }
        let mut bytes = Vec::with_capacity(elements * size);
        let mut index = vec![0; self.shape.len()];
        for _ in 0..elements {
            let at =
                self.offset + index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum::<usize>();
            bytes.extend_from_slice(&storage[at * size..][..size]);
            for dim in (0..index.len()).rev() {
                index[dim] += 1;
                if index[dim] < self.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
        Cow::Owned(bytes)
    }
}
