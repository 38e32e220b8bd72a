//! The folder that a launcher creates.

use std::path::Path;

use plimsoll_standin::{place, version};

use crate::library;

#[test]
fn every_name_in_the_folder_links_to_the_library() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin");
    for _again in 0..2 {
        place::lay_out(&folder, &library::path()).unwrap();
    }
    let target = library::path().canonicalize().unwrap();
    for name in ["libplimsoll_standin.so", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"] {
        assert_eq!(folder.join(name).canonicalize().unwrap(), target, "{name}");
    }
}

#[test]
fn the_library_reports_its_version() {
    assert_eq!(version::version_of(&library::path()).as_deref(), Some(version::version()));
    assert_eq!(version::version_of(Path::new("/dev/null")), None);
}

#[test]
fn the_library_beside_the_program_is_found_first() {
    let library = library::path();
    let program = library.with_file_name("plimsoll");
    assert_eq!(place::find(&program, None), Some(library.clone()));
    assert_eq!(place::find("/nowhere/bin/plimsoll".as_ref(), Some(&library)), Some(library));
    assert_eq!(place::find("/nowhere/bin/plimsoll".as_ref(), None), None);
}
