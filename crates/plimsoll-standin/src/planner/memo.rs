//! What cuDNN answered to other processes of the same command: [`Memo`], a file that all of them read and extend. The
//! trials of `plan` request the same plans, and each would otherwise load cuDNN and plan again.
//!
//! The launcher names the file ([`settings::ANSWERS`]); without it, nothing is kept. A record is a key and a reply, each
//! after its length. The file is locked while it is read or extended, and opened for each access, because a program may
//! close file descriptors that it does not know.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::wire::{self, Reply};
use crate::settings;

/// The known answers.
pub(super) struct Memo {
    path: PathBuf,
    /// Identifies the device, because answers differ between devices.
    device: u64,
    /// How much of the file has been read.
    read_bytes: u64,
    /// Replies as bytes, by key.
    known: HashMap<Vec<u8>, Vec<u8>>,
}

impl Memo {
    /// The file that the launcher named, for a device with this description.
    pub(super) fn of(device: &str) -> Option<Memo> {
        settings::text(settings::ANSWERS).map(|path| Memo::at(path.into(), device))
    }

    fn at(path: PathBuf, device: &str) -> Memo {
        let mut hasher = DefaultHasher::new();
        device.hash(&mut hasher);
        Memo { path, device: hasher.finish(), read_bytes: 0, known: HashMap::new() }
    }

    /// The answer to a request, if any process has received one.
    pub(super) fn find(&mut self, request: &[u8]) -> Option<Reply> {
        let key = self.key(request);
        if !self.known.contains_key(&key) {
            // Without the file, cuDNN is asked.
            let _absent = self.opened().and_then(|mut file| self.read(&mut file));
        }
        Reply::read(self.known.get(&key)?)
    }

    /// Keeps an answer for other processes.
    pub(super) fn add(&mut self, request: &[u8], reply: &Reply) {
        let (key, reply) = (self.key(request), reply.bytes());
        let mut record = Vec::new();
        let whole = wire::send(&mut record, &key).and_then(|()| wire::send(&mut record, &reply));
        // On a full disk, other processes ask cuDNN themselves.
        let _full_disk = whole.and_then(|()| {
            let mut file = self.opened()?;
            self.read(&mut file)?;
            file.write_all(&record)
        });
        self.known.insert(key, reply);
    }

    fn key(&self, request: &[u8]) -> Vec<u8> {
        [&self.device.to_le_bytes(), request].concat()
    }

    /// The file, locked until it is closed.
    fn opened(&self) -> io::Result<Locked> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        file.lock()?;
        Ok(Locked(file))
    }

    /// Reads what other processes have added. A record that a process did not finish is overwritten.
    fn read(&mut self, file: &mut Locked) -> io::Result<()> {
        file.0.seek(SeekFrom::Start(self.read_bytes))?;
        let mut bytes = Vec::new();
        file.0.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        let mut read = 0;
        while let (Ok(Some(key)), Ok(Some(reply))) = (wire::receive(&mut rest), wire::receive(&mut rest)) {
            self.known.insert(key, reply);
            read = bytes.len() - rest.len();
        }
        self.read_bytes += read as u64;
        file.0.seek(SeekFrom::Start(self.read_bytes))?;
        Ok(())
    }
}

struct Locked(File);

impl Write for Locked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Locked {
    /// A child forked in the meantime shares the open file, and the lock with it.
    fn drop(&mut self) {
        // The system releases the lock when the file is closed.
        let _gone = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn planned(memo: &mut Memo, request: &[u8]) -> Option<i64> {
        match memo.find(request)? {
            Reply::Planned(bytes) => Some(bytes),
            _ => None,
        }
    }

    #[test]
    fn a_process_reads_what_another_was_answered_for_the_same_device() {
        let path = std::env::temp_dir().join(format!("plimsoll-memo-{}", std::process::id()));
        let _absent = fs::remove_file(&path);
        let [mut one, mut other, mut elsewhere] =
            ["a", "a", "b"].map(|device| Memo::at(path.clone(), device));
        assert_eq!(planned(&mut other, b"plan 1"), None);
        one.add(b"plan 1", &Reply::Planned(100));
        assert_eq!(planned(&mut other, b"plan 1"), Some(100));
        other.add(b"plan 2", &Reply::Planned(200));
        assert_eq!((planned(&mut one, b"plan 2"), planned(&mut elsewhere, b"plan 2")), (Some(200), None));
        // A process that was killed while it was writing.
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole, &whole[..20]].concat()).unwrap();
        one.add(b"plan 3", &Reply::Planned(300));
        let mut late = Memo::at(path.clone(), "a");
        let all = [b"plan 1", b"plan 2", b"plan 3"].map(|request| planned(&mut late, request));
        assert_eq!(all, [Some(100), Some(200), Some(300)]);
        // Without the file, nothing is known.
        assert_eq!(planned(&mut Memo::at(path.join("none"), "a"), b"plan 1"), None);
        fs::remove_file(path).unwrap();
    }
}
