//! Host memory from the operating system, and its total size.
//!
//! [`HostDriver`] maps segments that begin at multiples of 2 MiB, so that the kernel can back them with
//! huge pages (a fault then brings 2 MiB, not 4 KiB). Pages are allocated on first touch and are zero;
//! unmapping returns them at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{Addr, Driver, DriverError, MemoryInfo};

const HUGE_PAGE: usize = 2 << 20;

/// Address and size in bytes of every mapped segment.
#[derive(Clone, Default)]
pub(crate) struct Segments(Arc<Mutex<BTreeMap<usize, usize>>>);

impl Segments {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A driver that gets segments by `mmap`. Its capacity is the system's; `Limit` restricts it.
pub(crate) struct HostDriver {
    mapped: Segments,
}

impl HostDriver {
    pub(crate) fn new() -> HostDriver {
        HostDriver { mapped: Segments::default() }
    }

    /// A handle to this driver's segments, for use outside the allocator that owns the driver.
    pub(crate) fn segments(&self) -> Segments {
        self.mapped.clone()
    }
}

impl Driver for HostDriver {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let bytes = usize::try_from(bytes).map_err(|_| DriverError::OutOfMemory)?;
        let address = map(bytes).ok_or(DriverError::OutOfMemory)?;
        self.mapped.lock().insert(address, bytes);
        Ok(Addr(address as u64))
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        let address = addr.0 as usize;
        let Some(bytes) = self.mapped.lock().remove(&address) else {
            return Err(DriverError::Failed(format!("no segment begins at {address:#x}")));
        };
        unmap(address, bytes)
    }

    fn memory(&self) -> MemoryInfo {
        let total = physical_bytes();
        let mapped: usize = self.mapped.lock().values().sum();
        MemoryInfo { free_bytes: total.saturating_sub(mapped as u64), total_bytes: total }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        for (&address, &bytes) in self.mapped.lock().iter() {
            // A failure cannot be handled here; the pages are returned when the process ends.
            let _ = unmap(address, bytes);
        }
    }
}

/// Maps `bytes` fresh zero bytes at a multiple of 2 MiB; `None` if the system is out of memory.
fn map(bytes: usize) -> Option<usize> {
    let mapped_bytes = bytes.checked_add(HUGE_PAGE)?;
    // SAFETY: a new private anonymous mapping at an address chosen by the kernel overlaps no existing
    // memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let start = base.expose_provenance();
    let aligned = start.next_multiple_of(HUGE_PAGE);
    let (head, tail) = (aligned - start, mapped_bytes - (aligned - start) - bytes);
    for (at, len) in [(start, head), (aligned + bytes, tail)] {
        if len > 0 {
            // SAFETY: both ends lie inside the mapping made above, which nothing else refers to yet. A
            // failure only leaves untouched address space mapped.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at), len) };
        }
    }
    #[cfg(target_os = "linux")]
    // SAFETY: this only gives advice on the mapping made above; it changes no contents, and a failure
    // costs only speed.
    unsafe {
        libc::madvise(std::ptr::with_exposed_provenance_mut(aligned), bytes, libc::MADV_HUGEPAGE);
    }
    Some(aligned)
}

fn unmap(address: usize, bytes: usize) -> Result<(), DriverError> {
    // SAFETY: `address` and `bytes` describe a mapping that `map` made and that was just removed from
    // the list; the allocator frees a segment only when no block in it is live.
    match unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), bytes) } {
        0 => Ok(()),
        _ => Err(DriverError::Failed(format!("munmap: {}", std::io::Error::last_os_error()))),
    }
}

