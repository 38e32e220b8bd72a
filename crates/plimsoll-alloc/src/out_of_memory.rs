//! The out-of-memory error: [`OutOfMemory`], with its figures, the text of PyTorch's error for the same figures, and
//! the cause ([`Conclusion`]).

use std::fmt;

use crate::bytes::Bytes;
use crate::category::{Category, CategoryBytes};
use crate::request::{LabelId, PoolId, StreamId};

/// A request that failed, and the allocator's state at that moment (after the cache was released).
///
/// ```
/// # use plimsoll_alloc::{Allocator, Bytes, Config, Error, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(50 << 20))?;
/// let Err(why) = allocator.malloc(Request::of(3 << 19)) else { panic!("it fits?") };
/// assert_eq!(
///     why.to_string(),
///     "out of memory: asked for 1.50 MiB (a 20.00 MiB segment); 50.00 MiB allocated of 50.00 MiB reserved, \
///      largest free block 0 bytes; the device has 14.00 MiB of 64.00 MiB free; \
///      held by: temporaries 50.00 MiB"
/// );
/// # allocator.free(x);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The requested size, bytes.
    pub requested_bytes: u64,
    /// The request rounded up to a block, bytes.
    pub rounded_bytes: u64,
    /// The size of the segment that was needed, bytes.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The pool of the request.
    pub pool: PoolId,
    /// The category of the request.
    pub category: Category,
    /// The label of the request.
    pub label: LabelId,
    /// Allocated memory, in whole blocks, bytes.
    pub allocated_bytes: u64,
    /// Freed memory that other streams still use, bytes.
    pub pending_bytes: u64,
    /// Memory cached in private pools, bytes. PyTorch calls it "allocated in private pools".
    pub private_cached_bytes: u64,
    /// Reserved memory, bytes.
    pub reserved_bytes: u64,
    /// The limit on `reserved_bytes`, if set, bytes.
    pub limit_bytes: Option<u64>,
    /// Free memory of the device, bytes.
    pub device_free_bytes: u64,
    /// Total memory of the device, bytes.
    pub device_total_bytes: u64,
    /// The largest cached block of the request's stream in its half (small or large) of the pool, bytes; 0 if there is
    /// none.
    pub largest_free_block_bytes: u64,
    /// `allocated_bytes` by category.
    pub by_category: CategoryBytes,
    /// Whether `expandable_segments` was on.
    pub expandable_segments: bool,
    /// The size that `expandable_segments_reserve` sets, if one range of that size cannot hold the request, bytes.
    pub exceeded_reserve_bytes: Option<u64>,
    /// Whether the pool's own allocator, rather than the device, ran out of memory.
    pub segment_allocator_refused: bool,
}

/// The cause of an out-of-memory error.
///
/// ```
/// # use plimsoll_alloc::{Allocator, Conclusion, Config, Error, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let Err(Error::OutOfMemory(why)) = allocator.malloc(Request::of(65 << 20)) else { panic!("it fits?") };
/// assert_eq!(why.conclusion(), Conclusion::Capacity { missing_bytes: 1 << 20, limited: false });
/// assert_eq!(
///     why.conclusion().to_string(),
///     "allocated memory plus the request exceeds the device's memory by 1024.00 KiB"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Allocated memory plus the request exceed the capacity.
    Capacity {
        /// The missing bytes.
        missing_bytes: u64,
        /// Whether the capacity is the limit, rather than the device's memory.
        limited: bool,
    },
    /// The pool has its own allocator, which is out of memory, no matter how much memory is free on the device.
    SegmentAllocator,
    /// One range of `expandable_segments_reserve` cannot hold the request, no matter how much memory is free.
    Reserve {
        /// The option's value, bytes.
        reserve_bytes: u64,
    },
    /// Enough memory is free, but not contiguous.
    Fragmentation {
        /// Cached memory, bytes.
        cached_bytes: u64,
        /// The part of it in private pools, bytes.
        private_bytes: u64,
        /// Whether `expandable_segments` could be switched on.
        can_expand: bool,
    },
    /// Other processes, or other libraries in this process, use the missing memory.
    HeldByOthers {
        /// The memory that they use, bytes.
        others_bytes: u64,
    },
}

impl OutOfMemory {
    /// The cause. Returns the first of these that applies: the pool's own allocator failed; the request exceeds the
    /// reserve; allocated memory leaves no room for the request; enough memory is free, but not contiguous; others use
    /// the missing memory.
    pub fn conclusion(&self) -> Conclusion {
        if self.segment_allocator_refused {
            return Conclusion::SegmentAllocator;
        }
        if let Some(reserve_bytes) = self.exceeded_reserve_bytes {
            return Conclusion::Reserve { reserve_bytes };
        }
        let bound_bytes = self.limit_bytes.unwrap_or(u64::MAX).min(self.device_total_bytes);
        let limited = self.limit_bytes.is_some_and(|limit_bytes| limit_bytes < self.device_total_bytes);
        let held_bytes = self.allocated_bytes + self.pending_bytes;
        let missing_bytes = (held_bytes + self.rounded_bytes).saturating_sub(bound_bytes);
        if missing_bytes > 0 {
            return Conclusion::Capacity { missing_bytes, limited };
        }
        let cached_bytes = self.reserved_bytes.saturating_sub(held_bytes);
        let room_bytes = bound_bytes.saturating_sub(self.reserved_bytes).min(self.device_free_bytes);
        let known_bytes = self.reserved_bytes + self.device_free_bytes;
        let others_bytes = self.device_total_bytes.saturating_sub(known_bytes);
        if room_bytes + cached_bytes >= self.rounded_bytes || others_bytes == 0 {
            let (private_bytes, can_expand) = (self.private_cached_bytes, !self.expandable_segments);
            return Conclusion::Fragmentation { cached_bytes, private_bytes, can_expand };
        }
        Conclusion::HeldByOthers { others_bytes }
    }

