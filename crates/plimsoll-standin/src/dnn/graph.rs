//! cuDNN's graph API, as far as PyTorch's convolutions use it: descriptions of a convolution are taken, and the plans
//! for it ask for the workspace that [`super::workspace`] models, if one is wanted.
//!
//! A description reaches its plan through others: operation, graph, heuristics, configuration, plan. What is known of the
//! convolution is handed on whenever one is put into, or taken out of, another.
//!
//! Note [Several plans]: heuristics answer a configuration on tensor cores, one without them for 32-bit floats, and one
//! that needs no workspace. PyTorch takes the first, but leaves out those on tensor cores where TF32 is not allowed, and
//! goes on to the next if there is no room for the workspace. cuDNN's own answer is a longer list that ends likewise.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use super::asked;
use crate::argument::{Out, little_endian};
use crate::call::{calls, new_handle};
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::lock::locked;

/// `cudnnBackendAttributeType_t`: how the values of an attribute are stored.
mod kind {
    pub(super) const DATA_TYPE: i32 = 1;
    pub(super) const INT64: i32 = 3;
    pub(super) const NUMERICAL_NOTE: i32 = 11;
    pub(super) const DESCRIPTOR: i32 = 15;
    pub(super) const INT32: i32 = 23;
    pub(super) const CHAR: i32 = 24;
}

/// `cudnnBackendAttributeName_t`: what an attribute is.
mod name {
    pub(super) const DILATIONS: i32 = 102;
    pub(super) const STRIDES: i32 = 103;
    pub(super) const PADDINGS: i32 = 105;
    pub(super) const RESULTS: i32 = 202;
    pub(super) const PLAN_WORKSPACE: i32 = 402;
    pub(super) const TENSOR_TYPE: i32 = 901;
    pub(super) const TENSOR_SIZES: i32 = 902;
    pub(super) const TENSOR_STRIDES: i32 = 903;
    pub(super) const ENGINE_NOTES: i32 = 1303;
}

/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE`.
const TENSOR_CORE: i32 = 0;
/// `CUDNN_DATA_FLOAT`, `CUDNN_DATA_HALF`, `CUDNN_DATA_BFLOAT16`; the bytes of others are not asked for.
const FLOAT: i64 = 0;
const HALF: i64 = 2;
const HALVES: [i64; 2] = [HALF, 9];

/// The text that stands for a plan: two characters of JSON, an empty object.
const PLAN: &[u8] = b"{}";

/// Which of a convolution's tensors is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Data,
    Weights,
}

impl Pass {
    /// The attributes of its operation: convolution, weights, input, output.
    fn attributes(self) -> [i32; 4] {
        match self {
            Pass::Forward => [702, 703, 704, 705],
            Pass::Data => [708, 709, 710, 711],
            Pass::Weights => [714, 715, 716, 717],
        }
    }
}

/// What kind of kernels may compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    /// On tensor cores, in 16 bits.
    Half,
    /// On tensor cores, in 32 bits of which they use some.
    Float,
    /// Without tensor cores.
    Plain,
}

/// The order of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Nchw,
    Nhwc,
}

/// A convolution, as a plan computes it. Sizes are in PyTorch's order: `[N, C, …]`, `[K, C / groups, …]`, `[N, K, …]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Convolution {
    pub(super) pass: Pass,
    pub(super) precision: Precision,
    pub(super) element_bytes: u64,
    /// Whether they are `float16`.
    pub(super) is_fp16: bool,
    pub(super) layout: Layout,
    pub(super) x: Vec<u64>,
    pub(super) w: Vec<u64>,
    pub(super) y: Vec<u64>,
    /// Without stride and padding.
    pub(super) in_place: bool,
    /// Without stride and dilation.
    pub(super) is_dense: bool,
}

/// What is known of a descriptor: the numbers it was given, and the convolution that it belongs to.
#[derive(Debug, Default)]
struct Descriptor {
    values: BTreeMap<i32, Vec<i64>>,
    convolution: Option<Convolution>,
}

