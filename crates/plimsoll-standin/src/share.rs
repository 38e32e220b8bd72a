//! Devices that several processes share: one file per device records each process's use.
//!
//! The launcher creates a folder and names it ([`settings::SHARED`]). A device's file in it has rows of three numbers:
//! process ID, start time (which distinguishes processes that reuse an ID), and bytes including the context. The first
//! row's bytes are the peak of the total.
//!
//! A process locks the file while it reads or changes rows; the system releases the lock of a process that dies. Rows
//! of ended processes do not count and are reused. The file is opened for each access, because a program may close file
//! descriptors that it does not know; requests to the device are rare enough for that.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::process::Stat;
use crate::settings;

/// Bytes of a row.
const ROW_BYTES: usize = 24;

/// A process: its ID, and its start time.
pub(crate) type Process = [u64; 2];

/// The peak of all processes' bytes on a device, contexts included. `None` if no process used it.
///
/// ```
/// assert_eq!(plimsoll_standin::share::most_bytes("/tmp/no-such-folder".as_ref(), 0), None);
/// ```
pub fn most_bytes(folder: &Path, device: u32) -> Option<u64> {
    let table = Table::open(&path(folder, device as usize)).ok()?;
    table.rows.first().map(|&(_, bytes)| bytes)
}

/// Bytes that other processes hold on a device of the machine; 0 if devices are not shared.
pub(crate) fn others_bytes(device: usize) -> u64 {
    let table = shared_folder().and_then(|folder| Table::open(&path(folder, device)).ok());
    table.map_or(0, |table| table.others_bytes())
}

/// Records how many bytes this process holds on a device of the machine. An increase must fit into `limit_bytes` together with
/// the other processes' bytes. Returns whether it did.
pub(crate) fn note(device: usize, bytes: u64, limit_bytes: u64) -> bool {
    let Some(folder) = folder() else { return bytes <= limit_bytes };
    match Table::open(&path(folder, device)) {
        Ok(mut table) => table.note(bytes, limit_bytes),
        // The launcher deleted the folder: the run is over.
        Err(_) => bytes <= limit_bytes,
    }
}

/// The launcher's folder, for a process that uses the devices. A child that it forks afterwards uses none, because
/// a CUDA context belongs to the process that created it.
pub(crate) fn folder() -> Option<&'static Path> {
    static OWNER: OnceLock<u32> = OnceLock::new();
    let owner = *OWNER.get_or_init(std::process::id);
    shared_folder().filter(|_| owner == std::process::id())
}

/// The launcher's folder, for a process that only queries, as NVML does: its children may use the devices.
fn shared_folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own = || FOLDER.get_or_init(|| settings::text(settings::SHARED).map(PathBuf::from)).as_deref();
    TAKEN.get().map(PathBuf::as_path).or_else(own)
}

/// The folder that this process took instead of the launcher's.
static TAKEN: OnceLock<PathBuf> = OnceLock::new();

/// Takes another folder, once.
pub(crate) fn take(folder: &Path) {
    // A second call changes nothing.
    let _again = TAKEN.set(folder.to_path_buf());
}

/// Records that the program queried the devices' memory size, so its behaviour may depend on that.
pub(crate) fn note_question() {
    static NOTED: OnceLock<()> = OnceLock::new();
    NOTED.get_or_init(|| {
        // Nobody reads it if it cannot be written.
        let _unread = shared_folder().map(|folder| File::create(folder.join(ASKED)));
    });
}

/// The file that records it.
const ASKED: &str = "asked";

fn path(folder: &Path, device: usize) -> PathBuf {
    folder.join(format!("gpu{device}"))
}

/// The file of a device, locked until this is dropped.
#[derive(Debug)]
struct Table {
    file: File,
    rows: Vec<(Process, u64)>,
}

impl Drop for Table {
    /// A child that was forked in the meantime shares the open file, and with it the lock.
    fn drop(&mut self) {
        // The system releases the lock when the file is closed.
        let _gone = self.file.unlock();
    }
}

impl Table {
    fn open(path: &Path) -> io::Result<Table> {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let number =
            |row: &[u8], place: usize| row[place * 8..].first_chunk().copied().map_or(0, u64::from_ne_bytes);
        let rows = bytes.chunks_exact(ROW_BYTES);
        let rows = rows.map(|row| ([number(row, 0), number(row, 1)], number(row, 2))).collect();
        Ok(Table { file, rows })
    }

