//! `--html`: a page for a browser, in addition to the printed text or instead of it.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::render::html::{self, About};

use crate::exit::Failure;
use crate::sink::Sink;

/// Where to write the page.
#[derive(Args)]
pub(crate) struct Page {
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Overwrite an existing page
    #[arg(short, long, requires = "html")]
    force: bool,
}

impl Page {
    pub(crate) fn is_asked(&self) -> bool {
        self.html.is_some()
    }

    /// Where to write the page, if one was requested.
    ///
    /// # Errors
    /// The same errors as [`Sink::check`], but before the work is done.
    pub(crate) fn sink(&self) -> Result<Option<Sink>, Failure> {
        let sink = self.html.as_ref().map(|path| Sink::new(path.clone(), self.force));
        sink.as_ref().map_or(Ok(()), Sink::check).map(|()| sink)
    }
}

impl Sink {
    /// Writes a page, which shows `command` as the command that recreates it.
    pub(crate) fn page(&self, about: About<'_>, title: &str, command: &str) -> Result<(), Failure> {
        let page = html::Page { about, title, command }.html();
        self.write(|out| out.write_all(page.as_bytes()))
    }

    /// The command, with the option that writes its page to this file.
    pub(crate) fn again(&self, command: &str) -> String {
        format!("{command} --html {}", quoted(Path::new(&self.name())))
    }
}

/// A path as one word of a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |char: char| char.is_alphanumeric() || "/._-+,:@%".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
