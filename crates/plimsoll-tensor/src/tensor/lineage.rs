//! Records changes in place in the graph.
//!
//! A tensor that is not a view forms a [`Family`] with its views. A recorded change of the base or of a view replaces the
//! operation that the base's values come from; a view looks up its new one the next time it is used. As in PyTorch, changing a
//! view records two operations: the change, and `copy_slices`, which puts the changed part into the base.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::smallvec;

use super::graph::{Family, Lineage, MadeBy, Member};
use super::{Derivative, Grads, Node, Tensor};
use crate::data::Data;
use crate::error::{Error, Result};
use crate::layout::{Dims, Layout};

impl Tensor {
    /// The operation that produced the values, and the index of its output: the last recorded change in place, or the operation
    /// that made the tensor.
    pub(crate) fn made_by(&self) -> Option<MadeBy> {
        match self.changed_member() {
            Some(member) => member.made_by(&self.0.data),
            None => self.0.made_by.clone(),
        }
    }

    pub(super) fn has_history(&self) -> bool {
        match self.changed_member() {
            Some(member) => member.made_by(&self.0.data).is_some(),
            None => self.0.made_by.is_some(),
        }
    }

    /// The tensor's place among the views of its memory, if a change of that memory was recorded.
    fn changed_member(&self) -> Option<&Member> {
        match self.0.lineage.get() {
            Some(Lineage::Member(member)) if member.family.changes.load(Ordering::Acquire) > 0 => {
                Some(member)
            }
            _ => None,
        }
    }

    /// The tensor's place among the views of its memory: a base if it is not a view.
    fn lineage(&self) -> &Lineage {
        self.0.lineage.get_or_init(|| {
            let wants = self.0.requires_grad.load(Ordering::Relaxed);
            let family = Arc::new(Family {
                base: self.0.data.layout.clone(),
                is_leaf: AtomicBool::new(wants && self.0.made_by.is_none()),
                changes: AtomicU32::new(0),
                made_by: Mutex::new(self.0.made_by.clone()),
            });
            Lineage::Member(Box::new(Member { family, is_base: true, made_by: Mutex::new((0, None)) }))
        })
    }

    /// Marks this tensor, which was just made, as a view of `other`.
    pub(crate) fn is_view_of(&self, other: &Tensor, is_recording: bool) {
        let lineage = match is_recording.then(|| other.lineage()) {
            Some(Lineage::Member(of)) => {
                let (family, changes) = (of.family.clone(), of.family.changes.load(Ordering::Acquire));
                let made_by = Mutex::new((changes, self.0.made_by.clone()));
                Lineage::Member(Box::new(Member { family, is_base: false, made_by }))
            }
            _ => Lineage::Unrecorded,
        };
        // A tensor that was just made has no lineage.
        let _ = self.0.lineage.set(lineage);
    }

    /// Tells the views of this tensor whether it is a leaf that requires a gradient. Views of such a leaf cannot be
    /// changed in place.
    pub(super) fn views_know_of_leaf(&self, wants_gradient: bool) {
        if let Some(Lineage::Member(member)) = self.0.lineage.get()
            && member.is_base
        {
            member.family.is_leaf.store(wants_gradient, Ordering::Relaxed);
        }
    }

    /// # Errors
    /// If `op` cannot record a change of this tensor in place.
    pub(crate) fn may_record_change(&self, op: &'static str) -> Result<()> {
        let refused = |message| Err(Error::autograd(op, message));
        match self.0.lineage.get() {
            Some(Lineage::Unrecorded) => refused(
                "a view that was made under `no_grad` is changed in place while operations are recorded: make the view \
                 outside of `no_grad`, or work on a detached tensor",
            ),
            Some(Lineage::Member(member)) if !member.is_base => {
                if member.family.is_leaf.load(Ordering::Relaxed) {
                    return refused(
                        "a view of a leaf Variable that requires grad is being used in an in-place operation: do it \
                         under `no_grad`, or on a detached tensor",
                    );
                }
                if !is_dense(&member.family.base) || overlaps(&self.0.data.layout) {
                    return refused(
                        "a change of this view cannot be recorded, because of the memory layout of the view or of \
                         its base: copy it first",
                    );
                }
                Ok(())
            }
            _ if self.0.requires_grad.load(Ordering::Relaxed) && !self.has_history() => refused(
                "a leaf Variable that requires grad is being used in an in-place operation: do it under `no_grad`, or on \
                 a detached tensor",
            ),
            _ => Ok(()),
        }
    }

    /// Records that the values now come from an output of `node`, which changed them in place.
    pub(crate) fn record_change(&self, node: &Arc<Node>, output: usize) {
        let Lineage::Member(member) = self.lineage() else { unreachable!("refused before the change") };
        let (family, data) = (&member.family, &self.0.data);
        let mut made_by = (node.clone(), output);
        if !member.is_base {
            let base = family.base_of(data, family.made_by());
            let changed = Tensor::linked(data.clone(), Some(made_by));
            let derivative = CopySlices { base: family.base.clone(), view: data.layout.clone() };
            made_by = (Node::new("copy_slices", &[&base, &changed], 1, Arc::new(derivative), None), 0);
        }
        let (changes, before) = {
            let mut now = family.made_by.lock().unwrap_or_else(PoisonError::into_inner);
            let before = now.replace(made_by);
            (family.changes.fetch_add(1, Ordering::AcqRel) + 1, before)
        };
        drop(before); // after the lock: it may be the last handle of a graph
        if !member.is_base {
            let now = (changes, Some((node.clone(), output)));
            let mut slot = member.made_by.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *slot, now);
            drop(slot);
            drop(before);
        }
    }
}