    /// The text of PyTorch's error for the same figures on device number `device`.
    pub fn pytorch_text(&self, device: u32) -> String {
        let private_bytes = self.private_cached_bytes;
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {}. GPU {device} has a total capacity of {} of which {} is \
             free. ",
            Bytes(self.segment_bytes),
            Bytes(self.device_total_bytes),
            Bytes(self.device_free_bytes)
        );
        if let Some(limit_bytes) = self.limit_bytes {
            text += &format!("{} allowed; ", Bytes(limit_bytes));
        }
        text += &format!(
            "Of the allocated memory {} is allocated by PyTorch, ",
            Bytes(self.allocated_bytes + private_bytes)
        );
        if private_bytes > 0 {
            text +=
                &format!("with {} allocated in private pools (e.g., CUDA Graphs), ", Bytes(private_bytes));
        }
        let rest_bytes = self.reserved_bytes.saturating_sub(self.allocated_bytes + private_bytes);
        text += &format!("and {} is reserved by PyTorch but unallocated.", Bytes(rest_bytes));
        text += &self.pytorch_hint();
        if self.segment_allocator_refused {
            text += " The custom allocator backing this MemPool returned nullptr. Check preceding allocator warnings \
                     or logs for the underlying cause. This can indicate an allocator-specific error or memory \
                     constraint, even when device-wide free memory is available.";
        }
        text
    }

    /// PyTorch's hint on which option to set.
    fn pytorch_hint(&self) -> String {
        let reserve = "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve";
        match self.exceeded_reserve_bytes {
            Some(reserve_bytes) => format!(
                " This allocation exceeds the expandable-segment reserve of {} for this stream, and a single \
                 allocation cannot span expandable segments. Raise {reserve} or \
                 expandable_segments_reserve_by_class (or unset it) so that a segment is at least {}.",
                Bytes(reserve_bytes),
                Bytes(self.segment_bytes)
            ),
            None if self.expandable_segments => format!(
                " expandable_segments is enabled. If instead the process is running out of virtual address space \
                 (VSZ), expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, \
                 times the number of streams); reduce it via {reserve} / expandable_segments_reserve_by_class."
            ),
            None => {
                " If reserved but unallocated memory is large try setting \
                     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation \
                     for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html\
                     #optimizing-memory-usage-with-pytorch-cuda-alloc-conf)".to_owned()
            }
        }
    }
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Capacity { missing_bytes, limited } => {
                let bound = if limited { "the limit" } else { "the device's memory" };
                let missing = Bytes(missing_bytes);
                write!(f, "allocated memory plus the request exceeds {bound} by {missing}")
            }
            Self::SegmentAllocator => write!(f, "the pool's own allocator is out of memory"),
            Self::Reserve { reserve_bytes } => write!(
                f,
                "one expandable segment of {} cannot hold it; raise expandable_segments_reserve or unset it",
                Bytes(reserve_bytes)
            ),
            Self::Fragmentation { cached_bytes, private_bytes, can_expand } => {
                write!(f, "enough memory is free, but not contiguous: {} is cached", Bytes(cached_bytes))?;
                if private_bytes > 0 {
                    write!(f, ", of which {} in private pools", Bytes(private_bytes))?;
                }
                if can_expand { write!(f, "; expandable_segments:True may help") } else { Ok(()) }
            }
            Self::HeldByOthers { others_bytes } => {
                let others = Bytes(others_bytes);
                write!(f, "the missing memory is used outside this allocator, where {others} are in use")
            }
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: asked for {} (a {} segment); {} allocated of {} reserved, largest free block {}; ",
            Bytes(self.requested_bytes),
            Bytes(self.segment_bytes),
            Bytes(self.allocated_bytes),
            Bytes(self.reserved_bytes),
            Bytes(self.largest_free_block_bytes),
        )?;
        if let Some(limit_bytes) = self.limit_bytes {
            write!(f, "limited to {}; ", Bytes(limit_bytes))?;
        }
        write!(
            f,
            "the device has {} of {} free",
            Bytes(self.device_free_bytes),
            Bytes(self.device_total_bytes)
        )?;
        for (nth, (category, bytes)) in self.by_category.iter().filter(|&(_, bytes)| bytes > 0).enumerate() {
            let before = if nth == 0 { "; held by: " } else { ", " };
            write!(f, "{before}{} {}", category.plural(), Bytes(bytes))?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}
