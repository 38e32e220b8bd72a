//! The folder that a launcher lays out.

mod library;

use std::path::Path;

use plimsoll_standin::{place, version};

#[test]
fn a_folder_leads_to_one_file_by_every_name() {
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
fn the_library_tells_its_version() {
    assert_eq!(version::version_of(&library::path()).as_deref(), Some(version::version()));
    assert_eq!(version::version_of(Path::new("/dev/null")), None);
}

#[test]
fn the_library_is_looked_for_beside_the_program_first() {
    let library = library::path();
    let program = library.with_file_name("plimsoll");
    assert_eq!(place::find(&program, None), Some(library.clone()));
    assert_eq!(place::find("/nowhere/bin/plimsoll".as_ref(), Some(&library)), Some(library));
    assert_eq!(place::find("/nowhere/bin/plimsoll".as_ref(), None), None);
}
