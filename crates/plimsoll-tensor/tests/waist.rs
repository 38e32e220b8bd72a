//! The structure of the crates: an operator touches few files, and files use only what is below them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The lines of code of a file: no comments, no tests.
fn code(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    lines.map(str::trim).filter(|line| !line.starts_with("//")).map(str::to_owned).collect()
}

/// The source files that mention an identifier; lists of modules, names and operators do not count.
fn files_that_name(identifiers: &[&str]) -> Vec<String> {
    let is_list = |line: &str| {
        ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod ", "pub use ", "use ", "(\""]
            .iter()
            .any(|it| line.starts_with(it))
    };
    // A line of a list with several names.
    let is_names = |line: &str| {
        line.ends_with(',') && line.chars().all(|c| c.is_alphanumeric() || ['_', ',', ' '].contains(&c))
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let names = |line: &str| line.split(|c| !is_word(c)).any(|word| identifiers.contains(&word));
    ["plimsoll-kernels/src", "plimsoll-tensor/src", "plimsoll/src"]
        .iter()
        .flat_map(|folder| sources(&crates().join(folder)))
        .filter(|path| !path.ends_with("tests.rs"))
        // Models and blocks of layers call operators but are not part of any.
        .filter(|path| {
            !path
                .components()
                .any(|part| ["models", "transformer"].contains(&part.as_os_str().to_str().unwrap()))
        })
        .filter(|path| code(path).iter().any(|line| !is_list(line) && !is_names(line) && names(line)))
        .map(|path| path.strip_prefix(crates()).unwrap().display().to_string())
        .collect()
}

#[test]
fn an_elementwise_operator_is_in_one_file_and_its_layer_in_another() {
    let expected = ["plimsoll-tensor/src/ops/elementwise/activations.rs", "plimsoll/src/nn/activation.rs"];
    assert_eq!(files_that_name(&["mish", "Mish"]), expected);
}

#[test]
fn an_operator_is_one_module_with_a_kernel_and_a_layer_beside_it() {
    let expected = [
        "plimsoll-kernels/src/normalization/row_norm.rs",
        // The GPU implementation.
        "plimsoll-tensor/src/cuda/normalization/row_norm.rs",
        // Layer and RMS normalization, optionally of a sum.
        "plimsoll-tensor/src/ops/normalization/row_norm/backward.rs",
        "plimsoll-tensor/src/ops/normalization/row_norm/call.rs",
        "plimsoll-tensor/src/ops/normalization/row_norm/mod.rs",
        "plimsoll/src/nn/norm.rs",
        // Blocks of layers use either normalization.
        "plimsoll/src/nn/residual.rs",
    ];
    let mut found = files_that_name(&["row_norm", "RowNorm", "layer_norm", "LayerNorm"]);
    found.sort();
    assert_eq!(found, expected);
}

/// The parts of the crate that each part uses. A part is a file or folder directly below `src`.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let src = crates().join("plimsoll-tensor/src");
    let part = |path: &Path| {
        let first = path.strip_prefix(&src).unwrap().components().next().unwrap();
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
    };
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources(&src).into_iter().filter(|path| !path.ends_with("lib.rs")) {
        let own = part(&path);
        let text = code(&path).join("\n");
        let named = text
            .split("crate::")
            .skip(1)
            .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>());
        uses.entry(own.clone()).or_default().extend(named.filter(|name| *name != own));
    }
    uses
}

#[test]
fn no_part_of_the_crate_uses_another_in_a_circle() {
    let uses = uses();
    assert!(uses.len() > 15, "{uses:?}");
    let mut left = uses.clone();
    loop {
        let free: Vec<String> = left
            .iter()
            .filter(|(_, named)| named.iter().all(|name| !left.contains_key(name)))
            .map(|(part, _)| part.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|part| drop(left.remove(part)));
    }
    assert!(left.is_empty(), "in a circle, or above one: {left:#?}");
    let unknown: Vec<_> = uses.values().flatten().filter(|name| !uses.contains_key(*name)).collect();
    assert!(
        unknown.is_empty(),
        "named through the crate's root, where a circle would not be seen: {unknown:?}"
    );
}
