//! Tensor descriptors: element type and sizes.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use crate::argument::{Out, little_endian};
use crate::call::calls;
use crate::error::{Failure, Outcome};
use crate::lock::locked;

/// `CUDNN_DIM_MAX`.
const MOST_DIMENSIONS: c_int = 8;

/// A tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// `cudnnDataType_t`.
    pub(super) element: c_int,
    pub(super) sizes: Vec<u64>,
}

static TENSORS: Mutex<BTreeMap<u64, Tensor>> = Mutex::new(BTreeMap::new());

fn tensors() -> MutexGuard<'static, BTreeMap<u64, Tensor>> {
    locked(&TENSORS)
}

impl Tensor {
    /// The tensor of a descriptor.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if no tensor was set.
    pub(super) fn of(descriptor: u64) -> Outcome<Tensor> {
        tensors().get(&descriptor).cloned().ok_or(Failure::InvalidHandle)
    }

    /// Sets a descriptor's tensor.
    pub(super) fn describe(self, descriptor: u64) {
        tensors().insert(descriptor, self);
    }

    /// Its sizes, if it has this many dimensions.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if it has another number of dimensions.
    pub(super) fn dimensions<const COUNT: usize>(&self) -> Outcome<[u64; COUNT]> {
        self.sizes.as_slice().try_into().map_err(|_| Failure::InvalidValue)
    }
}

calls! { Dnn:
    fn cudnnSetTensorNdDescriptor(
        descriptor: u64, element: c_int, count: c_int, sizes: Out<u8>, _strides: u64,
    ) {
        if !(0..=MOST_DIMENSIONS).contains(&count) {
            return Err(Failure::InvalidValue);
        }
        let sizes = sizes.get_bytes(4 * count.unsigned_abs() as usize)?;
        let sizes = sizes.chunks(4).map(little_endian).map(i64::unsigned_abs).collect();
        Tensor { element, sizes }.describe(descriptor);
        Ok(())
    }
    /// Contiguous strides.
    fn cudnnGetTensorNdDescriptor(
        descriptor: u64, wanted: c_int, element: Out<c_int>, count: Out<c_int>, sizes: Out<u8>, strides: Out<u8>,
    ) {
        let tensor = Tensor::of(descriptor)?;
        element.offer(tensor.element);
        count.offer(c_int::try_from(tensor.sizes.len()).map_err(|_| Failure::InvalidValue)?);
        let room = tensor.sizes.len().min(usize::try_from(wanted).unwrap_or(0));
        let mut inner = vec![1; tensor.sizes.len()];
        (1..inner.len()).rev().for_each(|at| inner[at - 1] = inner[at] * tensor.sizes[at]);
        let bytes = |numbers: &[u64]| -> Vec<u8> {
            numbers[..room].iter().flat_map(|number| (*number as u32).to_le_bytes()).collect()
        };
        sizes.put_bytes(&bytes(&tensor.sizes))?;
        strides.put_bytes(&bytes(&inner))
    }
    fn cudnnDestroyTensorDescriptor(descriptor: u64) {
        tensors().remove(&descriptor);
        Ok(())
    }
}
