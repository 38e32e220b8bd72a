//! The file with a process's peaks: lines of tab-separated words, described at [`write`].

use std::ffi::CStr;
use std::fmt::{self, Write};

use crate::ledger::LEDGER;
use crate::owners::{NAMES, Names};
use crate::sample::Samples;
use crate::spin::Spin;
use crate::sys;

/// The names of the phases.
const PHASES: [&str; 3] = ["load", "step", "after"];

/// Processes that never had this much memory are not listed.
const LEAST_BYTES: u64 = 8 << 20;

/// A text of limited length; anything that does not fit is left out.
struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    length: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    const fn new() -> Self {
        Text { bytes: [0; ROOM], length: 0 }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a `Text` never fails.
        let _done = self.write_fmt(line);
    }

    fn push(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(ROOM - 1 - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
    }
}

impl<const ROOM: usize> Write for Text<ROOM> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

static TEXT: Spin<Text<{ 64 << 10 }>> = Spin::new(Text::new());

/// The folder for the files; our hooks hide the variable from processes that they start themselves.
static FOLDER: Spin<Text<4096>> = Spin::new(Text::new());

/// Sets the folder.
pub(crate) fn set_folder(path: &[u8]) {
    let mut folder = FOLDER.lock();
    folder.length = 0;
    folder.push(path);
}

/// Writes the file `PID.host` into the folder:
///
/// ```text
/// process  PID  PARENT  RANK or -  1 if forked  the program's path
/// figures  VmHWM  the most resident bytes in a sample  bytes of an event
///          nanoseconds of its start  and of now  the most pinned bytes
/// peak     PHASE  anonymous  pinned  shared  file  ours  events  nanoseconds since the start  the most bytes in /dev/shm
/// owner    PHASE  bytes  NAME
/// file     PHASE  bytes  NAME
/// end
/// ```
pub(crate) fn write(samples: &Samples) {
    let most = samples.peaks.iter().map(|peak| peak.must()).max().unwrap_or(0);
    if most < LEAST_BYTES {
        return;
    }
    let process = sys::process();
    let mut path = Text::<4096>::new();
    let folder = FOLDER.lock();
    path.push(&folder.bytes[..folder.length]);
    path.line(format_args!("/{process}.host"));
    let mut text = TEXT.lock();
    text.length = 0;
    fill(&mut text, samples, process, &NAMES.lock());
    // The path is followed by a zero byte, because `push` leaves room for one.
    path.bytes[path.length] = 0;
    if let Ok(path) = CStr::from_bytes_until_nul(&path.bytes) {
        sys::write(path, &text.bytes[..text.length]);
    }
}

fn fill<const ROOM: usize>(text: &mut Text<ROOM>, samples: &Samples, process: u32, names: &Names) {
    let parent = sys::parent();
    text.line(format_args!("process\t{process}\t{parent}\t"));
    text.push(sys::variable(c"RANK").filter(|rank| rank.iter().all(u8::is_ascii_digit)).unwrap_or(b"-"));
    let mut program = [0; 1024];
    text.line(format_args!("\t{}\t", u8::from(samples.is_forked)));
    text.push(sys::link(c"/proc/self/exe", &mut program));
    let Samples { most, most_seen, event_bytes, began_ns, .. } = samples;
    let now_ns = sys::now_ns();
    let most_pinned = LEDGER.lock().most_pinned();
    text.line(format_args!(
        "\nfigures\t{most}\t{most_seen}\t{event_bytes}\t{began_ns}\t{now_ns}\t{most_pinned}\n"
    ));
    let peaks = PHASES.iter().zip(&samples.peaks).zip(&samples.shm);
    for ((name, peak), shm) in peaks.filter(|((_, peak), _)| peak.must() > 0) {
        let (anonymous, pinned, shared) = (peak.anonymous, peak.pinned, peak.shared);
        let (file, ours, events, at_ns) = (peak.file, peak.ours, peak.events, peak.at_ns);
        text.line(format_args!(
            "peak\t{name}\t{anonymous}\t{pinned}\t{shared}\t{file}\t{ours}\t{events}\t{at_ns}\t{shm}\n"
        ));
        for (kind, table) in [("owner", &peak.owners), ("file", &peak.files)] {
            for owner in (0..names.count()).filter(|&owner| table[owner] > 0) {
                text.line(format_args!("{kind}\t{name}\t{}\t", table[owner]));
                text.push(names.of(owner));
                text.push(b"\n");
            }
        }
    }
    text.push(b"end\n");
}
