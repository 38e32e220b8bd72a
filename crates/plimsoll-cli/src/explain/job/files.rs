//! The files of a job: those given by name, and the snapshots in a given folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// Extensions of snapshots. Files with an extension of the second row count only if the folder has no file with one of
/// the first row.
const ENDINGS: [&[&str]; 2] = [&["pickle", "pkl"], &["json"]];
/// Extensions of compressed files.
const PACKED: [&str; 2] = ["gz", "zst"];

/// The files that the arguments name; a folder stands for the snapshots in it. The files of a folder are sorted by the
/// numbers in their names, and so by rank if the names contain ranks.
///
/// # Errors
/// If a folder cannot be read or has no snapshot.
pub(in crate::explain) fn listed(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in given {
        if path.is_dir() {
            let mut found = inside(path)?;
            found.sort_by_key(|path| in_order(&name_of(path)));
            files.extend(found);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// The snapshots in a folder, not in its subfolders.
fn inside(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |why| Failure::new(Exit::Unreadable, format!("{}: {why}", folder.display()));
    let entries = fs::read_dir(folder).map_err(|why| unreadable(why.to_string()))?;
    let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let with = |endings: &[&str]| {
        let is_one = |path: &&PathBuf| path.is_file() && endings.contains(&ending(&name_of(path)).as_str());
        paths.iter().filter(is_one).cloned().collect::<Vec<PathBuf>>()
    };
    let found = ENDINGS.map(with).into_iter().find(|found| !found.is_empty());
    found.ok_or_else(|| {
        unreadable("the folder has no .pickle, .pkl or .json file, compressed or not".to_owned())
    })
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The extension of a name in lower case, ignoring the extension of a compressed file.
fn ending(name: &str) -> String {
    let mut parts = name.rsplit('.').map(str::to_ascii_lowercase);
    parts.find(|part| !PACKED.contains(&part.as_str())).unwrap_or_default()
}

/// Orders names by the numbers in them: `rank2` before `rank10`.
fn in_order(name: &str) -> Vec<(String, u128)> {
    pieces(name).into_iter().map(|(text, digits)| (text, digits.parse().unwrap_or(u128::MAX))).collect()
}

/// Splits a name into pairs of a text and the digits after it.
pub(super) fn pieces(name: &str) -> Vec<(String, String)> {
    let mut pieces: Vec<(String, String)> = vec![Default::default()];
    for char in name.chars() {
        let is_digit = char.is_ascii_digit();
        if !is_digit && pieces.last().is_some_and(|(_, digits)| !digits.is_empty()) {
            pieces.push(Default::default());
        }
        if let Some((text, digits)) = pieces.last_mut() {
            if is_digit { digits.push(char) } else { text.push(char) }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_order_in_which_people_count() {
        let mut files = ["rank10.pickle", "rank2.pickle", "rank1.pickle"];
        files.sort_by_key(|file| in_order(file));
        assert_eq!(files, ["rank1.pickle", "rank2.pickle", "rank10.pickle"]);
    }

    #[test]
    fn an_ending_is_what_a_file_is_and_not_how_it_is_packed() {
        assert_eq!(["a.PICKLE.gz", "b.json.zst", "c.pkl", "d"].map(ending), ["pickle", "json", "pkl", "d"]);
    }
}
