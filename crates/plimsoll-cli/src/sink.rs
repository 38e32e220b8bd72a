//! The output file of a verb: `-o` and `--force`. A file is either complete or absent, and never replaced without
//! `--force`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::output::replace;

use crate::exit::{Exit, Failure};
use crate::limit;
use crate::output;

/// The options that choose where to write.
#[derive(Args)]
pub(crate) struct Sink {
    /// The file to write; `-` is stdout
    #[arg(short, long, value_name = "OUT", default_value = "-")]
    output: PathBuf,
    /// Overwrite an existing file
    #[arg(short, long)]
    force: bool,
}

impl Sink {
    /// A file by name.
    pub(crate) fn new(output: PathBuf, force: bool) -> Sink {
        Sink { output, force }
    }

    /// The name that the user gave.
    pub(crate) fn name(&self) -> String {
        self.output.display().to_string()
    }

    pub(crate) fn is_stdout(&self) -> bool {
        self.output == Path::new("-")
    }

    /// Fails if [`Sink::write`] would refuse to write; called before the work.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let is_file = !self.is_stdout() && self.output.is_file();
        if is_file && !self.force {
            let message = format!(
                "{} already exists: add --force to replace it, or name another file",
                self.output.display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        let folder = self.output.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !self.is_stdout() && !folder.is_dir()) {
            let message = format!("{}: there is no folder {}: make it first", self.name(), folder.display());
            return Err(Failure::new(Exit::Unreadable, message));
        }
        Ok(())
    }

    /// Writes the file, and reports its name on stderr.
    pub(crate) fn write(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        self.check()?;
        limit::lift();
        if self.is_stdout() {
            return output::bytes(fill);
        }
        let path = &self.output;
        let done = match fs::metadata(path) {
            // A device or a pipe, so nothing is replaced.
            Ok(there) if !there.is_file() => File::create(path).and_then(|mut pipe| fill(&mut pipe)),
            // Replaces the target of a link, not the link.
            Ok(_) => path.canonicalize().and_then(|path| replace(&path, fill)),
            Err(_) => replace(path, fill),
        };
        done.map_err(|why| Failure::new(Exit::Unreadable, format!("{}: {why}", path.display())))?;
        output::progress(&format!("wrote {}", path.display()));
        Ok(())
    }
}
