//! A device's memory for the allocator: segments from `cuMemAlloc`, pages from virtual memory management, and
//! events on its streams.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, StreamId};

use crate::error::{CudaError, Result};
use crate::gpu::Gpu;

/// The memory of a device. Memory that the allocator has not returned is freed on drop.
pub struct CudaMemory {
    gpu: Arc<Gpu>,
    segments: BTreeMap<u64, u64>,
    /// Reserved address ranges: start and size.
    ranges: BTreeMap<u64, u64>,
    /// Mapped pages: address and size in bytes.
    pages: BTreeMap<u64, u64>,
    /// Pages that are mapped a second time: that address, and the one at which they were first mapped.
    aliases: BTreeMap<u64, u64>,
}

impl From<CudaError> for DriverError {
    fn from(error: CudaError) -> DriverError {
        match error {
            CudaError::OutOfMemory { .. } => DriverError::OutOfMemory,
            other => DriverError::Failed(other.to_string()),
        }
    }
}

fn refused<T>(message: String) -> std::result::Result<T, DriverError> {
    Err(DriverError::Failed(message))
}

impl CudaMemory {
    /// The memory of a device, with nothing allocated yet.
    pub fn new(gpu: Arc<Gpu>) -> CudaMemory {
        let (segments, ranges, pages, aliases) = Default::default();
        CudaMemory { gpu, segments, ranges, pages, aliases }
    }

    fn ready(&self) -> Result<&Gpu> {
        self.gpu.bind()?;
        Ok(&self.gpu)
    }

    /// Checks that `bytes` at `address` are reserved, and that nothing is mapped there.
    fn check_free(&self, address: u64, bytes: u64) -> std::result::Result<(), DriverError> {
        let range = self.ranges.range(..=address).next_back();
        if range.is_none_or(|(begin, space)| address + bytes > begin + space) {
            return refused(format!("{bytes} bytes at {address:#x} are not reserved"));
        }
        let before = self.pages.range(..address + bytes).next_back();
        let has_pages = before.is_some_and(|(begin, page_bytes)| begin + page_bytes > address);
        if has_pages || self.aliases.range(address..address + bytes).next().is_some() {
            return refused(format!("pages are mapped in the {bytes} bytes at {address:#x}"));
        }
        Ok(())
    }

    /// Waits for the work on a stream.
    fn finish(&self, on: StreamId) -> Result<()> {
        let gpu = self.ready()?;
        let stream = gpu.streams().itself(gpu.driver(), on)?;
        gpu.driver().synchronize_stream(stream)
    }

    fn unmap_aliases(&mut self, pages: impl IntoIterator<Item = u64>, page_bytes: u64) -> Result<()> {
        for page in pages {
            if self.aliases.contains_key(&page) {
                self.ready()?.driver().unmap(page, page_bytes)?;
                self.aliases.remove(&page);
            }
        }
        Ok(())
    }

    fn unmap_pages(&mut self, pages: impl IntoIterator<Item = u64>) -> Result<()> {
        for page in pages {
            if let Some(bytes) = self.pages.get(&page) {
                self.ready()?.driver().unmap(page, *bytes)?;
                self.pages.remove(&page);
            }
        }
        Ok(())
    }
}

impl Driver for CudaMemory {
    fn segment_alloc(&mut self, bytes: u64) -> std::result::Result<Addr, DriverError> {
        // The driver rounds sizes up; this must not overflow.
        if bytes > self.gpu.facts().total_bytes {
            return Err(DriverError::OutOfMemory);
        }
        let address = self.ready()?.driver().alloc(bytes)?;
        self.segments.insert(address, bytes);
        Ok(Addr(address))
    }

