//! Internal pinned host memory: values pass through it to and from the device, and kernels write errors to it.

use std::sync::Mutex;

use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::streams::lock;

/// Pinned memory that a device accesses at the same address.
pub(crate) struct Pinned {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: memory from the driver that only this value owns, at the same address for all threads.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `bytes` bytes, all zero.
    pub(crate) fn new(driver: &Driver, bytes: usize) -> Result<Pinned> {
        let at = driver.host_alloc(bytes)?;
        // SAFETY: the driver allocated `bytes` bytes at this address, and nothing else refers to them yet.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { at, bytes })
    }

    pub(crate) fn address(&self) -> u64 {
        self.at.expose_provenance() as u64
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.at
    }

    /// Copies bytes to its beginning. No copy from it may be in progress.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "{} bytes into {}", bytes.len(), self.bytes);
        // SAFETY: the assertion keeps the copy inside the memory; `bytes` belongs to the caller, so they do not
        // overlap.
        unsafe { self.at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Appends its first bytes to `to`. The copy to it must be done.
    pub(crate) fn read(&self, count: usize, to: &mut Vec<u8>) {
        assert!(count <= self.bytes, "{count} bytes of {}", self.bytes);
        // SAFETY: the assertion keeps the read inside the memory, which was zeroed at first, so all of it is
        // initialized.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(self.at, count) });
    }

    /// A word that the device may write at any time.
    pub(crate) fn word(&self, index: usize) -> u64 {
        assert!((index + 1) * 8 <= self.bytes, "word {index} of {} bytes", self.bytes);
        // SAFETY: the assertion keeps the word inside the memory; the driver's addresses are multiples of 4096.
        unsafe { self.at.cast::<u64>().add(index).read_volatile() }
    }

    /// Changes a word that the device may write.
    pub(crate) fn set_word(&mut self, index: usize, value: u64) {
        assert!((index + 1) * 8 <= self.bytes, "word {index} of {} bytes", self.bytes);
        // SAFETY: as above.
        unsafe { self.at.cast::<u64>().add(index).write_volatile(value) };
    }

    /// Frees it. No copy may be in progress.
    pub(crate) fn free(self, driver: &Driver) {
        // If the context is lost, the memory is freed when the process ends.
        let _ = driver.host_free(self.at);
    }
}

/// The maximum size of a piece of a copy.
const PIECE_BYTES: usize = 8 << 20;
/// Pieces up to this size use buffers of this size.
const SMALL_BYTES: usize = 64 << 10;
/// The number of buffers that may be in use before a copy waits for the oldest.
const MOST: usize = 8;

/// Staging buffers between the program's memory and the device's. A buffer is reused when its copy is done.
#[derive(Default)]
pub(crate) struct Staging {
    /// The buffers of queued copies, oldest first, each with the event after its copy.
    small: Mutex<Vec<(Pinned, Handle)>>,
    large: Mutex<Vec<(Pinned, Handle)>>,
}

impl Staging {
    /// Queues a copy from the program's memory. The caller may change the bytes once this returns.
    pub(crate) fn write(&self, driver: &Driver, to: u64, bytes: &[u8], stream: Handle) -> Result<()> {
        for (nth, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let (pool, size) = self.pool(piece.len());
            let (mut buffer, event) = take(driver, pool, size)?;
            buffer.write(piece);
            let at = to + (nth * PIECE_BYTES) as u64;
            let queued = driver
                .copy_to_device(at, buffer.pointer(), piece.len(), stream)
                .and_then(|()| driver.record(event, stream));
            lock(pool).push((buffer, event));
            queued?;
        }
        Ok(())
    }

    /// Appends bytes of device memory to `to`, after the work that is now on the stream.
    pub(crate) fn read(
        &self,
        driver: &Driver,
        from: u64,
        count: usize,
        to: &mut Vec<u8>,
        stream: Handle,
    ) -> Result<()> {
        let mut at = 0;
        while at < count {
            let piece = (count - at).min(PIECE_BYTES);
            let (pool, size) = self.pool(piece);
            let (buffer, event) = take(driver, pool, size)?;
            let copied = driver
                .copy_to_host(buffer.pointer(), from + at as u64, piece, stream)
                .and_then(|()| driver.record(event, stream))
                .and_then(|()| driver.wait(event));
            if copied.is_ok() {
                buffer.read(piece, to);
            }
            lock(pool).push((buffer, event));
            copied?;
            at += piece;
        }
        Ok(())
    }

    fn pool(&self, bytes: usize) -> (&Mutex<Vec<(Pinned, Handle)>>, usize) {
        if bytes <= SMALL_BYTES { (&self.small, SMALL_BYTES) } else { (&self.large, PIECE_BYTES) }
    }

    /// Frees all buffers. No copy may be in progress.
    pub(crate) fn close(&self, driver: &Driver) {
        for pool in [&self.small, &self.large] {
            for (buffer, event) in std::mem::take(&mut *lock(pool)) {
                buffer.free(driver);
                let _ = driver.destroy_event(event);
            }
        }
    }
}

/// Takes a free buffer: one whose copy is done, a new one, or the oldest after waiting for it.
fn take(driver: &Driver, pool: &Mutex<Vec<(Pinned, Handle)>>, size: usize) -> Result<(Pinned, Handle)> {
    let mut used = lock(pool);
    for at in 0..used.len() {
        if driver.is_done(used[at].1)? {
            return Ok(used.remove(at));
        }
    }
    if used.len() < MOST {
        return Ok((Pinned::new(driver, size)?, driver.create_event(false)?));
    }
    driver.wait(used[0].1)?;
    Ok(used.remove(0))
}
