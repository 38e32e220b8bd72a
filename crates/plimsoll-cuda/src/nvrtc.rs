//! NVRTC: compiles CUDA C++ text to machine code. It needs no GPU.

use std::ffi::{CString, c_char, c_int};

use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions, open_beside, package};
use crate::search::Search;

/// `nvrtcProgram`.
type Program = usize;

functions! {
    /// The functions, under the names that the library exports.
    Functions {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcCreateProgram(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        nvrtcCompileProgram(Program, c_int, *const *const c_char);
        nvrtcGetProgramLogSize(Program, *mut usize);
        nvrtcGetProgramLog(Program, *mut c_char);
        nvrtcGetCUBINSize(Program, *mut usize);
        nvrtcGetCUBIN(Program, *mut c_char);
        nvrtcDestroyProgram(*mut Program);
    }
}

/// The compiler.
pub(crate) struct Nvrtc {
    functions: Functions,
    library: Library,
    version: (i32, i32),
}

/// Compiles a text for an architecture, such as `sm_90`, with the NVRTC that `search` finds. Needs no GPU.
///
/// # Errors
/// If NVRTC is missing, or the text does not compile.
pub fn compile(search: &Search, name: &str, text: &str, arch: &str) -> Result<Vec<u8>> {
    Nvrtc::open(search, i32::MAX)?.compile(name, text, arch)
}

impl Nvrtc {
    /// Opens the newest NVRTC whose code a driver of this version can run.
    ///
    /// # Errors
    /// If NVRTC is missing.
    pub(crate) fn open(search: &Search, driver: i32) -> Result<Nvrtc> {
        let names: &'static [&'static str] = match driver {
            13_000.. => &["libnvrtc.so.13", "libnvrtc.so.12"],
            _ => &["libnvrtc.so.12"],
        };
        let advice = package(driver);
        let library = Library::open(Wanted { library: "NVRTC", names, advice }, search)?;
        open_beside(library.path(), "libnvrtc-builtins.so");
        let functions = Functions::load(&library)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: pointers to two local ints that the call writes.
        unsafe { (functions.nvrtcVersion)(&raw mut major, &raw mut minor) };
        Ok(Nvrtc { functions, library, version: (major, minor) })
    }

    /// Its version (major, minor).
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The file from which it was loaded.
    pub(crate) fn path(&self) -> String {
        self.library.path().display().to_string()
    }

    fn too_old_for(&self, arch: &str) -> CudaError {
        let (major, minor) = self.version;
        let package = if major < 13 { "nvidia-cuda-nvrtc-cu12" } else { "nvidia-cuda-nvrtc" };
        let why =
            format!("version {major}.{minor} cannot compile for {arch}: `pip install --upgrade {package}`");
        CudaError::WrongVersion { library: "NVRTC", path: self.path(), why }
    }

    /// Compiles a text to machine code.
    ///
    /// # Errors
    /// Compile errors with the compiler's messages, or if NVRTC does not support the architecture.
    pub(crate) fn compile(&self, name: &str, text: &str, arch: &str) -> Result<Vec<u8>> {
        let failed = |log: String| CudaError::Compile { kernel: name.to_owned(), arch: arch.to_owned(), log };
        let ends_in_zero = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let (source, file) = (ends_in_zero(text)?, ends_in_zero(&format!("{name}.cu"))?);
        let options = [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()];
        let options = [ends_in_zero(&options[0])?, ends_in_zero(&options[1])?];
        let options = [options[0].as_ptr(), options[1].as_ptr()];
        let mut program: Program = 0;
        let none = std::ptr::null();
        // SAFETY: NUL-terminated strings that live until the end of this method; a pointer to a program handle
        // that the call writes; no headers.
        let made = unsafe {
            (self.functions.nvrtcCreateProgram)(
                &raw mut program,
                source.as_ptr(),
                file.as_ptr(),
                0,
                none,
                none,
            )
        };
        if made != 0 {
            return Err(failed(format!("nvrtcCreateProgram: error {made}")));
        }
        // SAFETY: the program created above, and two NUL-terminated options.
        let compiled = unsafe { (self.functions.nvrtcCompileProgram)(program, 2, options.as_ptr()) };
        let Functions {
            nvrtcGetCUBINSize, nvrtcGetCUBIN, nvrtcGetProgramLogSize, nvrtcGetProgramLog, ..
        } = self.functions;
        let result = if compiled == 0 {
            read(program, nvrtcGetCUBINSize, nvrtcGetCUBIN)
                .map_err(|code| failed(format!("nvrtcGetCUBIN: error {code}")))
        } else {
            let log = read(program, nvrtcGetProgramLogSize, nvrtcGetProgramLog).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned();
            let code = format!("nvrtcCompileProgram: error {compiled}");
            // The GPU is newer than the library.
            Err(if log.contains("invalid value for --gpu-architecture") {
                self.too_old_for(arch)
            } else {
                failed(if log.is_empty() { code } else { log })
            })
        };
        // SAFETY: the program created above, which is not used after this.
        unsafe { (self.functions.nvrtcDestroyProgram)(&raw mut program) };
        result
    }
}

/// Reads an output of a program (code or log), after asking for its size.
fn read(
    program: Program,
    size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
) -> std::result::Result<Vec<u8>, c_int> {
    let mut bytes = 0;
    // SAFETY: a live program, and a pointer to a size that the call writes.
    match unsafe { size(program, &raw mut bytes) } {
        0 => {}
        code => return Err(code),
    }
    let mut read = vec![0_u8; bytes];
    // SAFETY: a buffer of the size that the library returned.
    match unsafe { get(program, read.as_mut_ptr().cast()) } {
        0 => Ok(read),
        code => Err(code),
    }
}