/// By handle. PyTorch keeps plans, a few hundred at most.
static DESCRIPTORS: Mutex<BTreeMap<u64, Descriptor>> = Mutex::new(BTreeMap::new());

fn descriptors() -> MutexGuard<'static, BTreeMap<u64, Descriptor>> {
    locked(&DESCRIPTORS)
}

calls! { Dnn:
    fn cudnnBackendCreateDescriptor(_kind: c_int, descriptor: Out<u64>) {
        let handle = new_handle();
        descriptors().insert(handle, Descriptor::default());
        descriptor.put(handle)
    }
    fn cudnnBackendDestroyDescriptor(descriptor: u64) {
        descriptors().remove(&descriptor);
        Ok(())
    }
    fn cudnnBackendSetAttribute(descriptor: u64, name: c_int, kind: c_int, count: i64, values: Out<u8>) {
        set(descriptor, name, kind, count, values)
    }
    fn cudnnBackendFinalize(descriptor: u64) {
        finish(descriptor);
        Ok(())
    }
    fn cudnnBackendGetAttribute(
        descriptor: u64, name: c_int, kind: c_int, wanted: i64, count: Out<i64>, values: Out<u8>,
    ) {
        get(descriptor, name, kind, wanted, count, values)
    }
}

/// Keeps numbers and handles; the convolution of a handle is its owner's, too.
fn set(descriptor: u64, name: i32, kind: i32, count: i64, values: Out<u8>) -> Outcome {
    let bytes = match kind {
        kind::INT64 | kind::DESCRIPTOR => 8,
        kind::DATA_TYPE => 4,
        _ => return Ok(()),
    };
    let count = usize::try_from(count).map_err(|_| Failure::InvalidValue)?;
    let numbers: Vec<i64> = values.get_bytes(count * bytes)?.chunks(bytes).map(little_endian).collect();
    let mut descriptors = descriptors();
    let mut handed_on = numbers.iter().filter_map(|handle| descriptors.get(&handle.cast_unsigned()));
    let convolution = match kind {
        kind::DESCRIPTOR => handed_on.find_map(|child| child.convolution.clone()),
        _ => None,
    };
    let own = descriptors.get_mut(&descriptor).ok_or(Failure::InvalidHandle)?;
    own.values.insert(name, numbers);
    own.convolution = convolution.or(own.convolution.take());
    Ok(())
}

/// Reads the convolution out of an operation that is described in full.
fn finish(descriptor: u64) {
    let mut descriptors = descriptors();
    let found = [Pass::Forward, Pass::Data, Pass::Weights]
        .into_iter()
        .find_map(|pass| described(&descriptors, descriptors.get(&descriptor)?, pass));
    if let (Some(convolution), Some(own)) = (found, descriptors.get_mut(&descriptor)) {
        own.convolution = Some(convolution);
    }
}

fn described(all: &BTreeMap<u64, Descriptor>, operation: &Descriptor, pass: Pass) -> Option<Convolution> {
    let part = |attribute| all.get(&operation.values.get(&attribute)?.first()?.cast_unsigned());
    let [how, w, x, y] = pass.attributes().map(part);
    let sizes = |tensor: &Descriptor| -> Option<Vec<u64>> {
        let sizes = tensor.values.get(&name::TENSOR_SIZES)?.iter();
        sizes.map(|size| u64::try_from(*size).ok().filter(|size| *size > 0)).collect()
    };
    let (how, x) = (how?, x?);
    let all_are =
        |attribute, value| how.values.get(&attribute).is_none_or(|all| all.iter().all(|one| *one == value));
    let element = *x.values.get(&name::TENSOR_TYPE)?.first()?;
    let (precision, element_bytes) = match setup().gpu.capability {
        (8.., _) if element == FLOAT => (Precision::Float, 4),
        (7.., _) if HALVES.contains(&element) => (Precision::Half, 2),
        _ => (Precision::Plain, if HALVES.contains(&element) { 2 } else { 4 }),
    };
    let nhwc = x.values.get(&name::TENSOR_STRIDES)?.get(1) == Some(&1);
    let is_dense = all_are(name::STRIDES, 1) && all_are(name::DILATIONS, 1);
    let in_place = all_are(name::STRIDES, 1) && all_are(name::PADDINGS, 0);
    let layout = if nhwc { Layout::Nhwc } else { Layout::Nchw };
    let (x, w, y) = (sizes(x)?, sizes(w?)?, sizes(y?)?);
    let whole = [&x, &w, &y].iter().all(|sizes| sizes.len() > 2) && x[1].is_multiple_of(w[1]);
    let is_fp16 = element == HALF;
    whole.then_some(Convolution {
        pass,
        precision,
        element_bytes,
        is_fp16,
        layout,
        x,
        w,
        y,
        in_place,
        is_dense,
    })
}

