//! The shared library on which PyTorch runs: where it is, and whether it is of our version.

use std::path::{Path, PathBuf};

use plimsoll_standin::{place, version};

use crate::exit::{Exit, Failure};

/// Looks for the library: beside the program, in `../lib`, where `PLIMSOLL_STANDIN` says, and where cargo leaves it.
///
/// # Errors
/// If it is nowhere, or of another version.
pub(super) fn find() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().and_then(|program| program.canonicalize());
    let program =
        program.map_err(|why| Failure::new(Exit::Unreadable, format!("where this program is: {why}")))?;
    let told = std::env::var_os(place::PLACE).map(PathBuf::from);
    let built = program.parent().map(|beside| beside.join("deps").join(place::LIBRARY));
    let library = place::find(&program, told.as_deref()).or(built.filter(|built| built.is_file()));
    checked(&library.ok_or_else(|| missing(&program))?)
}

fn missing(program: &Path) -> Failure {
    let beside = program.parent().unwrap_or(program).display();
    Failure::new(
        Exit::Unreadable,
        format!(
            "{} is neither in {beside} nor in {beside}/../lib nor where {} says: `cargo build --release -p \
             plimsoll-cli -p plimsoll-standin` makes both",
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
            format!("{path} is version {found}, this program {}: build both anew", version::version())
        }
        None => format!("{path} cannot be loaded, or is no {}", place::LIBRARY),
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
