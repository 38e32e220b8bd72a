//! Pages of device memory. The driver allocates in pages of 2 MiB, and requests of up to 1 MiB share pages.
//!
//! Measured on an H100: 1,001 requests of 1 KiB take one page, and a request of 1 MiB + 1 byte takes a page for itself.

/// The size of a page of device memory, in bytes.
pub const PAGE_BYTES: u64 = 2 << 20;

/// The largest request that shares a page, in bytes.
const LARGEST_SHARED_BYTES: u64 = 1 << 20;

/// The alignment of requests that share a page, in bytes.
const ALIGNMENT_BYTES: u64 = 512;

/// Rounds a size up to full pages. Saturates at the largest multiple of a page.
///
/// ```
/// assert_eq!(plimsoll_gpu::outside::whole_pages(2_097_153), 4_194_304);
/// ```
pub fn whole_pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES).min(u64::MAX / PAGE_BYTES) * PAGE_BYTES
}

/// The pages that small requests share. A page is allocated for its first request, and freed with its last.
///
/// ```
/// use plimsoll_gpu::outside::SharedPages;
/// let mut pages = SharedPages::default();
/// let (first, new) = pages.place(1024).ok_or("not small")?;
/// assert!(new);
/// assert_eq!(pages.place(1024), Some((first, false)));
/// assert!(!pages.remove(first, 1024) && pages.remove(first, 1024));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SharedPages {
    /// The bytes in use of each page; 0 for a freed page.
    used: Vec<u64>,
}

impl SharedPages {
    /// Places a request in the first page with room. Returns the page's number and whether the page is new, in which
    /// case the caller must allocate its [`PAGE_BYTES`]. `None` for a request that gets its own pages.
    pub fn place(&mut self, bytes: u64) -> Option<(usize, bool)> {
        if bytes > LARGEST_SHARED_BYTES {
            return None;
        }
        let bytes = aligned(bytes);
        let fitting = |used: &u64| *used > 0 && *used + bytes <= PAGE_BYTES;
        if let Some(page) = self.used.iter().position(fitting) {
            self.used[page] += bytes;
            return Some((page, false));
        }
        let page = self.used.iter().position(|used| *used == 0).unwrap_or(self.used.len());
        if page == self.used.len() {
            self.used.push(0);
        }
        self.used[page] = bytes;
        Some((page, true))
    }

    /// Removes a request of this many bytes from its page. Returns whether it was the last one in the page, in which
    /// case the caller must free the page.
    pub fn remove(&mut self, page: usize, bytes: u64) -> bool {
        let Some(used) = self.used.get_mut(page).filter(|used| **used > 0) else { return false };
        *used = used.saturating_sub(aligned(bytes));
        *used == 0
    }
}

/// The bytes that a small request takes up in its page.
fn aligned(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_requests_of_a_kilobyte_take_one_page_as_on_an_h100() {
        let mut pages = SharedPages::default();
        let new = (0..1001).filter(|_| pages.place(1024).is_some_and(|(_, is_new)| is_new)).count();
        assert_eq!(new, 1);
    }

    #[test]
    fn a_request_of_more_than_a_mebibyte_has_pages_of_its_own() {
        let mut pages = SharedPages::default();
        assert_eq!(pages.place((1 << 20) + 1), None);
        assert_eq!(
            [1 << 20, 1 << 20, 1].map(|bytes| pages.place(bytes)),
            [Some((0, true)), Some((0, false)), Some((1, true))]
        );
        for (bytes, expected) in [(0, 0), (1, 2 << 20), (2 << 20, 2 << 20), ((2 << 20) + 1, 4 << 20)] {
            assert_eq!(whole_pages(bytes), expected, "{bytes}");
        }
        assert!(whole_pages(u64::MAX).is_multiple_of(PAGE_BYTES));
    }

    #[test]
    fn a_page_is_returned_with_its_last_request_and_its_number_is_used_again() {
        let mut pages = SharedPages::default();
        let (page, _) = pages.place(600).unwrap();
        pages.place(600);
        assert!(!pages.remove(page, 600));
        assert!(pages.remove(page, 600));
        assert!(!pages.remove(page, 600), "it is gone");
        assert_eq!(pages.place(1), Some((0, true)));
    }
}