impl Member {
    /// The operation that produced the values at `data`.
    fn made_by(&self, data: &Data) -> Option<MadeBy> {
        if self.is_base {
            return self.family.made_by();
        }
        let changes = self.family.changes.load(Ordering::Acquire);
        let mut slot = self.made_by.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.0 == changes {
            return slot.1.clone();
        }
        let made_by = self.family.made_by().map(|of_base| {
            let base = self.family.base_of(data, Some(of_base));
            let derivative = AsStrided { base: self.family.base.clone(), view: data.layout.clone() };
            (Node::new("as_strided", &[&base], 1, Arc::new(derivative), None), 0)
        });
        let before = std::mem::replace(&mut *slot, (changes, made_by.clone()));
        drop(slot);
        drop(before); // after the lock: it may be the last handle of a graph
        made_by
    }
}

impl Family {
    fn made_by(&self) -> Option<MadeBy> {
        self.made_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The base that `view` is a part of, with this history.
    fn base_of(&self, view: &Data, made_by: Option<MadeBy>) -> Tensor {
        let data = Data { storage: view.storage.clone(), layout: self.base.clone(), dtype: view.dtype };
        Tensor::linked(data, made_by)
    }
}

/// `base, changed part -> base`: the derivative of changing a view.
struct CopySlices {
    base: Layout,
    view: Layout,
}

impl Derivative for CopySlices {
    fn backward(&self, _: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let whole = laid_as(grad, &self.base)?;
        let part = whole.region(&self.base, &self.view)?;
        let changed = wanted[1].then(|| part.copy()).transpose()?;
        if !wanted[0] {
            return Ok(smallvec![None, changed]);
        }
        part.zero_()?;
        Ok(smallvec![Some(whole), changed])
    }
}

/// `base -> view`: the derivative of a view whose base has changed.
struct AsStrided {
    base: Layout,
    view: Layout,
}

impl Derivative for AsStrided {
    fn backward(&self, _: &Arc<Node>, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let grad = grads[0].as_ref();
        Ok(smallvec![grad.map(|grad| gradient_of_base(grad, &self.base, &self.view)).transpose()?])
    }
}

/// The gradient of a tensor laid out like `base`, from the gradient of a view of it: zero outside the view.
///
/// # Errors
/// If the view repeats elements in a way other than `expand`, or memory runs out.
pub(crate) fn gradient_of_base(grad: &Tensor, base: &Layout, view: &Layout) -> Result<Tensor> {
    let repeated = |d: &usize| view.shape()[*d] > 1 && view.strides()[*d] == 0;
    let repeated: Vec<usize> = (0..view.rank()).filter(repeated).collect();
    let (mut grad, mut view) = (grad.clone(), view.clone());
    if !repeated.is_empty() {
        grad = grad.sum_keepdim(&repeated.iter().map(|&d| d as isize).collect::<Vec<_>>())?;
        view = repeated.iter().fold(view, |view, &d| view.narrow(d, 0, 1));
    }
    if overlaps(&view) {
        let message =
            "a view with repeated elements lost its history through an in-place change: copy it first";
        return Err(Error::autograd("as_strided", message));
    }
    let (order, inverse) = orders(base);
    let shape: Dims = order.iter().map(|&d| base.shape()[d as usize]).collect();
    let whole = Tensor::full(&shape, 0.0, grad.dtype(), grad.device())?.permute(&inverse)?;
    whole.region(base, &view)?.copy_(&grad)?;
    Ok(whole)
}

/// A copy with the layout of `base`, which has no gaps.
fn laid_as(grad: &Tensor, base: &Layout) -> Result<Tensor> {
    if base.is_contiguous() {
        return grad.copy();
    }
    let (order, inverse) = orders(base);
    grad.permute(&order)?.copy()?.permute(&inverse)
}

/// The permutation that sorts dimensions from outermost to innermost in memory, and its inverse.
fn orders(layout: &Layout) -> (Vec<isize>, Vec<isize>) {
    let order: Vec<isize> = layout.order().iter().map(|&d| d as isize).collect();
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| inverse[from as usize] = to as isize);
    (order, inverse)
}

/// Whether the layout covers every element between its first and last exactly once.
fn is_dense(layout: &Layout) -> bool {
    layout.end() - layout.offset() == layout.len() && !overlaps(layout)
}

/// Whether two indices may refer to one element.
fn overlaps(layout: &Layout) -> bool {
    let mut dims: Vec<(usize, usize)> = layout
        .strides()
        .iter()
        .copied()
        .zip(layout.shape().iter().copied())
        .filter(|&(_, n)| n > 1)
        .collect();
    dims.sort_unstable();
    // Each stride must exceed the span of all smaller strides.
    let mut reach = 0;
    dims.iter().any(|&(stride, n)| {
        let inside = stride <= reach;
        reach += (n - 1) * stride;
        inside
    })
}
