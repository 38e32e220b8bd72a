//! How a checkpoint becomes complete on all ranks: [`Commit`].
//!
//! Until `checkpoint.json` is there, the folder is not a checkpoint, and older ones are untouched. Every step of a rank that can
//! fail is followed by an exchange of outcomes, so that all ranks continue or stop together.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use plimsoll_tensor::ProcessGroup;
use serde_json::{Map, Value, json};

use super::TensorRows;
use super::agree::gather_texts;
use super::files::{OFFSETS, SHARDING, VERSION};
use super::folder::{self, LATEST, MODEL, OPTIMIZER, file_name, is_complete, step_name, steps_in};
use super::manifest::Manifest;
use crate::serialize::atomic::sync_folder;
use crate::serialize::checksum::Sealed;
use crate::serialize::layout::{Layout, Piece};
use crate::serialize::safetensors::SafetensorsFile;
use crate::state_dict::SerializeError;

/// A save of one step into the folder of a run.
pub(super) struct Commit<'a> {
    pub(super) group: &'a ProcessGroup,
    /// The first ranks, which write.
    pub(super) writers: usize,
    pub(super) run: &'a Path,
    pub(super) step: u64,
}

/// What one rank tells the others about a step: its result, or why it failed.
type Outcome<T> = Result<T, String>;

impl Commit<'_> {
    /// Saves this rank's part, and waits for the others. Returns the folder of the checkpoint.
    pub(super) fn run(
        &self,
        model: &[TensorRows],
        aliases: &BTreeMap<String, String>,
        optimizer: &[TensorRows],
        manifest: &Manifest,
        older: usize,
    ) -> Result<PathBuf, SerializeError> {
        let name = self.of_rank_0(|| self.prepare())?;
        let folder = self.run.join(&name);
        let own = self.write(&folder, model, aliases, optimizer);
        let files = match self.of_all(&own) {
            Ok(files) => files,
            Err(error) => {
                if self.group.rank() == 0 && error.is_ours() {
                    // The disk may be full. If this fails, the next save removes the folder.
                    let _ = fs::remove_dir_all(&folder);
                }
                return Err(error.of(&folder));
            }
        };
        self.of_rank_0(|| {
            let before = folder::checkpoints_in(self.run);
            self.complete(&folder, &name, files, manifest)?;
            self.remove_old(&folder, &before, older);
            Ok(String::new())
        })?;
        Ok(folder)
    }

    /// On rank 0: makes the folder of the checkpoint. Returns its name.
    fn prepare(&self) -> Outcome<String> {
        fs::create_dir_all(self.run).map_err(|why| shown(self.run, &why))?;
        for nth in 0.. {
            let name = step_name(self.step, nth);
            let folder = self.run.join(&name);
            if is_complete(&folder) {
                continue; // never write into a checkpoint
            }
            // Left behind by a save that was killed.
            match fs::remove_dir_all(&folder) {
                Err(why) if why.kind() != ErrorKind::NotFound => return Err(shown(&folder, &why)),
                _ => {}
            }
            for part in [MODEL, OPTIMIZER] {
                fs::create_dir_all(folder.join(part)).map_err(|why| shown(&folder, &why))?;
            }
            return Ok(name);
        }
        unreachable!("one of the names is free")
    }

    /// Writes this rank's files. Returns their paths in the folder and their identities.
    fn write(
        &self,
        folder: &Path,
        model: &[TensorRows],
        aliases: &BTreeMap<String, String>,
        optimizer: &[TensorRows],
    ) -> Outcome<BTreeMap<String, Sealed>> {
        if self.group.rank() >= self.writers {
            return Ok(BTreeMap::new());
        }
        let name = file_name(self.group.rank());
        let none = BTreeMap::new();
        // The names from one rank are enough for a reader of all files.
        let aliases = if self.group.rank() == 0 { aliases } else { &none };
        let mut files = BTreeMap::new();
        for (part, rows, aliases) in [(MODEL, model, aliases), (OPTIMIZER, optimizer, &none)] {
            let path = folder.join(part).join(&name);
            let layout = Layout::of(pieces(rows), metadata(rows, aliases), true);
            let written = layout.write_file(&path).and_then(|(written, sealed)| {
                written.replace_target()?;
                Ok(sealed)
            });
            let sealed = written.map_err(not_saved)?;
            files.insert(format!("{part}/{name}"), sealed);
        }
        Ok(files)
    }

    /// On rank 0: checks that all files exist, and then turns the folder into a checkpoint.
    fn complete(
        &self,
        folder: &Path,
        name: &str,
        files: BTreeMap<String, Sealed>,
        manifest: &Manifest,
    ) -> Outcome<()> {
        for (file, sealed) in &files {
            let path = folder.join(file);
            let found = SafetensorsFile::open_alone(&path).map_err(|error| error.to_string())?;
            if found.sealed() != sealed {
                return Err(format!("{}: rank 0 sees a different file from the written one", path.display()));
            }
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |why: io::Error| shown(&path, &why)
        };
        // The names of the folders: `model` and `optimizer`, then the checkpoint itself.
        sync_folder(&folder.join(MODEL)).map_err(failed(folder))?;
        sync_folder(folder).map_err(failed(self.run))?;
        let written = manifest.with_files(files).write(folder);
        written.map_err(not_saved)?;
        let (link, temporary) =
            (self.run.join(LATEST), self.run.join(format!(".{LATEST}-{}", std::process::id())));
        // A process that was killed may have had the same id.
        let _ = fs::remove_file(&temporary);
        symlink(name, &temporary)
            .and_then(|()| fs::rename(&temporary, &link))
            .and_then(|()| sync_folder(&link))
            .map_err(failed(&link))
    }

    /// On rank 0: removes all but this checkpoint and the first `older` of those before it. If something cannot be
    /// removed, the next save tries again.
    fn remove_old(&self, own: &Path, before: &[PathBuf], older: usize) {
        let kept = &before[..older.min(before.len())];
        for (_, folder) in steps_in(self.run).iter().filter(|(_, it)| it != own && !kept.contains(it)) {
            let _ = folder::remove(folder);
        }
    }

    /// Runs `f` on rank 0. All ranks get the text that it returns, or its error.
    fn of_rank_0(&self, f: impl FnOnce() -> Outcome<String>) -> Result<String, SerializeError> {
        let own = if self.group.rank() == 0 { f() } else { Ok(String::new()) };
        let text = match &own {
            Ok(text) => json!({ "ok": text }),
            Err(why) => json!({ "error": why }),
        };
        let first = gather_texts(self.group, &text.to_string(), "checkpoint")?.remove(0);
        let first: Value = serde_json::from_str(&first).unwrap_or_default();
        match (first["ok"].as_str(), first["error"].as_str()) {
            (Some(text), _) => Ok(text.to_owned()),
            (None, why) => Err(Failed::Rank(0, why.unwrap_or_default().to_owned()).of(self.run)),
        }
    }

    /// The files of all ranks, or the first error.
    fn of_all(&self, own: &Outcome<BTreeMap<String, Sealed>>) -> Result<BTreeMap<String, Sealed>, Failed> {
        let text = match own {
            Ok(files) => json!({ "ok": files }),
            Err(why) => json!({ "error": why }),
        };
        let all = gather_texts(self.group, &text.to_string(), "checkpoint").map_err(Failed::Group)?;
        let mut files = BTreeMap::new();
        for (rank, text) in all.iter().enumerate() {
            let mut said: Value = serde_json::from_str(text).unwrap_or_default();
            match serde_json::from_value::<BTreeMap<String, Sealed>>(said["ok"].take()) {
                Ok(some) => files.extend(some),
                Err(_) => {
                    return Err(Failed::Rank(rank, said["error"].as_str().unwrap_or_default().to_owned()));
                }
            }
        }
        Ok(files)
    }
}

