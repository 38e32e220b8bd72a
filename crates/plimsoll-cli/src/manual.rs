//! `plimsoll completions` and `plimsoll man`: shell completions and man pages, from the same definitions as
//! `--help`.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::sink::Sink;

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Write one page per command to this folder [default: print the main page to stdout]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Overwrite existing pages
    #[arg(short, long, requires = "dir")]
    force: bool,
}

/// Writes a shell's completions to stdout.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "plimsoll", &mut script);
    output::bytes(|out| out.write_all(&script))
}

/// Writes man pages into a folder, or the first to stdout.
pub(crate) fn man(args: &ManArgs, mut command: Command) -> Result<(), Failure> {
    let Some(dir) = &args.dir else {
        return output::bytes(|mut out| Man::new(command).render(&mut out));
    };
    fs::create_dir_all(dir)
        .map_err(|why| Failure::new(Exit::Unreadable, format!("{}: {why}", dir.display())))?;
    command.build();
    let pages = pages(command, "plimsoll");
    let file = |page: &Man| Sink::new(dir.join(page.get_filename()), args.force);
    pages.iter().try_for_each(|page| file(page).check())?;
    pages.iter().try_for_each(|page| file(page).write(|mut out| page.render(&mut out)))
}

/// The man page of a command, then the pages of its subcommands: `plimsoll`, `plimsoll-bench`,
/// `plimsoll-bench-step`.
fn pages(command: Command, name: &str) -> Vec<Man> {
    let below: Vec<Man> = command
        .get_subcommands()
        .filter(|below| below.get_name() != "help" && !below.is_hide_set())
        .flat_map(|below| pages(below.clone(), &format!("{name}-{}", below.get_name())))
        .collect();
    let page = Man::new(command.display_name(name.to_owned()));
    std::iter::once(page).chain(below).collect()
}
