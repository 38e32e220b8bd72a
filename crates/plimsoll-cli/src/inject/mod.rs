//! Our Python in every Python process of the user's program: a private folder, first in PYTHONPATH, with a sitecustomize.py,
//! whose beginning is `imports.py`. `cache.rs` has the folder that outlives this process.

pub(crate) mod cache;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use crate::techniques;

/// sitecustomize.py, the modules that it loads by name, and the package of techniques, each with its path in the folder.
pub(crate) fn files<'text>(
    sitecustomize: &'text str,
    modules: &[(&str, &'text str)],
) -> Vec<cache::File<'text>> {
    let mut files = vec![("sitecustomize.py".into(), sitecustomize.as_bytes())];
    files.extend(modules.iter().map(|(name, text)| (format!("plimsoll_{name}.py").into(), text.as_bytes())));
    let package = Path::new("plimsoll_techniques");
    files.extend(techniques::PYTHON.iter().map(|(name, text)| (package.join(name), text.as_bytes())));
    files
}

/// Writes them to this folder.
///
/// # Errors
/// The system's.
pub(crate) fn lay_out(folder: &Path, sitecustomize: &str, modules: &[(&str, &str)]) -> io::Result<()> {
    for (name, bytes) in files(sitecustomize, modules) {
        let place = folder.join(name);
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(place, bytes)?;
    }
    Ok(())
}

/// What to add where a command cannot be started: a Python file may need its interpreter before it.
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

/// The allocator settings with expandable segments switched on: the user's own, and this one last.
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
