//! An open library, found in one of the places from `search.rs`, and its functions by name.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{CudaError, Result};
use crate::search::Search;

/// A library to look for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Its common name.
    pub(crate) library: &'static str,
    /// Its file names, newest first.
    pub(crate) names: &'static [&'static str],
    /// Advice on what to install.
    pub(crate) advice: &'static str,
}

/// The pip package that installs NVRTC, cuBLASLt and cuDNN (through its dependencies) for a driver of this version, such as
/// `13000`.
pub(crate) fn package(driver: i32) -> &'static str {
    match driver {
        13_000.. => "`pip install nvidia-cudnn-cu13` installs NVRTC, cuBLASLt and cuDNN, and so does `torch`",
        _ => {
            "`pip install nvidia-cudnn-cu12` installs NVRTC, cuBLASLt and cuDNN, and so does `torch` for CUDA 12"
        }
    }
}

/// A library that is loaded into the process. It is never closed, since its threads and handles may outlive the code that opened
/// it.
#[derive(Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    wanted: Wanted,
    path: PathBuf,
}

// SAFETY: any thread may use a handle of the loader (dlsym is thread-safe), and it is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the first library that is found: by bare name in the loader's path, then in each folder.
    ///
    /// # Errors
    /// If no library was found.
    pub(crate) fn open(wanted: Wanted, search: &Search) -> Result<Library> {
        let mut places = Vec::new();
        let folders = search.folders();
        let in_folders =
            folders.iter().flat_map(|folder| wanted.names.iter().map(move |name| folder.join(name)));
        let bare = wanted.names.iter().map(PathBuf::from);
        for path in bare.chain(in_folders.filter(|path| path.is_file())) {
            match open(&path) {
                Ok(handle) => {
                    return Ok(Library { handle, wanted, path: loaded_from(handle).unwrap_or(path) });
                }
                // Keep the loader's message if the file exists but cannot be opened.
                Err(why) if path.is_absolute() => places.push(format!("{} ({why})", path.display())),
                Err(_) => {}
            }
        }
        let looked = folders.iter().map(|folder| folder.display().to_string());
        let places = std::iter::once("the loader's path (LD_LIBRARY_PATH)".to_owned())
            .chain(looked)
            .chain(places)
            .collect();
        let Wanted { library, names, advice } = wanted;
        Err(CudaError::Missing { library, names: names.join(", "), places, advice })
    }

    /// The file from which it was loaded.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a function's address.
    ///
    /// # Errors
    /// If the library has no function with this name.
    pub(crate) fn function(&self, name: &'static CStr) -> Result<*mut c_void> {
        // SAFETY: an open handle, and a NUL-terminated string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if !address.is_null() {
            return Ok(address);
        }
        let Wanted { library, advice, .. } = self.wanted;
        let function = name.to_str().unwrap_or_default();
        Err(CudaError::TooOld { library, path: self.path.display().to_string(), function, advice })
    }
}

/// Opens a file without making its symbols global, unless another library opens the same file by bare name.
fn open(path: &Path) -> std::result::Result<*mut c_void, String> {
    let scope =
        if path.to_string_lossy().contains("-builtins") { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a NUL-terminated string. The library's initializers run: it is NVIDIA's, named by this crate and found in places
    // that the user's environment names.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | scope) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: called after a failed dlopen on the same thread; returns null or a string that is valid until the next call.
    let message = unsafe { libc::dlerror().as_ref() };
    // SAFETY: as above; it is NUL-terminated.
    Err(message
        .map_or_else(String::new, |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
}

/// The file of an open library, as known to the loader.
#[cfg(target_os = "linux")]
fn loaded_from(handle: *mut c_void) -> Option<PathBuf> {
    /// The first fields of the loader's `struct link_map`.
    #[repr(C)]
    struct LinkMap {
        address: usize,
        name: *const libc::c_char,
    }
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: RTLD_DI_LINKMAP writes one pointer, to a local of that size.
    let failed = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0;
    if failed || map.is_null() {
        return None;
    }
    // SAFETY: the loader's entry is valid while the library is open, which is forever; its name is NUL-terminated.
    let name = unsafe { CStr::from_ptr((*map).name) }.to_string_lossy().into_owned();
    (!name.is_empty()).then(|| PathBuf::from(name))
}

#[cfg(not(target_os = "linux"))]
fn loaded_from(_: *mut c_void) -> Option<PathBuf> {
    None
}

/// Opens a file in the folder of `library` that the library will open by bare name: NVRTC's built-in functions in pip's packages.
pub(crate) fn open_beside(library: &Path, starts_with: &str) {
    let Some(folder) = library.parent() else { return };
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut names: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    for path in names {
        let is_named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(starts_with));
        if is_named && !path.to_string_lossy().contains(".alt.") {
            // If a file is really missing, NVRTC reports it when it compiles.
            let _ = open(&path);
        }
    }
}

/// Declares a table of a library's functions: a struct of function pointers, filled by name.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($argument:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)*
        }

        impl $table {
            /// Finds every function.
            pub(crate) fn load(library: &$crate::library::Library) -> $crate::error::Result<$table> {
                Ok($table {
                    $($name: {
                        let name = const {
                            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => unreachable!(),
                            }
                        };
                        let address = library.function(name)?;
                        // SAFETY: the function with this name in NVIDIA's headers has these arguments, which are plain C types,
                        // and returns an int; the library is never closed.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::package;

    #[test]
    fn the_package_to_install_follows_from_the_driver() {
        for (driver, name) in
            [(12_000, "nvidia-cudnn-cu12"), (12_090, "nvidia-cudnn-cu12"), (13_000, "nvidia-cudnn-cu13")]
        {
            assert!(package(driver).starts_with(&format!("`pip install {name}` ")), "{driver}");
        }
    }
}