/// Answers for an attribute: zeros, but for what follows from a convolution. Where descriptors are looked for the caller
/// has made them and gives them to be filled.
fn get(descriptor: u64, name: i32, kind: i32, wanted: i64, count: Out<i64>, values: Out<u8>) -> Outcome {
    let room = usize::try_from(wanted).unwrap_or(0);
    let convolution = descriptors().get(&descriptor).and_then(|own| own.convolution.clone());
    let (number, bytes) = match (kind, name) {
        (kind::DESCRIPTOR, _) => {
            let mut found = if name == name::RESULTS { plans(convolution) } else { vec![convolution] };
            // Without room the caller asks how many there are.
            if room > 0 {
                found.truncate(room);
                hand_on(&found, values)?;
            }
            (found.len() as i64, Vec::new())
        }
        (kind::NUMERICAL_NOTE, name::ENGINE_NOTES) => {
            let on_tensor_cores = convolution.is_some_and(|known| known.precision != Precision::Plain);
            let notes = usize::from(on_tensor_cores);
            (notes as i64, TENSOR_CORE.to_le_bytes().repeat(notes.min(room)))
        }
        (kind::INT64, name::PLAN_WORKSPACE) => {
            let bytes = convolution.map_or(0, |known| workspace_bytes(&known));
            (1, bytes.to_le_bytes().repeat(room.min(1)))
        }
        (kind::INT64, _) => (wanted.max(1), vec![0; room * 8]),
        (kind::INT32, _) => (wanted.max(1), vec![0; room * 4]),
        (kind::CHAR, _) => {
            (PLAN.len() as i64, PLAN.iter().copied().chain([0].repeat(room)).take(room).collect())
        }
        _ => (0, Vec::new()),
    };
    count.offer(number);
    if bytes.is_empty() { Ok(()) } else { values.put_bytes(&bytes) }
}

/// What heuristics find, best first: Note [Several plans]. The plan of which nothing is known needs no workspace.
fn plans(convolution: Option<Convolution>) -> Vec<Option<Convolution>> {
    let plain = match &convolution {
        Some(known) if known.precision == Precision::Float => {
            Some(Convolution { precision: Precision::Plain, ..known.clone() })
        }
        _ => None,
    };
    let (first, found) = (convolution, plain.is_some());
    let last = first.is_some().then_some(None);
    [first].into_iter().chain(found.then_some(plain)).chain(last).collect()
}

/// Fills the caller's descriptors, whose handles are there.
fn hand_on(found: &[Option<Convolution>], handles: Out<u8>) -> Outcome {
    let mut descriptors = descriptors();
    for (handle, convolution) in handles.get_bytes(found.len() * 8)?.chunks(8).zip(found) {
        if let Some(own) = descriptors.get_mut(&little_endian(handle).cast_unsigned()) {
            own.convolution.clone_from(convolution);
        }
    }
    Ok(())
}

/// Bytes of workspace, by the model or, as a rule, none.
fn workspace_bytes(convolution: &Convolution) -> u64 {
    asked(|| convolution.workspace_bytes(setup().gpu.multiprocessors.unsigned_abs().into()))
}
