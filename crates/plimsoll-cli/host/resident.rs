//! Resident memory: the counters that the kernel keeps for the process ([`Counters`]).

use std::ffi::CStr;

use crate::sys;

/// Resident bytes by kind of page.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Anonymous pages; in a forked child, only those that it does not share with its parent.
    pub(crate) anonymous: u64,
    /// Pages that processes share, as in `/dev/shm`.
    pub(crate) shared: u64,
    /// Pages of files.
    pub(crate) file: u64,
    /// The maximum number of bytes of all kinds that the process has ever had.
    pub(crate) most: u64,
}

impl Counters {
    /// The counters of this process. `is_forked` says whether it shares pages with a parent.
    pub(crate) fn now(is_forked: bool) -> Counters {
        let mut buffer = [0; 4096];
        let status = sys::read(c"/proc/self/status", &mut buffer);
        let mut counters = Counters {
            anonymous: field(status, c"RssAnon:"),
            shared: field(status, c"RssShmem:"),
            file: field(status, c"RssFile:"),
            most: field(status, c"VmHWM:"),
        };
        if is_forked {
            let mut buffer = [0; 4096];
            let all = sys::read(c"/proc/self/smaps_rollup", &mut buffer);
            // This includes pages of shared memory that no other process has mapped.
            let own = field(all, c"Private_Dirty:").saturating_sub(field(all, c"Pss_Shmem:"));
            counters.anonymous = own.min(counters.anonymous);
        }
        counters
    }
}

/// The bytes on the line that begins with a name. The kernel writes kilobytes.
fn field(text: &[u8], name: &CStr) -> u64 {
    let name = name.to_bytes();
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(line) = lines.find(|line| line.starts_with(name)) else { return 0 };
    let digits = line[name.len()..].iter().filter(|byte| byte.is_ascii_digit());
    1024 * digits.fold(0, |number, digit| 10 * number + u64::from(digit - b'0'))
}
