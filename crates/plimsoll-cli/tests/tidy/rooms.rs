//! The order of a crate's files: it is stated in the tables ("a file uses only files above it"), and no two files may
//! use each other.
//!
//! The root of a crate has a table of its files and folders, and a folder's own file may have one of the files inside.
//! Items that a folder's own file defines belong to the folder: the files inside may use them, and the folder's file
//! may use the files inside.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::uses::{Module, Uses};

/// Files that use each other and cannot be separated: a module lists its members, and a member may be a module.
const RECURSIVE: [&[&str]; 1] = [&["nn", "member"]];

/// The sentence above a table whose order counts.
const ORDERED: [&str; 2] = ["a file uses only files above it", "a file uses only those above it"];

/// A crate, and which of its files use which.
pub(crate) struct Rooms {
    src: PathBuf,
    uses: Uses,
}

impl Rooms {
    /// Reads a crate from its `src` folder. Calls of methods in another file of the same type count only if
    /// `with_methods`.
    pub(crate) fn of(src: &Path, with_methods: bool) -> Rooms {
        let counts = |place: &str| with_methods || !place.starts_with("self.");
        let uses = Uses::in_crate(src).only(|_, _, place| counts(place));
        Rooms { src: src.to_path_buf(), uses }
    }

    /// Cases where a file uses one below it in a table, and files that are missing from an ordered table.
    pub(crate) fn arrows_up(&self) -> Vec<String> {
        let mut found = Vec::new();
        for parent in self.uses.modules() {
            let text = fs::read_to_string(self.file(parent)).unwrap_or_default();
            let Some(rows) = ordered_rows(&text) else {
                if parent.is_empty() {
                    found.push(format!("{} has no table of its files in order", self.name(parent)));
                }
                continue;
            };
            let row = |module: &Module| {
                let child = module.strip_prefix(&parent[..]).and_then(|rest| rest.first())?;
                Some((child.clone(), rows.get(child).copied()))
            };
            for (from, to, place) in self.uses.all() {
                let (Some((user, own)), Some((used, other))) = (row(from), row(to)) else { continue };
                match (own, other) {
                    _ if user == used => {}
                    (None, _) => found.push(format!("{} is not in the table of {}", user, self.name(parent))),
                    (Some(own), Some(other)) if other > own => found.push(format!(
                        "{} uses {} ({place}), which is below it in the table of {}",
                        self.name(from),
                        self.name(to),
                        self.name(parent)
                    )),
                    _ => {}
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The cycles of files, with the uses in each.
    pub(crate) fn circles(self) -> Vec<String> {
        let is_recursive = |module: &Module| RECURSIVE.iter().any(|known| module == known);
        let Rooms { src, uses } = self;
        let uses = uses.only(|from, to, _| !from.starts_with(to) && !is_recursive(from));
        let circles = uses.cycles();
        let name = |module: &Module| name(&src, module);
        let told = circles.iter().map(|circle| {
            let inside = uses.all().filter(|(from, to, _)| circle.contains(from) && circle.contains(to));
            let lines =
                inside.map(|(from, to, place)| format!("  {} uses {} ({place})", name(from), name(to)));
            format!("a circle of {} files\n{}", circle.len(), lines.collect::<Vec<_>>().join("\n"))
        });
        told.collect()
    }

    fn file(&self, module: &Module) -> PathBuf {
        file(&self.src, module)
    }

    fn name(&self, module: &Module) -> String {
        name(&self.src, module)
    }
}

/// A module's file.
fn file(src: &Path, module: &Module) -> PathBuf {
    let place = src.join(module.join("/"));
    let files = match module.is_empty() {
        true => [src.join("lib.rs"), src.join("main.rs")],
        false => [place.with_extension("rs"), place.join("mod.rs")],
    };
    files.iter().find(|file| file.is_file()).unwrap_or(&files[0]).clone()
}

/// A module's file name, relative to the crate.
fn name(src: &Path, module: &Module) -> String {
    let file = file(src, module);
    file.strip_prefix(src).unwrap_or(&file).display().to_string()
}

/// The row number of each module in the ordered table of a text, if it has one.
fn ordered_rows(text: &str) -> Option<BTreeMap<String, usize>> {
    let lines: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let is_head = |nth: &usize| lines[*nth].starts_with("//! | file |");
    let is_ordered = |nth: &usize| {
        let before = lines[nth.saturating_sub(4)..*nth].join(" ");
        ORDERED.iter().any(|sentence| before.contains(sentence) || before.contains(&capital(sentence)))
    };
    let head = (0..lines.len()).filter(is_head).find(is_ordered)?;
    let rows = lines[head + 2..].iter().map_while(|line| line.strip_prefix("//! | "));
    let mut found = BTreeMap::new();
    for (nth, row) in rows.enumerate() {
        let cell = row.split(" | ").next().unwrap_or_default();
        for entry in cell.split('`').skip(1).step_by(2) {
            let module = entry.trim_end_matches('/').trim_end_matches(".rs");
            found.entry(module.to_owned()).or_insert(nth);
        }
    }
    Some(found)
}

fn capital(sentence: &str) -> String {
    sentence.replacen('a', "A", 1)
}

#[cfg(test)]
mod tests {
    use super::ordered_rows;

    #[test]
    fn only_a_table_below_the_sentence_is_in_order() {
        let table =
            "//! | file | contents |\n//! |---|---|\n//! | `a.rs`, `b/` | one |\n//! | `c.rs` | `d` |\n";
        assert_eq!(ordered_rows(table), None);
        let rows =
            ordered_rows(&format!("//! A file uses only files above it:\n//!\n{table}")).expect("rows");
        let rows: Vec<_> = rows.iter().map(|(name, row)| (name.as_str(), *row)).collect();
        assert_eq!(rows, [("a", 0), ("b", 0), ("c", 1)]);
    }
}
