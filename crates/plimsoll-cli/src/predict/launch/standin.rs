//! Finds the library plimsoll-standin (the simulated GPU), and checks its version.

use std::path::{Path, PathBuf};

use plimsoll_standin::{place, version};

use super::embedded;
use crate::exit::{Exit, Failure};

/// Looks for the library next to the program, in `../lib`, at `PLIMSOLL_STANDIN`, in cargo's target folder, and inside
/// the program. A library from inside the program is written to the cache folder, or else to `folder`.
///
/// # Errors
/// If the library is not found, or has a different version.
pub(super) fn find(folder: &Path) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().and_then(|program| program.canonicalize());
    let program = program.map_err(|why| {
        Failure::new(Exit::Unreadable, format!("cannot find the path of this program: {why}"))
    })?;
    let configured = std::env::var_os(place::PLACE).map(PathBuf::from);
    let built = program.parent().map(|beside| beside.join("deps").join(place::LIBRARY));
    let library = place::find(&program, configured.as_deref()).or(built.filter(|built| built.is_file()));
    let library = match library {
        Some(library) => Some(library),
        None => embedded::written(folder)?,
    };
    checked(&library.ok_or_else(|| missing(&program))?)
}

fn missing(program: &Path) -> Failure {
    let beside = program.parent().unwrap_or(program).display();
    Failure::new(
        Exit::Unreadable,
        format!(
            "{} is not in {beside}, in {beside}/../lib or at {}, and this build does not contain it: `cargo build --release -p \
             plimsoll-cli -p plimsoll-standin` builds both",
            place::LIBRARY,
            place::PLACE
        ),
    )
}

fn checked(library: &Path) -> Result<PathBuf, Failure> {
    let path = library.display();
    let why = match version::version_of(library) {
        Some(found) if found == version::version() => return Ok(library.to_path_buf()),
        Some(found) => {
            format!("{path} has version {found}, but this program has {}: rebuild both", version::version())
        }
        None => format!("{path} cannot be loaded, or is not {}", place::LIBRARY),
    };
    Err(Failure::new(Exit::Unreadable, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_stand_in_is_refused() {
        let failure = checked(Path::new("/dev/null")).unwrap_err();
        assert!(failure.message.contains("cannot be loaded"), "{}", failure.message);
    }
}
