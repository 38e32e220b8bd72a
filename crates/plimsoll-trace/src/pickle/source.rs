//! Reads a file through a buffer (window): [`Source`].

use std::io::{ErrorKind, Read};

use super::builder::Malformed;

/// The initial size of the window; the window grows if a text is longer.
const WINDOW_BYTES: usize = 256 << 10;

/// A buffered reader that knows its offset.
pub(super) struct Source<R> {
    input: R,
    window: Vec<u8>,
    /// The position of the next unread byte, and the end of the buffered bytes.
    next: usize,
    end: usize,
    /// The window's offset in the file.
    start: u64,
    /// Whether reading failed, or ended before all the requested bytes were read.
    has_failed: bool,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, window: vec![0; WINDOW_BYTES], next: 0, end: 0, start: 0, has_failed: false }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.start + self.next as u64
    }

    /// The offset up to which the file was read, if reading failed there.
    pub(super) fn failed_at(&self) -> Option<u64> {
        self.has_failed.then_some(self.start + self.end as u64)
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        if self.next == self.end {
            self.need(1)?;
        }
        let byte = self.window[self.next];
        self.next += 1;
        Ok(byte)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        if self.end - self.next < N {
            self.need(N)?;
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.window[self.next..self.next + N]);
        self.next += N;
        Ok(bytes)
    }

    /// Returns the next bytes.
    #[inline]
    pub(super) fn bytes(&mut self, count: usize) -> Result<&[u8], Malformed> {
        if self.end - self.next < count {
            self.need(count)?;
        }
        let start = self.next;
        self.next += count;
        Ok(&self.window[start..self.next])
    }

    /// The buffered, unread bytes.
    #[inline]
    pub(super) fn window(&self) -> &[u8] {
        &self.window[self.next..self.end]
    }

    /// Skips bytes of the window.
    #[inline]
    pub(super) fn pass(&mut self, count: usize) {
        self.next = (self.next + count).min(self.end);
    }

    /// Skips any number of bytes of the file.
    pub(super) fn skip(&mut self, mut count: u64) -> Result<(), Malformed> {
        while count > 0 {
            if self.next == self.end {
                self.need(1)?;
            }
            let passed = count.min((self.end - self.next) as u64);
            self.next += passed as usize;
            count -= passed;
        }
        Ok(())
    }

    /// Moves the window until `count` bytes are in it.
    #[cold]
    fn need(&mut self, count: usize) -> Result<(), Malformed> {
        self.window.copy_within(self.next..self.end, 0);
        self.start += self.next as u64;
        self.end -= self.next;
        self.next = 0;
        let filled = self.fill(count);
        self.has_failed = filled.is_err();
        filled
    }

    /// Reads until `count` bytes are in the window. The window widens only as bytes arrive, because a stated length may
    /// be false.
    fn fill(&mut self, count: usize) -> Result<(), Malformed> {
        while self.end < count {
            if self.end == self.window.len() {
                self.window.resize(count.min(2 * self.end), 0);
            }
            match self.input.read(&mut self.window[self.end..]) {
                Ok(0) => return Err(Malformed::Ends),
                Ok(read) => self.end += read,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::UnexpectedEof => return Err(Malformed::Ends),
                Err(why) => return Err(Malformed::Io(why)),
            }
        }
        Ok(())
    }
}