/// Bytes of the segments that are resident now, from `mincore`; `None` if the system does not report it.
pub(crate) fn resident_bytes(segments: &Segments) -> Option<u64> {
    // SAFETY: a system query without pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|&p| p > 0)?;
    let segments = segments.lock();
    let mut resident = 0;
    let mut pages: Vec<u8> = Vec::new();
    for (&address, &bytes) in segments.iter() {
        pages.clear();
        pages.resize(bytes.div_ceil(page), 0);
        // SAFETY: the segment is mapped while the list is locked, and `pages` has one byte per page.
        let answer = unsafe {
            libc::mincore(std::ptr::with_exposed_provenance_mut(address), bytes, pages.as_mut_ptr().cast())
        };
        if answer != 0 {
            return None;
        }
        resident += pages.iter().filter(|&&page| page & 1 == 1).count() * page;
    }
    Some(resident as u64)
}

/// The smaller of physical memory and the limit of this process's control group (version 1 or 2).
pub(crate) fn capacity_bytes() -> u64 {
    let limit = cgroup_limit_bytes(Path::new("/sys/fs/cgroup"), Path::new("/proc/self/cgroup"));
    physical_bytes().min(limit.unwrap_or(u64::MAX))
}

fn physical_bytes() -> u64 {
    // SAFETY: system queries without pointers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) => pages.saturating_mul(page),
        _ => u64::MAX,
    }
}

/// The lowest memory limit of this process's group and its ancestors, up to the root of `mount`.
fn cgroup_limit_bytes(mount: &Path, own: &Path) -> Option<u64> {
    let groups = fs::read_to_string(own).ok()?;
    // Lines are `id:controllers:path`; version 2 has one line, without controllers.
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => (mount.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        // Inside a container the path may not exist under the mount; then the file at the mount itself
        // counts.
        let limit = |dir: &Path| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        group.ancestors().take_while(|dir| dir.starts_with(&root)).filter_map(limit).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::{Limit, driver_suite};

    use super::*;

    #[test]
    fn a_segment_is_aligned_zeroed_and_given_back() {
        let mut driver = HostDriver::new();
        let segment = driver.segment_alloc(4 << 20).unwrap();
        assert_eq!(segment.0 % HUGE_PAGE as u64, 0);
        assert_eq!(resident_bytes(&driver.segments()), Some(0));
        let first = std::ptr::with_exposed_provenance_mut::<u8>(segment.0 as usize);
        // SAFETY: the segment was just mapped and only this test uses it.
        unsafe {
            assert_eq!(first.read(), 0);
            first.write(1);
        }
        assert!(resident_bytes(&driver.segments()).unwrap() >= 4096);
        driver.segment_free(segment).unwrap();
        assert!(matches!(driver.segment_free(segment), Err(DriverError::Failed(_))));
    }

    #[test]
    fn the_host_is_a_driver_as_others_are() {
        let mut host = HostDriver::new();
        driver_suite::segments(&mut host);
        driver_suite::events(&mut host);
        driver_suite::segments(&mut Limit::new(host, 64 << 20));
    }

    #[test]
    fn a_request_larger_than_the_address_space_is_out_of_memory() {
        assert_eq!(HostDriver::new().segment_alloc(u64::MAX - 5), Err(DriverError::OutOfMemory));
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let dir = std::env::temp_dir().join(format!("plimsoll-cgroup-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir_all(dir.join("memory/x")).unwrap();
        let own = dir.join("own");
        let limit = |line: &str| {
            fs::write(&own, line).unwrap();
            cgroup_limit_bytes(&dir, &own)
        };
        fs::write(dir.join("a/memory.max"), "4096\n").unwrap();
        fs::write(dir.join("a/b/memory.max"), "max\n").unwrap();
        fs::write(dir.join("memory/x/memory.limit_in_bytes"), "8192\n").unwrap();
        assert_eq!(limit("0::/a/b\n"), Some(4096));
        assert_eq!(limit("9:name=systemd:/\n4:memory:/x\n0::/\n"), Some(8192));
        assert_eq!(limit("0::/elsewhere\n"), None);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn this_machine_has_some_memory() {
        let bytes = capacity_bytes();
        assert!(bytes > 1 << 20 && bytes <= physical_bytes(), "{bytes}");
    }
}
