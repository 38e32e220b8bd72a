//! GPU memory as the driver counts it, without a context: NVML ([`Nvml`]).

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use crate::driver::Handle;
use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions};
use crate::search::Search;

functions! {
    /// NVML's functions, with the arguments of `nvml.h`.
    Functions {
        nvmlInit_v2();
        nvmlDeviceGetCount_v2(*mut c_uint);
        nvmlDeviceGetHandleByIndex_v2(c_uint, *mut Handle);
        nvmlDeviceGetHandleByPciBusId_v2(*const c_char, *mut Handle);
        nvmlDeviceGetIndex(Handle, *mut c_uint);
        nvmlDeviceGetMemoryInfo_v2(Handle, *mut Memory);
        nvmlSystemGetDriverVersion(*mut c_char, c_uint);
    }
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Memory {
    version: c_uint,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2`: the size of the structure, and its version.
const MEMORY_VERSION: c_uint = 2 << 24 | 40;

const _: () = assert!(size_of::<Memory>() == 40);

/// The open library.
pub(crate) struct Nvml {
    functions: Functions,
}

/// Makes a call and checks its result.
macro_rules! call {
    ($nvml:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the pointers refer to locals of the method that makes the call, or to a string that ends with
        // zero.
        let code = unsafe { ($nvml.functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err(failed(stringify!($name), code)) }
    }};
}

fn failed(call: &'static str, code: c_int) -> CudaError {
    let name = match code {
        3 => "NVML_ERROR_NOT_SUPPORTED",
        6 => "NVML_ERROR_NOT_FOUND",
        9 => "NVML_ERROR_DRIVER_NOT_LOADED",
        18 => "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        _ => "an error of NVML",
    };
    CudaError::Call { call, name: name.to_owned(), text: format!("code {code}"), is_sticky: false }
}

impl Nvml {
    /// Opens and initializes the library.
    ///
    /// # Errors
    /// If the library is missing, or finds no driver.
    pub(crate) fn open(search: &Search) -> Result<Nvml> {
        let wanted = Wanted {
            library: "NVML",
            names: &["libnvidia-ml.so.1"],
            advice: "it comes with NVIDIA's driver",
        };
        let nvml = Nvml { functions: Functions::load(&Library::open(wanted, search)?)? };
        call!(nvml, nvmlInit_v2())?;
        Ok(nvml)
    }

    /// The driver's version, such as `580.159.04`.
    pub(crate) fn driver(&self) -> Result<String> {
        let mut text = [0 as c_char; 96];
        call!(self, nvmlSystemGetDriverVersion(text.as_mut_ptr(), 95))?;
        // SAFETY: the array is zero where NVML did not write, and NVML was given one byte less than its size.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The memory of each GPU in the machine, by NVML's number; `None` for a GPU whose memory NVML does not
    /// count.
    pub(crate) fn all(&self) -> Result<Vec<Option<Memory>>> {
        let mut count = 0;
        call!(self, nvmlDeviceGetCount_v2(&raw mut count))?;
        Ok((0..count).map(|number| self.memory(number).ok()).collect())
    }

    /// NVML's number of the GPU at a PCI address.
    pub(crate) fn number(&self, pci_bus_id: &str) -> Result<u32> {
        let address = CString::new(pci_bus_id).unwrap_or_default();
        let (mut device, mut number) = (0, 0);
        call!(self, nvmlDeviceGetHandleByPciBusId_v2(address.as_ptr(), &raw mut device))?;
        call!(self, nvmlDeviceGetIndex(device, &raw mut number))?;
        Ok(number)
    }

    /// The memory of a GPU by NVML's number.
    pub(crate) fn memory(&self, number: u32) -> Result<Memory> {
        let mut device = 0;
        call!(self, nvmlDeviceGetHandleByIndex_v2(number, &raw mut device))?;
        let mut memory = Memory { version: MEMORY_VERSION, ..Memory::default() };
        call!(self, nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory))?;
        Ok(memory)
    }
}