    fn others_bytes(&self) -> u64 {
        let this = this();
        let others = self.rows.iter().skip(1).filter(|(process, _)| Some(*process) != this);
        others.filter(|(process, _)| is_alive(*process)).map(|(_, bytes)| bytes).sum()
    }

    fn note(&mut self, bytes: u64, limit_bytes: u64) -> bool {
        let Some(this) = this() else { return bytes <= limit_bytes };
        let rows = self.rows.iter().enumerate().skip(1);
        let own = rows.clone().find(|(_, (process, _))| *process == this).map(|(place, _)| place);
        let before_bytes = own.map_or(0, |place| self.rows[place].1);
        let all_bytes = self.others_bytes().saturating_add(bytes);
        if bytes > before_bytes && all_bytes > limit_bytes {
            return false;
        }
        let dead = || rows.clone().find(|(_, (process, _))| !is_alive(*process)).map(|(place, _)| place);
        let place = own.or_else(dead).unwrap_or(self.rows.len().max(1));
        let most_bytes = self.rows.first().map_or(0, |(_, bytes)| *bytes).max(all_bytes);
        // A full disk must not stop the program.
        let _full_disk = self.write(0, [0, 0], most_bytes).and_then(|()| self.write(place, this, bytes));
        true
    }

    fn write(&self, place: usize, [number, began]: Process, bytes: u64) -> io::Result<()> {
        let row = [number, began, bytes].map(u64::to_ne_bytes);
        self.file.write_all_at(row.as_flattened(), (place * ROW_BYTES) as u64)
    }
}

/// This process.
pub(crate) fn this() -> Option<Process> {
    let number = u64::from(std::process::id());
    began(number).map(|began| [number, began])
}

/// Whether a process is running.
pub(crate) fn is_alive([number, start]: Process) -> bool {
    began(number) == Some(start)
}

/// A process's start time; `None` if it has ended.
fn began(number: u64) -> Option<u64> {
    Stat::of(u32::try_from(number).ok()?).map(|process| process.began_ticks)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn file() -> PathBuf {
        let name = format!("plimsoll-share-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let _absent = fs::remove_file(&path);
        path
    }

    fn note(path: &Path, bytes: u64) -> bool {
        Table::open(path).unwrap().note(bytes, 100)
    }

    #[test]
    fn what_others_have_is_not_to_be_had_until_they_are_gone() {
        let path = file();
        assert!(note(&path, 10));
        let mut other = Command::new("sleep").arg("100").spawn().unwrap();
        let number = u64::from(other.id());
        let row = [number, began(number).unwrap()];
        Table::open(&path).unwrap().write(2, row, 60).unwrap();
        assert_eq!(Table::open(&path).unwrap().others_bytes(), 60);
        assert!(!note(&path, 41), "101 of 100");
        assert!(note(&path, 40) && note(&path, 30), "a decrease always succeeds");
        // The process is now a zombie.
        other.kill().unwrap();
        while is_alive(row) {
            std::thread::yield_now();
        }
        assert!(note(&path, 95));
        other.wait().unwrap();
        let table = Table::open(&path).unwrap();
        assert_eq!((table.rows[0].1, table.rows[1].1, table.rows.len()), (100, 95, 3));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_lock_ends_although_a_forked_child_has_the_file_open() {
        let path = file();
        let table = Table::open(&path).unwrap();
        let childs = table.file.try_clone().unwrap();
        assert!(File::open(&path).unwrap().try_lock().is_err());
        drop(table);
        assert!(File::open(&path).unwrap().try_lock().is_ok());
        drop(childs);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_row_of_a_process_that_is_gone_is_used_again() {
        let path = file();
        // This process's ID, with another process's start time.
        let this = this().unwrap();
        Table::open(&path).unwrap().write(1, [this[0], this[1] - 1], 99).unwrap();
        assert!(note(&path, 50));
        let table = Table::open(&path).unwrap();
        assert_eq!(table.rows, [([0, 0], 50), (this, 50)]);
        fs::remove_file(path).unwrap();
    }
}
