//! Confines a process and all processes that it starts: they may write only below the session's folder, and to devices.
//! Landlock denies writes elsewhere. It does not cover modes, owners, times and attributes, so a filter denies the
//! system calls that change these by path.

use std::ffi::{CStr, c_void};

use crate::sys::{self, *};

/// All of Landlock's rights for writing: to files, to the entries of folders, between folders, and for truncating.
const WRITES: u64 =
    0x2 | 0x10 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | TRUNCATE;
const TRUNCATE: u64 = 0x4000;

/// The rights that a rule for a file, as opposed to a folder, may allow.
const OF_FILES: u64 = 0x2 | TRUNCATE;

/// Confines the process if the launcher requests it, before any other code runs.
#[used]
#[unsafe(link_section = ".init_array")]
static CONFINE: extern "C" fn() = {
    extern "C" fn confine() {
        let Some(session) = sys::variable(c"PLIMSOLL_REDIRECT_CONFINE") else { return };
        let answer: &CStr = match confined(&session) {
            Ok(()) => c"yes",
            Err(_) => c"no",
        };
        // SAFETY: both end with NUL; no other thread runs yet.
        unsafe { sys::setenv(c"PLIMSOLL_REDIRECT_CONFINED".as_ptr(), answer.as_ptr(), 1) };
    }
    confine
};

fn confined(session: &[u8]) -> Result<()> {
    // PR_SET_NO_NEW_PRIVS.
    call!(PRCTL, 38, 1, 0, 0, 0)?;
    let version = call!(LANDLOCK_CREATE, 0, 0, 1)?;
    // The first version of Landlock denies every rename between folders.
    if version < 2 {
        return Err(ENOENT);
    }
    let handled = if version < 3 { WRITES & !TRUNCATE } else { WRITES };
    let rules = call!(LANDLOCK_CREATE, &raw const handled, 8, 0)?;
    allow(rules, session, handled)?;
    allow(rules, b"/proc", handled)?;
    // Devices and terminals, but not the shared memory of other programs.
    for entry in std::fs::read_dir("/dev").map_err(|why| why.raw_os_error().unwrap_or(ENOENT))?.flatten() {
        let name = entry.file_name();
        let is_folder = entry.file_type().is_ok_and(|it| it.is_dir());
        let rights = if is_folder { handled } else { handled & OF_FILES };
        if name != "shm" {
            // The entry is a link, or no longer exists.
            let _skipped = allow(rules, &[b"/dev/", name.as_encoded_bytes()].concat(), rights);
        }
    }
    call!(LANDLOCK_RESTRICT, rules, 0)?;
    sys::close(rules as i32);
    filter()
}

/// Adds a rule that allows these rights in a folder, or for a file.
fn allow(rules: i64, place: &[u8], allowed: u64) -> Result<()> {
    #[repr(C, packed)]
    struct Beneath {
        allowed: u64,
        place: i32,
    }
    const PATH: i32 = 0o10000000;
    let place = sys::open(place, PATH | O_NOFOLLOW, 0)?;
    let rule = Beneath { allowed, place };
    let added = call!(LANDLOCK_ADD, rules, 1, &raw const rule, 0);
    sys::close(place);
    added.map(|_| ())
}

/// Denies changes of modes, owners, times and attributes by path. This library makes such changes through descriptors.
fn filter() -> Result<()> {
    #[repr(C)]
    struct Step {
        code: u16,
        if_true: u8,
        if_false: u8,
        value: u32,
    }
    #[repr(C)]
    struct Program {
        length: u16,
        steps: *const c_void,
    }
    const LOAD: u16 = 0x20;
    const EQUALS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const REFUSE: u32 = 0x0005_0000 | 1;
    let step = |code, value, if_true, if_false| Step { code, if_true, if_false, value };
    let mut steps = vec![
        step(LOAD, 4, 0, 0),
        step(EQUALS, AUDIT, 1, 0),
        step(RETURN, ALLOW, 0, 0),
        step(LOAD, 0, 0, 0),
        // `utimensat` without a path changes its descriptor's file.
        step(EQUALS, UTIMENSAT as u32, 0, 5),
        step(LOAD, 24, 0, 0),
        step(EQUALS, 0, 0, 2),
        step(LOAD, 28, 0, 0),
        step(EQUALS, 0, 3, 0),
        step(RETURN, REFUSE, 0, 0),
    ];
    let left = |place: usize| (REFUSED.len() - place) as u8;
    for (place, number) in REFUSED.iter().enumerate() {
        steps.push(step(EQUALS, *number, left(place), 0));
    }
    steps.push(step(RETURN, ALLOW, 0, 0));
    steps.push(step(RETURN, REFUSE, 0, 0));
    // The comparison of the path's upper half jumps to the second-to-last instruction.
    let allow = steps.len() - 2;
    steps[8].if_true = (allow - 9) as u8;
    let program = Program { length: steps.len() as u16, steps: steps.as_ptr().cast() };
    // PR_SET_SECCOMP, SECCOMP_MODE_FILTER.
    call!(PRCTL, 22, 2, &raw const program, 0, 0).map(|_| ())
}
