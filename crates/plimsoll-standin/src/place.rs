//! How the loader finds the stand-in: a folder that the launcher creates, and the variables that point to it.
//!
//! PyTorch's libraries locate NVIDIA's libraries by their place in the wheel, before any path from the environment. So
//! the stand-in is preloaded: its functions take precedence, and NVIDIA's libraries, which are still loaded, provide
//! only functions that need no device. The driver's libraries are not in a wheel; programs open them by name (`libcuda.so.1`,
//! `libnvidia-ml.so.1`) and find them in the folder, as links to the same file.
//!
//! ```text
//! FOLDER/libplimsoll_standin.so   the library, or a link to it
//! FOLDER/libcuda.so.1             -> libplimsoll_standin.so
//! FOLDER/libcuda.so               -> libplimsoll_standin.so (Triton links against it)
//! FOLDER/libnvidia-ml.so.1        -> libplimsoll_standin.so
//! FOLDER/cudnn-planner/           the same under cuBLASLt's names, for the planner (`planner.rs`)
//!
//! LD_PRELOAD=FOLDER/libplimsoll_standin.so[:what was there]
//! LD_LIBRARY_PATH=FOLDER[:what was there]
//! TRITON_LIBCUDA_PATH=FOLDER
//! PLIMSOLL_STANDIN_VERSION=the launcher's version
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::{settings, version};

/// The library's name.
pub const LIBRARY: &str = "libplimsoll_standin.so";

/// Names of the driver's libraries, as programs open them.
const LINKS: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"];

/// Names of cuBLASLt in CUDA 12 and 13. Some cuDNN engines open it.
const PLANNER_LINKS: [&str; 2] = ["libcublasLt.so.12", "libcublasLt.so.13"];

/// The folder with those names, and the subcommand that runs the launcher as the planner.
pub const PLANNER: &str = "cudnn-planner";

/// The variable that overrides the library's location.
pub const PLACE: &str = "PLIMSOLL_STANDIN";

/// Looks for the library next to the program, in `../lib`, then at `configured` (the text of [`PLACE`]).
pub fn find(program: &Path, configured: Option<&Path>) -> Option<PathBuf> {
    let beside = program.parent()?;
    let places = [
        Some(beside.join(LIBRARY)),
        Some(beside.join("../lib").join(LIBRARY)),
        configured.map(Path::to_path_buf),
    ];
    places.into_iter().flatten().find(|place| place.is_file())
}

/// Creates the folder, with links to `library`. Existing files of these names are replaced.
///
/// # Errors
///
/// The folder cannot be created or written to, or the library does not exist.
pub fn lay_out(folder: &Path, library: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    replace(&library.canonicalize()?, &folder.join(LIBRARY))?;
    LINKS.iter().try_for_each(|link| replace(Path::new(LIBRARY), &folder.join(link)))?;
    let planner = folder.join(PLANNER);
    std::fs::create_dir_all(&planner)?;
    let library = Path::new("..").join(LIBRARY);
    PLANNER_LINKS.iter().try_for_each(|link| replace(&library, &planner.join(link)))
}

fn replace(target: &Path, link: &Path) -> io::Result<()> {
    match std::fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(target, link),
    }
}

/// The variables that point to a folder. `before` looks up a variable's current value.
///
/// ```
/// let of = |name: &str| (name == "LD_LIBRARY_PATH").then(|| "/opt/lib".into());
/// let variables = plimsoll_standin::place::environment("/tmp/standin".as_ref(), of);
/// assert_eq!(variables[1], ("LD_LIBRARY_PATH", "/tmp/standin:/opt/lib".into()));
/// ```
pub fn environment(
    folder: &Path,
    before: impl Fn(&str) -> Option<OsString>,
) -> [(&'static str, OsString); 4] {
    let in_front = |name, path: OsString| match before(name).filter(|value| !value.is_empty()) {
        None => (name, path),
        Some(value) => (name, [path, value].join(":".as_ref())),
    };
    [
        in_front("LD_PRELOAD", folder.join(LIBRARY).into_os_string()),
        in_front("LD_LIBRARY_PATH", folder.as_os_str().to_owned()),
        ("TRITON_LIBCUDA_PATH", folder.as_os_str().to_owned()),
        (settings::VERSION, version::version().into()),
    ]
}