    /// Like `cudaFree`, the driver waits for work that uses the segment.
    fn segment_free(&mut self, addr: Addr) -> std::result::Result<(), DriverError> {
        if !self.segments.contains_key(&addr.0) {
            return refused(format!("no segment begins at {addr}"));
        }
        self.ready()?.driver().free(addr.0)?;
        self.segments.remove(&addr.0);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> std::result::Result<Addr, DriverError> {
        let address = self.ready()?.driver().reserve(bytes)?;
        self.ranges.insert(address, bytes);
        Ok(Addr(address))
    }

    fn release(&mut self, at: Addr, bytes: u64) -> std::result::Result<(), DriverError> {
        if self.ranges.get(&at.0) != Some(&bytes) {
            return refused(format!("no range of {bytes} bytes is reserved at {at}"));
        }
        let has_pages = self.pages.range(at.0..at.0 + bytes).next().is_some();
        if has_pages || self.aliases.range(at.0..at.0 + bytes).next().is_some() {
            return refused(format!("pages are mapped in the range at {at}"));
        }
        self.ready()?.driver().release(at.0, bytes)?;
        self.ranges.remove(&at.0);
        Ok(())
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> std::result::Result<(), DriverError> {
        let all = page_bytes * pages;
        self.check_free(at.0, all)?;
        let new: BTreeSet<u64> = addresses(at, page_bytes, pages).collect();
        let device = self.gpu.device();
        let mapped = new.iter().try_for_each(|&page| {
            self.ready()?.driver().map(device, page, page_bytes)?;
            self.pages.insert(page, page_bytes);
            Ok(())
        });
        // Setting access rights is the expensive part, so do it once for all pages.
        let done = mapped.and_then(|()| self.ready()?.driver().set_access(device, at.0, all));
        if done.is_err() {
            // Pages that cannot be unmapped either remain in the list, and the next request for them fails.
            let _ = self.unmap_pages(new);
        }
        Ok(done?)
    }

    fn unmap(
        &mut self,
        at: Addr,
        page_bytes: u64,
        pages: u64,
        on: StreamId,
    ) -> std::result::Result<(), DriverError> {
        let old: Vec<u64> = addresses(at, page_bytes, pages).collect();
        if let Some(missing) = old.iter().find(|page| self.pages.get(page) != Some(&page_bytes)) {
            return refused(format!("no page of {page_bytes} bytes is mapped at {missing:#x}"));
        }
        if let Some((again, _)) = self.aliases.iter().find(|(_, from)| old.binary_search(from).is_ok()) {
            return refused(format!("a page at {at} is still mapped at {again:#x}"));
        }
        self.finish(on)?;
        Ok(self.unmap_pages(old)?)
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> std::result::Result<(), DriverError> {
        let all = page_bytes * pages.len() as u64;
        self.check_free(at.0, all)?;
        if let Some(from) = pages.iter().find(|from| self.pages.get(&from.0) != Some(&page_bytes)) {
            return refused(format!("no page of {page_bytes} bytes is mapped at {from}"));
        }
        let new: Vec<u64> = addresses(at, page_bytes, pages.len() as u64).collect();
        let mapped = new.iter().zip(pages).try_for_each(|(&page, from)| {
            self.ready()?.driver().map_again(from.0, page, page_bytes)?;
            self.aliases.insert(page, from.0);
            Ok(())
        });
        let device = self.gpu.device();
        let done = mapped.and_then(|()| self.ready()?.driver().set_access(device, at.0, all));
        if done.is_err() {
            // As in `map`.
            let _ = self.unmap_aliases(new, page_bytes);
        }
        Ok(done?)
    }

    fn unalias(
        &mut self,
        at: Addr,
        page_bytes: u64,
        pages: u64,
        on: StreamId,
    ) -> std::result::Result<(), DriverError> {
        let old: Vec<u64> = addresses(at, page_bytes, pages).collect();
        if let Some(missing) = old.iter().find(|page| !self.aliases.contains_key(page)) {
            return refused(format!("no page is mapped again at {missing:#x}"));
        }
        self.finish(on)?;
        Ok(self.unmap_aliases(old, page_bytes)?)
    }

    fn record(&mut self, stream: StreamId) -> std::result::Result<EventId, DriverError> {
        Ok(self.gpu.record(stream)?)
    }

    fn is_done(&mut self, event: EventId) -> std::result::Result<bool, DriverError> {
        let done = self.gpu.is_done(event)?;
        if done {
            self.gpu.release(event);
        }
        Ok(done)
    }

    fn wait(&mut self, event: EventId) -> std::result::Result<(), DriverError> {
        self.gpu.wait(event)?;
        self.gpu.release(event);
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.gpu.is_capturing()
    }

    fn memory(&self) -> MemoryInfo {
        let (free_bytes, total_bytes) = self.gpu.memory_info().unwrap_or((0, self.gpu.facts().total_bytes));
        MemoryInfo { free_bytes, total_bytes }
    }
}

/// The start of each page of a range.
fn addresses(at: Addr, page_bytes: u64, pages: u64) -> impl Iterator<Item = u64> {
    (0..pages).map(move |page| at.0 + page * page_bytes)
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // If the context is lost, everything is freed when the process ends; after a reset, it is already freed.
        if self.gpu.is_reset() {
            return;
        }
        let _ = self.gpu.wait_all();
        for (page, from) in std::mem::take(&mut self.aliases) {
            if let Some(&bytes) = self.pages.get(&from) {
                let _ = self.gpu.driver().unmap(page, bytes);
            }
        }
        let pages: Vec<u64> = self.pages.keys().copied().collect();
        let _ = self.unmap_pages(pages);
        for (&address, &bytes) in &self.ranges {
            let _ = self.gpu.driver().release(address, bytes);
        }
        for &address in self.segments.keys() {
            let _ = self.gpu.driver().free(address);
        }
    }
}
