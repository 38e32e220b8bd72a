//! Injects our Python code into every Python process of the user's program, through a private folder that comes first
//! in PYTHONPATH and contains a sitecustomize.py and the modules that it loads. These are the wheel's modules
//! (`python/plimsoll`) in a package with a different name, so the user's environment does not need the wheel.
//! `cache.rs` creates the folder, which outlives this process.

pub(crate) mod cache;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// The modules: their paths in the package, and their source texts. `build.rs` lists them.
const MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/python.rs"));

/// The name under which the user's Python processes import them.
const PACKAGE: &str = "plimsoll_injected";

/// The module that also serves as the folder's sitecustomize.py.
const ENTRY: &str = include_str!("../../python/plimsoll/_inject/sitecustomize.py");

/// The verb that injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Predict,
    Run,
}

/// A verb's sitecustomize.py, which contains the verb's name and this program's version.
pub(crate) fn entry(verb: Verb) -> String {
    let name = match verb {
        Verb::Predict => "predict",
        Verb::Run => "run",
    };
    let version = env!("CARGO_PKG_VERSION");
    ENTRY
        .replace("\nVERB = \"predict\"", &format!("\nVERB = \"{name}\""))
        .replace("\nVERSION = \"\"", &format!("\nVERSION = \"{version}\""))
}

/// sitecustomize.py and the modules, each with its path in the folder.
pub(crate) fn files(entry: &str) -> Vec<cache::File<'_>> {
    let mut files = vec![("sitecustomize.py".into(), entry.as_bytes())];
    files.extend(MODULES.iter().map(|(name, text)| (Path::new(PACKAGE).join(name), text.as_bytes())));
    files
}

/// Writes the injected files to this folder.
///
/// # Errors
/// I/O errors.
pub(crate) fn lay_out(folder: &Path, verb: Verb) -> io::Result<()> {
    for (name, bytes) in files(&entry(verb)) {
        let place = folder.join(name);
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(place, bytes)?;
    }
    Ok(())
}

/// A hint for the error if a command cannot be started: a Python file may need to be run with its interpreter.
pub(crate) fn interpreter_hint(command: &str) -> String {
    if command.ends_with(".py") { format!("; try: python {command}") } else { String::new() }
}

/// PYTHONPATH with this folder first.
pub(crate) fn python_path(folder: &Path) -> OsString {
    match std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty()) {
        Some(path) => [folder.as_os_str(), &path].join(":".as_ref()),
        None => folder.as_os_str().to_owned(),
    }
}

/// The user's allocator settings, plus the one that turns on expandable segments.
pub(crate) fn expandable(settings: Option<&str>) -> String {
    let own = settings.map(str::to_owned).or_else(|| {
        ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok())
    });
    match own.filter(|own| !own.is_empty()) {
        Some(own) => format!("{own},expandable_segments:True"),
        None => "expandable_segments:True".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_names_its_verb_the_version_and_the_package() {
        let has = |verb, line: &str| entry(verb).lines().any(|it| it.starts_with(line));
        let version = format!("VERSION = \"{}\"", env!("CARGO_PKG_VERSION"));
        for (verb, line) in [(Verb::Predict, "VERB = \"predict\""), (Verb::Run, "VERB = \"run\"")] {
            assert!(has(verb, line) && has(verb, &version), "{}", entry(verb));
        }
        assert!(has(Verb::Run, &format!("PACKAGE = \"{PACKAGE}\"")));
    }

    #[test]
    fn the_modules_of_both_verbs_and_the_techniques_are_in_the_program() {
        for name in [
            "protocol.py",
            "_inject/imports.py",
            "_predict/start.py",
            "_run/start.py",
            "techniques/__init__.py",
        ] {
            assert!(MODULES.iter().any(|(path, _)| *path == name), "{name}");
        }
        assert!(!MODULES.iter().any(|(path, _)| path.contains("__pycache__")));
    }
}
