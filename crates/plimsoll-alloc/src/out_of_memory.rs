//! A request that did not fit: [`OutOfMemory`], with all the numbers, PyTorch's message made of them, and
//! what follows from them ([`Conclusion`]).

use std::fmt;

use crate::allocator::Allocator;
use crate::block::State;
use crate::bytes::Bytes;
use crate::category::{Category, CategoryBytes};
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::expandable::exceeded_reserve;
use crate::request::{LabelId, PoolId, StreamId};
use crate::search::Ask;

/// A request that did not fit, and how things stood when it failed (after the release of the cache).
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
    /// What the caller asked for, bytes.
    pub requested_bytes: u64,
    /// The block that this needs, bytes.
    pub rounded_bytes: u64,
    /// What the device was asked for, bytes.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The pool of the request.
    pub pool: PoolId,
    /// What the bytes were to be for.
    pub category: Category,
    /// Whose they were to be.
    pub label: LabelId,
    /// What callers hold, in whole blocks, bytes.
    pub allocated_bytes: u64,
    /// What callers gave back, but other streams still use, bytes.
    pub pending_bytes: u64,
    /// What private pools have cached, bytes. PyTorch calls it "allocated in private pools".
    pub private_cached_bytes: u64,
    /// What the allocator holds of the device, bytes.
    pub reserved_bytes: u64,
    /// The bound on `reserved_bytes`, if one is set, bytes.
    pub limit_bytes: Option<u64>,
    /// What the device has free, bytes.
    pub device_free_bytes: u64,
    /// All that the device has, bytes.
    pub device_total_bytes: u64,
    /// The largest cached block of the request's own pool (small blocks and large ones have their own) and
    /// stream, bytes; 0 if there is none.
    pub largest_free_block_bytes: u64,
    /// `allocated_bytes` by what they are for.
    pub by_category: CategoryBytes,
    /// Whether `expandable_segments` was on.
    pub expandable_segments: bool,
    /// What `expandable_segments_reserve` sets, if the request is more than one such range holds, bytes.
    pub exceeded_reserve_bytes: Option<u64>,
    /// Whether the pool's own allocator was asked, rather than the device, and had no more.
    pub segment_allocator_refused: bool,
}

/// Why a request did not fit.
///
/// ```
/// # use plimsoll_alloc::{Allocator, Conclusion, Config, Error, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let Err(Error::OutOfMemory(why)) = allocator.malloc(Request::of(65 << 20)) else { panic!("it fits?") };
/// assert_eq!(why.conclusion(), Conclusion::Capacity { missing_bytes: 1 << 20, limited: false });
/// assert_eq!(
///     why.conclusion().to_string(),
///     "what is held and what was asked for are together 1024.00 KiB more than the device has"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// What is held and what was asked for are together more than there is.
    Capacity {
        /// By how much, bytes.
        missing_bytes: u64,
        /// Whether a limit is the bound, rather than the device.
        limited: bool,
    },
    /// The pool has an allocator of its own, and that one has no more, however much the device has free.
    SegmentAllocator,
    /// One range of `expandable_segments_reserve` cannot hold the request, however much is free.
    Reserve {
        /// What the option sets, bytes.
        reserve_bytes: u64,
    },
    /// Enough is free, but not in one piece.
    Fragmentation {
        /// What the allocator has cached in pieces, bytes.
        cached_bytes: u64,
        /// Of these, what is cached in private pools, bytes.
        private_bytes: u64,
        /// Whether `expandable_segments` could be switched on.
        can_expand: bool,
    },
    /// Other programs, or other libraries in this one, hold what is missing.
    HeldByOthers {
        /// What they hold, bytes.
        others_bytes: u64,
    },
}

impl OutOfMemory {
    /// Why the request did not fit: the first of these that explains it. The pool's own allocator refused; it
    /// is more than a reserve allows;
    /// what callers hold leaves no room for it; what is free would hold it, in one piece; what others hold
    /// is missing.
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

    /// The text of PyTorch's error for the same numbers, on the device with this ordinal.
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

    /// PyTorch's sentence on what to set.
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
                let bound = if limited { "the limit allows" } else { "the device has" };
                let missing = Bytes(missing_bytes);
                write!(f, "what is held and what was asked for are together {missing} more than {bound}")
            }
            Self::SegmentAllocator => write!(f, "the pool's own allocator has no more"),
            Self::Reserve { reserve_bytes } => write!(
                f,
                "one expandable segment of {} cannot hold it; raise expandable_segments_reserve or unset it",
                Bytes(reserve_bytes)
            ),
            Self::Fragmentation { cached_bytes, private_bytes, can_expand } => {
                write!(f, "enough is free, but not in one piece: {} is cached", Bytes(cached_bytes))?;
                if private_bytes > 0 {
                    write!(f, ", of it {} in private pools", Bytes(private_bytes))?;
                }
                if can_expand { write!(f, "; expandable_segments:True may help") } else { Ok(()) }
            }
            Self::HeldByOthers { others_bytes } => {
                let others = Bytes(others_bytes);
                write!(f, "what is missing is held outside this allocator, where {others} are in use")
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

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Takes down how things stand and announces the failure.
    pub(crate) fn give_up(&mut self, ask: &Ask) -> Error {
        let why = self.out_of_memory(ask);
        self.observer.on(&Event::OutOfMemory {
            requested_bytes: why.requested_bytes,
            rounded_bytes: why.rounded_bytes,
            segment_bytes: why.segment_bytes,
            stream: why.stream,
            pool_id: why.pool,
            tag: ask.request.tag(),
            stack: ask.request.stack,
            device_free_bytes: why.device_free_bytes,
        });
        Error::OutOfMemory(Box::new(why))
    }

    fn out_of_memory(&self, ask: &Ask) -> OutOfMemory {
        let mut by_category = CategoryBytes::default();
        let (mut pending_bytes, mut private_cached_bytes) = (0, 0);
        for block in self.pools.blocks.iter() {
            match block.state {
                State::Active => by_category[block.tag.category] += block.bytes,
                State::Pending => pending_bytes += block.bytes,
                State::Cached if self.pools.pool(block.pool).id != PoolId::DEFAULT => {
                    private_cached_bytes += block.bytes;
                }
                _ => {}
            }
        }
        let device = self.driver.memory();
        let after_bytes = self.reserved_bytes.saturating_add(ask.segment_bytes);
        let within_limit = self.limit_bytes.is_none_or(|limit_bytes| after_bytes <= limit_bytes);
        let segment_allocator_refused = within_limit && self.privates.has_segment_allocator(ask.request.pool);
        OutOfMemory {
            segment_allocator_refused,
            requested_bytes: ask.request.bytes,
            rounded_bytes: ask.block_bytes,
            segment_bytes: ask.segment_bytes,
            stream: ask.request.stream,
            pool: ask.request.pool,
            category: ask.request.category,
            label: ask.request.label,
            allocated_bytes: by_category.total(),
            pending_bytes,
            private_cached_bytes,
            reserved_bytes: self.reserved_bytes,
            limit_bytes: self.limit_bytes,
            device_free_bytes: device.free_bytes,
            device_total_bytes: device.total_bytes,
            largest_free_block_bytes: self
                .pools
                .pool(ask.pool)
                .cached
                .largest_bytes(&self.pools.blocks, ask.request.stream),
            by_category,
            expandable_segments: self.config.expandable_segments(),
            exceeded_reserve_bytes: exceeded_reserve(&self.config, ask, device.total_bytes),
        }
    }
}
