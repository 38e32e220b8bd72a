//! What a back end gets to see of a tensor: where it lies, how, and of what type.
//!
//! A [`View`] is made by `dispatch.rs` alone, which holds the locks of the storages for as long as the
//! views live: any number of readers, or one writer. Turning an address into a slice happens here and
//! nowhere else; only back ends whose addresses are host memory may ask for it.

use std::marker::PhantomData;

use plimsoll_alloc::Addr;

use crate::dtype::{DType, Element};
use crate::layout::Layout;

/// A tensor as a kernel sees it. Borrowed: it cannot outlive the locks it was made under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
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

    /// Shape, strides and offset, in elements.
    pub(crate) fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Sizes, outermost first.
    pub(crate) fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// Strides in elements.
    pub(crate) fn strides(&self) -> &'a [usize] {
        self.layout.strides()
    }

    /// The type of the elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The first element and the number of elements from there to the last.
    fn span<T: Element>(&self) -> (*mut T, usize) {
        assert_eq!(T::DTYPE, self.dtype, "a view of {} read as {}", self.dtype, T::DTYPE);
        if self.layout.is_empty() {
            return (std::ptr::NonNull::dangling().as_ptr(), 0);
        }
        let first = std::ptr::with_exposed_provenance_mut::<T>(self.address.0 as usize);
        (first.wrapping_add(self.layout.offset()), self.layout.end() - self.layout.offset())
    }

    /// The elements from the view's first to its last, gaps included.
    ///
    /// # Safety
    /// The address must be host memory, and the view must have been made for reading.
    pub(crate) unsafe fn as_slice<T: Element>(&self) -> &'a [T] {
        let (first, len) = self.span::<T>();
        // SAFETY: the storage owns `bytes` bytes at `address` while the lock behind this view is held
        // (dispatch.rs); `new` checked that the last element lies inside them. Every bit pattern is a
        // valid element, host memory is zeroed before its first use, and blocks begin at multiples of
        // 512 bytes, so elements are aligned.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// The elements from the view's first to its last, for writing.
    ///
    /// # Safety
    /// As [`View::as_slice`]; and the view must have been made for writing (its storage's lock is held
    /// exclusively) and be turned into a slice once at a time.
    pub(crate) unsafe fn as_mut_slice<T: Element>(&self) -> &'a mut [T] {
        let (first, len) = self.span::<T>();
        // SAFETY: as above; exclusive because the caller holds the write lock and makes one slice of it.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}