/// Why there is no checkpoint.
enum Failed {
    /// A rank could not complete its part.
    Rank(usize, String),
    /// The ranks could not communicate.
    Group(plimsoll_tensor::Error),
}

impl Failed {
    /// Whether all ranks know about it.
    fn is_ours(&self) -> bool {
        matches!(self, Failed::Rank(..))
    }

    fn of(self, folder: &Path) -> SerializeError {
        match self {
            Failed::Rank(rank, why) => {
                let source = io::Error::other(format!("rank {rank}: {why}"));
                SerializeError::NotSaved { path: folder.to_owned(), source }
            }
            Failed::Group(error) => error.into(),
        }
    }
}

fn shown(path: &Path, why: &io::Error) -> String {
    format!("{}: {why}", path.display())
}

/// Why a file was not saved, without the words with which the error of the whole save begins.
fn not_saved(error: SerializeError) -> String {
    match error {
        SerializeError::NotSaved { path, source } => shown(&path, &source),
        other => other.to_string(),
    }
}

fn pieces(rows: &[TensorRows]) -> Vec<Piece<'_>> {
    rows.iter().map(|it| Piece::of(&it.name, &it.rows)).collect()
}

/// PyTorch's metadata, which says where the rows belong, and the other names of tensors.
fn metadata(rows: &[TensorRows], aliases: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let place = |it: &TensorRows| (it.name.clone(), json!({ OFFSETS: it.offsets }));
    let places: Map<String, Value> = rows.iter().map(place).collect();
    let mut texts = aliases.clone();
    texts.insert(SHARDING.to_owned(), Value::Object(places).to_string());
    texts.insert(VERSION.0.to_owned(), VERSION.1.to_owned());
    texts
}
