//! Tensors that own no memory, for parameters that are sharded over ranks: [`Tensor::lent`] and [`Tensor::window`].
//!
//! `storage/lent.rs` has the states of such a storage.

use std::sync::Arc;

use plimsoll_alloc::Tag;

use crate::autograd::no_grad;
use crate::data::Data;
use crate::error::{Error, Result};
use crate::label::{Category, LabelId};
use crate::layout::Layout;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::unwind::caught;

impl Tensor {
    /// A flat tensor of `len` elements that is gathered from the rows of several ranks; `rows` are this rank's. It owns
    /// no memory. The first operation that reads it calls `source` on its thread, with recording off, and uses the
    /// memory of the tensor that `source` returns. It does so until [`Tensor::take_back`] is called or `rows` change in
    /// place; the next reader then calls `source` again. Operations may not change a lent tensor. A change of the rows
    /// counts as a change of this tensor, so a backward pass notices that a saved parameter is out of date.
    ///
    /// If one operation reads several lent tensors, their sources are called in the order of its operands.
    ///
    /// ```
    /// use plimsoll_tensor::label::intern;
    /// use plimsoll_tensor::{Device, State, Tensor};
    /// let device = Device::cpu();
    /// let (rows, slot) = (Tensor::ones(&[2], &device)?, Tensor::zeros(&[4], &device)?);
    /// let gather = { // of one rank with half of the rows
    ///     let (rows, slot) = (rows.detach(), slot.clone());
    ///     move || slot.narrow(0, 0, 2)?.copy_(&rows).map(|()| slot.clone())
    /// };
    /// let whole = Tensor::lent(&rows, 4, intern("h.0"), gather)?;
    /// assert_eq!((whole.state(), whole.sum()?.item::<f32>()?), (State::Lent, 2.0));
    /// rows.fill_(3.0)?;
    /// assert_eq!((whole.state(), whole.sum()?.item::<f32>()?), (State::Lent, 6.0));
    /// assert!(whole.fill_(1.0).is_err());
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If another tensor is already gathered from these rows.
    pub fn lent(
        rows: &Tensor,
        len: usize,
        label: LabelId,
        source: impl Fn() -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let dtype = rows.dtype();
        let storage = move || -> Result<Storage> {
            let slot = no_grad(|| caught("lent", "its source", &source))?;
            if slot.dtype() != dtype || slot.storage_offset() != 0 {
                let message =
                    format!("its source gave {slot:?}, not a tensor of {dtype} at the start of its memory");
                return Err(Error::argument("lent", message));
            }
            Ok(slot.data().storage.clone())
        };
        let tag = Tag { category: Category::Parameter, label };
        let bytes = (len * dtype.size()) as u64;
        let storage = Storage::lent(&rows.data().storage, bytes, tag, Arc::new(storage))?;
        Ok(Tensor::from_data(Data { storage, layout: Layout::contiguous(&[len]), dtype }))
    }

    /// Takes back the memory of a lent tensor, so that another tensor can use it. Returns false and does nothing if an
    /// operation is about to read the tensor, or if the tensor is not lent.
    pub fn take_back(&self) -> bool {
        self.is_lent() && self.data().storage.take_back()
    }

    /// Whether it is a lent tensor or a view of one: [`Tensor::lent`].
    pub fn is_lent(&self) -> bool {
        self.data().storage.is_lent()
    }

    /// Whether a lent tensor is gathered from this tensor's memory, that is, whether this tensor has a rank's rows of a
    /// sharded parameter.
    pub fn is_shard(&self) -> bool {
        self.data().storage.is_gathered()
    }

    /// A flat tensor over the elements `start` to `start + len` of this one's memory. Unlike a view, it counts its
    /// changes separately and is not part of this tensor's storage, which stays on its device as long as the window
    /// exists. Two threads must not use both at the same time.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let buffer = Tensor::zeros(&[4], &Device::cpu())?;
    /// let window = buffer.window(1, 2)?;
    /// window.fill_(5.0)?;
    /// assert_eq!(buffer.to_vec::<f32>()?, [0.0, 5.0, 5.0, 0.0]);
    /// assert!(!window.shares_storage(&buffer) && window.storage_bytes() == 8);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not contiguous, or has fewer elements.
    pub fn window(&self, start: usize, len: usize) -> Result<Tensor> {
        if !self.is_contiguous() || start.checked_add(len).is_none_or(|end| end > self.numel()) {
            let message = format!(
                "elements {start} to {start} + {len} of {self:?}: the tensor must be contiguous and contain them"
            );
            return Err(Error::shape("window", message));
        }
        let (size, dtype) = (self.dtype().size() as u64, self.dtype());
        let storage = &self.data().storage;
        let from = (self.storage_offset() + start) as u64 * size;
        let storage = storage.window(from, len as u64 * size)?;
        Ok(Tensor::from_data(Data { storage, layout: Layout::contiguous(&[len]), dtype }))
    }
}
