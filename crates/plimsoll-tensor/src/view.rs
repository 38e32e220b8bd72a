//! A tensor as a back end sees it: its address, layout and type.
//!
//! Only `dispatch/` makes a [`View`]. It holds the locks of the storages as long as the views exist: any number of
//! readers, or one writer. An asynchronous device copies the views into its queue, whose order replaces the locks. A
//! back end in host memory turns a view into an [`In`] or an [`Out`]; this is the only place where an address becomes a
//! slice.

use std::marker::PhantomData;

use bytemuck::Pod;
use plimsoll_alloc::Addr;

use crate::dtype::{DType, Stored};
use crate::layout::Layout;
use crate::word::by_word;

/// A tensor as a back end sees it. It is borrowed, so it cannot outlive the locks that protect it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    address: Addr,
    dtype: DType,
    layout: &'a Layout,
    _locked: PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    /// A view of a storage of `bytes` bytes at `address`.
    pub(crate) fn new(address: Addr, bytes: u64, dtype: DType, layout: &'a Layout) -> View<'a> {
        let needed = (layout.end() * dtype.size()) as u64;
        assert!(layout.is_empty() || needed <= bytes, "a view of {needed} bytes on a storage of {bytes}");
        View { address, dtype, layout, _locked: PhantomData }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The layout of the elements.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The address of the first element.
    pub fn first_address(&self) -> u64 {
        self.address.0 + (self.layout.offset() * self.dtype.size()) as u64
    }

    /// The bytes from the first element to the last, including gaps.
    pub fn span_bytes(&self) -> u64 {
        let elements = if self.layout.is_empty() { 0 } else { self.layout.end() - self.layout.offset() };
        (elements * self.dtype.size()) as u64
    }

    /// The same elements at another address.
    pub(crate) fn moved(self, first: u64) -> View<'a> {
        let address = Addr(first.wrapping_sub((self.layout.offset() * self.dtype.size()) as u64));
        View { address, ..self }
    }

    /// A copy for work that waits in a queue.
    pub fn to_queued(self) -> QueuedView {
        QueuedView { address: self.address, dtype: self.dtype, layout: self.layout.clone() }
    }

    /// A pointer to the first element and the number of elements from it to the last, as a type of the element's size.
    fn span<S: Pod>(&self) -> (*mut S, usize) {
        assert_eq!(size_of::<S>(), self.dtype.size(), "elements of {} read by another size", self.dtype);
        if self.layout.is_empty() {
            return (std::ptr::NonNull::dangling().as_ptr(), 0);
        }
        let first = std::ptr::with_exposed_provenance_mut::<S>(self.address.0 as usize);
        (first.wrapping_add(self.layout.offset()), self.layout.end() - self.layout.offset())
    }

    fn want<S: Stored>(&self) {
        assert!(S::holds(self.dtype), "a view of {} read as {}", self.dtype, std::any::type_name::<S>());
    }
}

/// A view that waits in the queue of an asynchronous device. The memory stays there until the work is done (`Queues` in
/// `backend.rs`).
#[derive(Clone, Debug)]
pub struct QueuedView {
    address: Addr,
    dtype: DType,
    layout: Layout,
}

impl QueuedView {
    /// The view, which is used when the work runs.
    pub fn view(&self) -> View<'_> {
        View { address: self.address, dtype: self.dtype, layout: &self.layout, _locked: PhantomData }
    }
}

macro_rules! described {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Its address, layout and type.
            pub fn view(&self) -> View<'a> {
                self.0
            }

            /// Shape, strides and offset, in elements.
            pub fn layout(&self) -> &'a Layout {
                self.0.layout
            }

            /// Sizes, outermost first.
            pub fn shape(&self) -> &'a [usize] {
                self.0.layout.shape()
            }

            /// Strides in elements.
            pub fn strides(&self) -> &'a [usize] {
                self.0.layout.strides()
            }

            /// The type of the elements.
            pub fn dtype(&self) -> DType {
                self.0.dtype
            }
        }
    };
}
described!(In);
described!(Out);

/// A tensor in host memory to read.
#[derive(Clone, Copy, Debug)]
pub struct In<'a>(View<'a>);

impl<'a> In<'a> {
    /// Makes a view for reading into a tensor of the host.
    ///
    /// # Safety
    /// The view's address must be in host memory, and the view must have been made for reading.
    pub unsafe fn new(view: View<'a>) -> In<'a> {
        In(view)
    }

    /// The elements from the first to the last, including gaps; booleans are bytes of 0 and 1.
    ///
    /// # Panics
    /// If the elements have a different type.
    pub fn elements<S: Stored>(&self) -> &'a [S] {
        self.0.want::<S>();
        self.words()
    }

    /// The same elements as raw words of the element size.
    ///
    /// # Panics
    /// If the elements have a different size.
    pub(crate) fn words<S: Pod>(&self) -> &'a [S] {
        let (first, len) = self.0.span::<S>();
        // SAFETY: the storage owns `bytes` bytes at `address` while the lock behind this view is held
        // (dispatch/); `View::new` checked that the last element lies inside them. Every bit pattern is a valid
        // value, host memory is zeroed before its first use, and blocks begin at multiples
        // of 512 bytes, so elements are aligned.
        unsafe { std::slice::from_raw_parts(first, len) }
    }
}

impl<'a> In<'a> {
    /// The bytes of the elements from the first to the last, including gaps.
    pub fn bytes(&self) -> &'a [u8] {
        by_word!(self.dtype(), T => bytemuck::cast_slice(self.words::<T>()))
    }
}

impl<'a> Out<'a> {
    /// The bytes of the elements from the first to the last, including gaps.
    pub fn bytes(self) -> &'a mut [u8] {
        by_word!(self.dtype(), T => bytemuck::cast_slice_mut(self.words::<T>()))
    }
}

/// A tensor in host memory to write. Each tensor has only one, and it is consumed when it becomes a slice.
#[derive(Debug)]
pub struct Out<'a>(View<'a>);

impl<'a> Out<'a> {
    /// Makes a view for writing into a tensor of the host.
    ///
    /// # Safety
    /// Like [`In::new`]; and the view must have been made for writing (its storage's lock is held exclusively),
    /// and no other `In` or `Out` be made of any byte between its first element and its last.
    pub unsafe fn new(view: View<'a>) -> Out<'a> {
        Out(view)
    }

    /// The elements from the first to the last, including gaps; booleans are bytes of 0 and 1.
    ///
    /// # Panics
    /// If the elements have a different type.
    pub fn elements<S: Stored>(self) -> &'a mut [S] {
        self.0.want::<S>();
        self.words()
    }

    /// The same elements as raw words of the element size.
    ///
    /// # Panics
    /// If the elements have a different size.
    pub(crate) fn words<S: Pod>(self) -> &'a mut [S] {
        let (first, len) = self.0.span::<S>();
        // SAFETY: as above; exclusive because the write lock is held, this was the one view of these bytes, and spans of other
        // outputs in the same storage do not overlap it (dispatch/in_place.rs).
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}

/// One run of a kernel. Outputs share no memory with inputs or with each other.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The tensors to read, in the operator's order. A tensor that is changed in place is only in `outs`.
    pub ins: &'a [View<'a>],
    /// The tensors to write, in the operator's order.
    pub outs: &'a [View<'a>],
    /// Memory of the size that the operator's `scratch` returned, as `float32`.
    pub scratch: Option<View<'a>>,
}
