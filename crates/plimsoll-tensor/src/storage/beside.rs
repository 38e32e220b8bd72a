//! Copies that overlap with the computation: bytes leave their device while operations run, and come back before they
//! are read.
//!
//! The host does not wait for these copies. Memory is freed on the stream that computes, after that stream waits for the copy,
//! and requested from it: so requests and frees have the same order in each run, however long the copies take.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use plimsoll_alloc::StreamId;

use super::backing::Backing;
use super::leaving::{Departure, Leaving};
use super::moves::Way;
use super::{Storage, request};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::pinned::Block;
use crate::stream::{Event, Stream};
use crate::view::View;

const OP: &str = "offload";

impl Storage {
    /// Whether the bytes are in memory of their own that can leave the device.
    pub(crate) fn can_leave(&self) -> bool {
        matches!(self.account().backing, Backing::Device(_, None))
    }

    /// Starts to copy the bytes to pinned memory on the stream `on`, after the work that is now on the current stream and on the
    /// stream that the memory was requested for. Returns false if they cannot leave, or already do.
    ///
    /// # Errors
    /// Pinned memory cannot be allocated; the device's errors.
    pub(crate) fn start_leaving(&self, on: &Stream) -> Result<bool> {
        let label = {
            let account = self.account();
            let is_leaving =
                account.leaving.as_ref().is_some_and(|leaving| leaving.version == self.version());
            if !matches!(account.backing, Backing::Device(_, None)) || is_leaving {
                return Ok(false);
            }
            account.tag.label
        };
        let block = Block::alloc(self.bytes(), OP, label)?;
        let _reading = self.0.lock.read().unwrap_or_else(PoisonError::into_inner);
        let Some(from) = self.address_now() else { return Ok(false) };
        let (current, own) = (self.0.device.current_stream(), self.0.own_stream());
        on.wait_stream(&current)?;
        if own != current {
            on.wait_stream(&own)?; // it may be what computes the bytes
        }
        let copied = self.copy(from, Way::Out, &block, on)?;
        self.account().leaving = Some(Box::new(Leaving { block, copied, version: self.version() }));
        Ok(true)
    }

    /// Frees the bytes on their device, after [`Storage::start_leaving`]. The stream that they were requested for waits for the copy.
    /// If tensors hold the bytes, they leave only if `is_held` is set.
    ///
    /// # Errors
    /// The device's errors.
    pub(crate) fn leave(&self, is_held: bool) -> Result<Departure> {
        let writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let mut account = self.account();
        let version = self.0.version.load(Ordering::Acquire);
        let is_current = account.leaving.as_ref().is_some_and(|leaving| leaving.version == version);
        if !is_current || !matches!(account.backing, Backing::Device(_, None)) {
            return Ok(Departure::Stays);
        }
        // One handle is the caller's.
        let is_used = !is_held && self.ref_count() > account.saved as usize + 1;
        if account.guards > 0 || is_used {
            return Ok(Departure::InUse);
        }
        let Some(leaving) = account.leaving.take() else { return Ok(Departure::Stays) };
        self.0.own_stream().wait_event(&leaving.copied)?;
        let Leaving { block, copied, .. } = *leaving;
        self.go_away(Backing::Offloaded { block: Arc::new(block), copied }, account, writing);
        Ok(Departure::Left)
    }

    /// Requests memory for offloaded bytes, and starts to copy them back on the stream `on`. The first operation that reads them
    /// makes its stream wait for the copy. Returns false if they are not offloaded.
    ///
    /// # Errors
    /// Out of memory, or the device's errors: the bytes stay where they are.
    pub(crate) fn start_returning(&self, on: &Stream) -> Result<bool> {
        let device = &self.0.device;
        let (block, copied) = match &self.account().backing {
            Backing::Offloaded { block, copied } => (block.clone(), copied.clone()),
            _ => return Ok(false),
        };
        let (allocation, stream) = request(device, self.bytes(), OP, self.tag())?;
        let to = allocation.addr();
        // Earlier work on this memory is on the stream for which it was requested.
        let started = on
            .wait_stream(&device.current_stream())
            .and_then(|()| on.wait_event(&copied))
            .and_then(|()| self.copy(to, Way::In, &block, on));
        let arrived = match started {
            Ok(arrived) => arrived,
            Err(error) => {
                device.free(allocation, self.tag());
                return Err(error);
            }
        };
        let mut account = self.account();
        let is_same =
            matches!(&account.backing, Backing::Offloaded { block: there, .. } if Arc::ptr_eq(there, &block));
        let coming = Backing::Returning { allocation, stream, arrived };
        let old = if is_same {
            self.0.stream.store(stream.0, Ordering::Relaxed);
            self.0.used_by.store(stream.0, Ordering::Relaxed);
            mem::replace(&mut account.backing, coming)
        } else {
            coming // another thread brought them back
        };
        let tag = account.tag;
        drop(account);
        old.free(device, tag);
        Ok(is_same)
    }

    /// Like [`Storage::start_returning`], for bytes that are not needed yet. `None` if there is no room: the operation that reads them
    /// brings them back, or returns the error.
    ///
    /// # Errors
    /// The error of other work, because it is returned only once.
    pub(crate) fn start_returning_early(&self, on: &Stream) -> Result<Option<bool>> {
        match self.start_returning(on) {
            Err(late @ Error::Late { .. }) => Err(late),
            started => Ok(started.ok()),
        }
    }

    /// Reads a tensor from bytes that wait on the host, without copying them back. Returns false if they are elsewhere.
    ///
    /// # Errors
    /// The device's errors.
    pub(crate) fn read_offloaded(&self, dtype: DType, layout: &Layout, bytes: &mut Vec<u8>) -> Result<bool> {
        let (block, copied) = match &self.account().backing {
            Backing::Offloaded { block, copied } => (block.clone(), copied.clone()),
            _ => return Ok(false),
        };
        copied.synchronize()?;
        let view = View::new(block.address(), self.bytes(), dtype, layout);
        Device::cpu().backend().read(view, bytes, StreamId::default())?;
        Ok(true)
    }

    /// Makes the current stream and that of the memory wait for bytes that are being copied back. From then on they are on their
    /// device. See Note [Copies on other streams].
    pub(super) fn arrive(&self, own: StreamId, arrived: &Arc<Event>) -> Result<()> {
        let device = &self.0.device;
        let current = device.current_stream();
        current.wait_event(arrived)?;
        if current.id() != own {
            Stream::numbered(device, own).wait_event(arrived)?;
        }
        let _writing = self.0.lock.write().unwrap_or_else(PoisonError::into_inner);
        let mut account = self.account();
        account.backing = match mem::replace(&mut account.backing, Backing::Gone) {
            Backing::Returning { allocation, arrived: event, .. } if Arc::ptr_eq(&event, arrived) => {
                self.0.address.store(allocation.addr().0, Ordering::Release);
                // Other streams may have been recorded before.
                self.0.used_by.store(own.0, Ordering::Relaxed);
                account.arrived = Some(event);
                Backing::Device(allocation, None)
            }
            other => other,
        };
        Ok(())
    }
}
