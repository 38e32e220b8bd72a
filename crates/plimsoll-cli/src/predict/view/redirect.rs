//! Redirects the program's writes to a private folder, with a library that is preloaded into its processes and
//! backed by Landlock: [`Redirect`]. It needs no privileges, and works in containers.
//!
//! The library (`../../../redirect`) finds the files that the program wrote in the private folder, and all other files
//! on the disk. Code that does not call the C library, and processes without our library, cannot change any file,
//! because Linux (Landlock) forbids it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};

use super::caches::Cache;
use super::spec::{Replaced, Spec};
use super::written::{self, Layer, Written};
use crate::exit::Exit;
use crate::guard::{CONFINED, SUPERVISOR};
use crate::inject::cache;

/// The library; empty if it could not be built.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redirect.bin"));

const NAME: &str = "libplimsoll_redirect.so";

/// The variable that the library sets if it could confine the process.
const ANSWER: &str = "PLIMSOLL_REDIRECT_CONFINED";

/// The private folder of a run.
pub(super) struct Redirect {
    folder: PathBuf,
    library: PathBuf,
    session: PathBuf,
    caches: Vec<Cache>,
    scratch_bytes: u64,
    /// A file whose first byte tells the library whether the space of --scratch is used up.
    full: File,
}

impl Redirect {
    /// Makes the folder.
    ///
    /// # Errors
    /// The error says what is not possible on this machine.
    pub(super) fn begin(spec: &Spec) -> Result<Redirect, String> {
        if LIBRARY.is_empty() {
            return Err("this build does not contain its library".to_owned());
        }
        let installed = cache::installed("redirect", &[(NAME.into(), LIBRARY)], Some(&spec.session));
        let library = installed.map_err(|failure| failure.message)?.join(NAME);
        let folder = spec.run.join("redirect");
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        for name in ["files", "gone"] {
            fs::create_dir_all(folder.join(name)).map_err(failed)?;
        }
        fs::create_dir_all(spec.run.join("tmp")).map_err(failed)?;
        let full = File::create(folder.join("full")).map_err(failed)?;
        full.write_all_at(&[0; 4096], 0).map_err(failed)?;
        let redirect = Redirect {
            library,
            session: spec.session.clone(),
            caches: spec.caches.clone(),
            scratch_bytes: spec.scratch_bytes,
            full,
            folder: folder.clone(),
        };
        // An empty command only checks whether the process would be confined.
        let mut check = redirect.command(&[], &spec.run).map_err(failed)?;
        check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match check.status() {
            Ok(status) if status.success() => Ok(redirect),
            _ => {
                Err("the kernel lacks version 2 of Landlock (Linux 5.19), or Landlock is switched off"
                    .to_owned())
            }
        }
    }

    /// The command that confines its own process and then executes another command.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn command(&self, words: &[OsString], run: &Path) -> std::io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SUPERVISOR).arg(CONFINED).args(words);
        let mut preloaded = self.library.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preloaded.push(":");
            preloaded.push(others);
        }
        command.env("LD_PRELOAD", preloaded).env("PLIMSOLL_REDIRECT_CONFINE", &self.session);
        command.env("PLIMSOLL_REDIRECT", &self.folder).env("PLIMSOLL_REDIRECT_SESSION", &self.session);
        command.env("TMPDIR", run.join("tmp"));
        Ok(command)
    }

    /// Gives a file new content, in the private folder.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn replace(&self, file: &Replaced) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("{}: {why}", file.path.display());
        let real = file.path.canonicalize().map_err(failed)?;
        let place = self.folder.join("files").join(real.strip_prefix("/").unwrap_or(&real));
        place.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        fs::write(place, &file.text).map_err(failed)?;
        File::create(self.folder.join("dirty")).map(drop).map_err(failed)
    }

    /// Whether --scratch is used up; from then on writes fail.
    pub(super) fn is_full(&self) -> bool {
        // Forks that serve trials of `plan` have their own folders.
        let forks = fs::read_dir(self.session.join("plan")).into_iter().flatten().flatten();
        let forks = forks.map(|fork| fork.path().join("redirect"));
        // Shared memory is not limited.
        let bytes_of = |folder: &Path, name: &str| written::disk_bytes(&folder.join(name));
        let is_over = |folder: PathBuf| {
            bytes_of(&folder, "files").saturating_sub(bytes_of(&folder, "files/dev/shm"))
                >= self.scratch_bytes
        };
        let is_full = forks.chain([self.folder.clone()]).any(is_over);
        // The library reads this byte. If writing the byte fails, nothing can be done about it.
        let _unwritten = self.full.write_all_at(&[u8::from(is_full)], 0);
        is_full
    }

    /// Keeps new files of caches, and lists the other files.
    pub(super) fn list(&self, written: &mut Written) {
        let root = Path::new("/");
        let layer = Layer { place: root, upper: &self.folder.join("files"), lower: root, real: root };
        written.add(&layer, &[], &self.caches);
        written.add_gone(&self.folder.join("gone"), &self.folder.join("files"));
    }
}

/// Checks that the program exists. The process that starts the program could not report a missing file.
///
/// # Errors
/// If the program does not exist.
pub(super) fn find(words: &[OsString]) -> std::io::Result<()> {
    let name = words.first().map(Path::new).unwrap_or(Path::new(""));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |place: &Path| access(place, Access::EXEC_OK).is_ok() && place.is_file();
    let is_found = match name.components().count() {
        1 if !name.as_os_str().as_encoded_bytes().contains(&b'/') => {
            std::env::split_paths(&path).any(|folder| is_program(&folder.join(name)))
        }
        _ => is_program(name),
    };
    if is_found {
        return Ok(());
    }
    let kind =
        if name.exists() { std::io::ErrorKind::PermissionDenied } else { std::io::ErrorKind::NotFound };
    Err(kind.into())
}

/// Confines this process and executes a command in its place. An empty command only checks whether the process can be
/// confined.
pub(super) fn confined(words: &[OsString]) -> Exit {
    if std::env::var_os(ANSWER).is_none_or(|answer| answer != "yes") {
        return Exit::Unreadable;
    }
    let Some((program, arguments)) = words.split_first() else { return Exit::Done };
    let mut command = Command::new(program);
    command.args(arguments).env_remove(ANSWER).env_remove("PLIMSOLL_REDIRECT_CONFINE");
    let _why = command.exec();
    Exit::Program
}
