//! The calls of `libcuda` that are used, each with an error check.
//!
//! Note [Calls of the driver]. Device addresses are plain numbers here; the host never dereferences them. A call's
//! other pointers refer to locals of the method that makes the call, or come from a slice together with its length. So
//! one macro makes all calls, and a method is safe unless its comment says what its caller must keep alive.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions};
use crate::search::Search;

/// One of NVIDIA's handles, as a number: a stream, an event, a module, a function, a context, or an allocation of physical
/// memory.
pub(crate) type Handle = usize;

functions! {
    /// The functions, under the names that the library exports.
    Functions {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(c_int, *mut *const c_char);
        cuGetErrorString(c_int, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        cuDeviceTotalMem_v2(*mut usize, c_int);
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuDevicePrimaryCtxRelease_v2(c_int);
        cuDevicePrimaryCtxReset_v2(c_int);
        cuCtxSetCurrent(Handle);
        cuCtxSynchronize();
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut u64, usize);
        cuMemFree_v2(u64);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
        cuMemAddressFree(u64, usize);
        cuMemCreate(*mut u64, usize, *const PhysicalMemory, u64);
        cuMemRelease(u64);
        cuMemMap(u64, usize, usize, u64, u64);
        cuMemRetainAllocationHandle(*mut u64, *const c_void);
        cuMemUnmap(u64, usize);
        cuMemSetAccess(u64, usize, *const Access, usize);
        cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
        cuMemcpyAsync(u64, u64, usize, Handle);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemsetD8Async(u64, u8, usize, Handle);
        cuStreamCreate(*mut Handle, c_uint);
        cuStreamDestroy_v2(Handle);
        cuStreamSynchronize(Handle);
        cuStreamWaitEvent(Handle, Handle, c_uint);
        cuEventCreate(*mut Handle, c_uint);
        cuEventDestroy_v2(Handle);
        cuEventRecord(Handle, Handle);
        cuEventQuery(Handle);
        cuEventSynchronize(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);
        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuFuncSetAttribute(Handle, c_int, c_int);
        cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
        );
    }
}

/// `CUmemAllocationProp`: device memory.
#[repr(C)]
pub(crate) struct PhysicalMemory {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    device: c_int,
    windows: *const c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`: which device may access memory, and how.
#[repr(C)]
pub(crate) struct Access {
    location_kind: c_int,
    device: c_int,
    flags: c_int,
}

const _: () = assert!(size_of::<PhysicalMemory>() == 32 && size_of::<Access>() == 12);

const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;
/// The oldest version of CUDA that a driver must support.
const OLDEST: i32 = 12_000;
/// Errors of a kernel or the device after which every call fails.
const STICKY: [c_int; 11] = [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// The driver.
pub(crate) struct Driver {
    functions: Functions,
    library: Library,
}

/// Makes a call and checks its result. The error contains the name of the call.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: Note [Calls of the driver].
        let code = unsafe { ($driver.functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err($driver.error(stringify!($name), code)) }
    }};
}

impl Driver {
    /// Opens and initializes the driver.
    ///
    /// # Errors
    /// If the driver is missing or finds no device.
    pub(crate) fn open(search: &Search) -> Result<Driver> {
        let library = Library::open(
            Wanted {
                library: "NVIDIA's driver",
                names: &["libcuda.so.1"],
                advice: "install the driver of your GPU (it has libcuda; no toolkit is needed)",
            },
            search,
        )?;
        let driver = Driver { functions: Functions::load(&library)?, library };
        // SAFETY: Note [Calls of the driver].
        match unsafe { (driver.functions.cuInit)(0) } {
            0 => driver.check_version().map(|()| driver),
            NO_DEVICE => Err(CudaError::no_device()),
            code => Err(driver.error("cuInit", code)),
        }
    }

    /// The file from which it was loaded.
    pub(crate) fn path(&self) -> String {
        self.library.path().display().to_string()
    }

    /// The open library, for loading functions that few programs need.
    pub(crate) fn library(&self) -> &Library {
        &self.library
    }

    pub(crate) fn error(&self, call: &'static str, code: c_int) -> CudaError {
        if code == OUT_OF_MEMORY {
            return CudaError::OutOfMemory { call };
        }
        let text = |f: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: Note [Calls of the driver]; the text is a constant in the library.
            unsafe {
                f(code, &raw mut text);
                if text.is_null() {
                    format!("error {code}")
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            }
        };
        let (name, text) = (text(self.functions.cuGetErrorName), text(self.functions.cuGetErrorString));
        CudaError::Call { call, name, text, is_sticky: STICKY.contains(&code) }
    }

    /// Fails if the driver is too old for the CUDA 12 and 13 libraries.
    fn check_version(&self) -> Result<()> {
        match too_old(self.version()?) {
            None => Ok(()),
            Some(why) => Err(CudaError::WrongVersion { library: "NVIDIA's driver", path: self.path(), why }),
        }
    }

    /// The newest version of CUDA that it supports, as 1000 × major + 10 × minor.
    pub(crate) fn version(&self) -> Result<i32> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }

    pub(crate) fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count))?;
        Ok(count.unsigned_abs())
    }

    /// The driver's handle for a device, by its number.
    pub(crate) fn device(&self, ordinal: u32) -> Result<c_int> {
        let count = self.device_count()?;
        if count == 0 {
            return Err(CudaError::no_device());
        }
        let mut device = 0;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        call!(self, cuDeviceGet(&raw mut device, number))?;
        Ok(device)
    }

    pub(crate) fn name(&self, device: c_int) -> Result<String> {
        let mut name = [0 as c_char; 128];
        call!(self, cuDeviceGetName(name.as_mut_ptr(), 127, device))?;
        // SAFETY: the array is zero where the driver did not write, and the driver was given one byte less than its size.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The device's address on the PCI bus, such as `0000:1b:00.0`.
    pub(crate) fn pci_bus_id(&self, device: c_int) -> Result<String> {
        let mut id = [0 as c_char; 32];
        call!(self, cuDeviceGetPCIBusId(id.as_mut_ptr(), 31, device))?;
        // SAFETY: as in `name`.
        Ok(unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().into_owned())
    }

    pub(crate) fn attribute(&self, attribute: c_int, device: c_int) -> Result<c_int> {
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&raw mut value, attribute, device))?;
        Ok(value)
    }

    pub(crate) fn total_bytes(&self, device: c_int) -> Result<u64> {
        let mut bytes = 0;
        call!(self, cuDeviceTotalMem_v2(&raw mut bytes, device))?;
        Ok(bytes as u64)
    }

    pub(crate) fn retain_context(&self, device: c_int) -> Result<Handle> {
        let mut context = 0;
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(context)
    }

    pub(crate) fn release_context(&self, device: c_int) -> Result<()> {
        call!(self, cuDevicePrimaryCtxRelease_v2(device))
    }

    /// Destroys everything in the device's context, regardless of its owner.
    pub(crate) fn reset_context(&self, device: c_int) -> Result<()> {
        call!(self, cuDevicePrimaryCtxReset_v2(device))
    }

    /// Makes a context current on this thread; any thread may call this.
    pub(crate) fn bind(&self, context: Handle) -> Result<()> {
        call!(self, cuCtxSetCurrent(context))
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        call!(self, cuCtxSynchronize())
    }

    /// Free and total bytes.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn alloc(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        call!(self, cuMemAlloc_v2(&raw mut address, size(bytes)))?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<()> {
        call!(self, cuMemFree_v2(address))
    }

    /// Allocates pinned host memory that devices can access at the same address.
    pub(crate) fn host_alloc(&self, bytes: usize) -> Result<*mut u8> {
        const PORTABLE_AND_MAPPED: c_uint = 3;
        let mut address = std::ptr::null_mut();
        call!(self, cuMemHostAlloc(&raw mut address, bytes, PORTABLE_AND_MAPPED))?;
        Ok(address.cast())
    }

    /// Frees memory from [`Driver::host_alloc`], which must no longer be in use.
    pub(crate) fn host_free(&self, address: *mut u8) -> Result<()> {
        call!(self, cuMemFreeHost(address.cast()))
    }

    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        call!(self, cuMemAddressReserve(&raw mut address, size(bytes), 0, 0, 0))?;
        Ok(address)
    }

    pub(crate) fn release(&self, address: u64, bytes: u64) -> Result<()> {
        call!(self, cuMemAddressFree(address, size(bytes)))
    }

    /// Maps new physical memory of a device at a reserved address. The mapping keeps it; unmapping frees it.
    pub(crate) fn map(&self, device: c_int, address: u64, bytes: u64) -> Result<()> {
        let memory = PhysicalMemory {
            kind: PINNED,
            handle_types: 0,
            location_kind: ON_DEVICE,
            device,
            windows: std::ptr::null(),
            flags: [0; 8],
        };
        let mut handle = 0;
        call!(self, cuMemCreate(&raw mut handle, size(bytes), &raw const memory, 0))?;
        let mapped = call!(self, cuMemMap(address, size(bytes), 0, handle, 0));
        call!(self, cuMemRelease(handle)).and(mapped)
    }

    /// Maps the memory that is mapped at `from` at `address` as well. It is freed when both are unmapped.
    pub(crate) fn map_again(&self, from: u64, address: u64, bytes: u64) -> Result<()> {
        let (mut handle, there) = (0, std::ptr::with_exposed_provenance(size(from)));
        call!(self, cuMemRetainAllocationHandle(&raw mut handle, there))?;
        let mapped = call!(self, cuMemMap(address, size(bytes), 0, handle, 0));
        call!(self, cuMemRelease(handle)).and(mapped)
    }

    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        call!(self, cuMemUnmap(address, size(bytes)))
    }

    /// Lets the device read and write a mapped range. This is expensive: call it once for a long range.
    pub(crate) fn set_access(&self, device: c_int, address: u64, bytes: u64) -> Result<()> {
        let access = Access { location_kind: ON_DEVICE, device, flags: READ_WRITE };
        call!(self, cuMemSetAccess(address, size(bytes), &raw const access, 1))
    }

    /// Queues a copy from pinned host memory, which must not change until the copy is done.
    pub(crate) fn copy_to_device(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        call!(self, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream))
    }

    /// Queues a copy to pinned host memory, which nothing else may use until the copy is done.
    pub(crate) fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        call!(self, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream))
    }

    /// Queues a copy between any two addresses that the device can access, in its own memory or in host memory. Host memory must
    /// stay allocated until the copy is done.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: u64, stream: Handle) -> Result<()> {
        call!(self, cuMemcpyAsync(to, from, size(bytes), stream))
    }

    /// Locks the pages of host memory for asynchronous copies. The memory must stay mapped until [`Driver::host_unregister`].
    pub(crate) fn host_register(&self, address: u64, bytes: u64) -> Result<()> {
        const PORTABLE: c_uint = 1;
        let at = std::ptr::with_exposed_provenance_mut(size(address));
        call!(self, cuMemHostRegister_v2(at, size(bytes), PORTABLE))
    }

    pub(crate) fn host_unregister(&self, address: u64) -> Result<()> {
        call!(self, cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(size(address))))
    }

    /// Queues a fill with zeros.
    pub(crate) fn clear(&self, address: u64, bytes: u64, stream: Handle) -> Result<()> {
        call!(self, cuMemsetD8Async(address, 0, size(bytes), stream))
    }

    /// Creates a stream that does not wait for the legacy default stream.
    pub(crate) fn create_stream(&self) -> Result<Handle> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = 0;
        call!(self, cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(stream)
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) -> Result<()> {
        call!(self, cuStreamDestroy_v2(stream))
    }

    pub(crate) fn synchronize_stream(&self, stream: Handle) -> Result<()> {
        call!(self, cuStreamSynchronize(stream))
    }

    pub(crate) fn stream_waits(&self, stream: Handle, event: Handle) -> Result<()> {
        call!(self, cuStreamWaitEvent(stream, event, 0))
    }

    /// Creates an event. An event that measures time costs more.
    pub(crate) fn create_event(&self, measures_time: bool) -> Result<Handle> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = 0;
        call!(self, cuEventCreate(&raw mut event, if measures_time { 0 } else { DISABLE_TIMING }))?;
        Ok(event)
    }

    pub(crate) fn destroy_event(&self, event: Handle) -> Result<()> {
        call!(self, cuEventDestroy_v2(event))
    }

    pub(crate) fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        call!(self, cuEventRecord(event, stream))
    }

    pub(crate) fn is_done(&self, event: Handle) -> Result<bool> {
        // SAFETY: Note [Calls of the driver].
        match unsafe { (self.functions.cuEventQuery)(event) } {
            0 => Ok(true),
            NOT_READY => Ok(false),
            code => Err(self.error("cuEventQuery", code)),
        }
    }

    pub(crate) fn wait(&self, event: Handle) -> Result<()> {
        call!(self, cuEventSynchronize(event))
    }

    /// The time between two completed events, in milliseconds.
    pub(crate) fn elapsed_ms(&self, begin: Handle, end: Handle) -> Result<f32> {
        let mut elapsed = 0.0;
        call!(self, cuEventElapsedTime(&raw mut elapsed, begin, end))?;
        Ok(elapsed)
    }

    /// Loads machine code. Returns its function with this name.
    pub(crate) fn load(&self, cubin: &[u8], name: &CStr) -> Result<Handle> {
        let (mut module, mut function) = (0, 0);
        call!(self, cuModuleLoadData(&raw mut module, cubin.as_ptr().cast()))?;
        let found = call!(self, cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
        if found.is_err() {
            let _ = call!(self, cuModuleUnload(module));
        }
        found.map(|()| function)
    }

    /// Allows each block of a function this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, function: Handle, bytes: u32) -> Result<()> {
        const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        call!(self, cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_BYTES, bytes))
    }

    /// Queues a kernel. Each argument is a pointer to its value; the driver copies the value before it returns.
    pub(crate) fn launch(
        &self,
        function: Handle,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        stream: Handle,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let [x, y, z] = grid;
        let none = std::ptr::null_mut();
        call!(
            self,
            cuLaunchKernel(
                function,
                x,
                y,
                z,
                block,
                1,
                1,
                shared_bytes,
                stream,
                arguments.as_mut_ptr(),
                none
            )
        )
    }
}

/// The error text for a driver that supports CUDA only up to this version; `None` if that version is sufficient.
fn too_old(version: i32) -> Option<String> {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    (version < OLDEST).then(|| {
        format!("it supports CUDA up to {major}.{minor}, but 12.0 is needed: install driver 525 or newer")
    })
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::too_old;

    #[test]
    fn a_driver_of_cuda_11_is_refused_with_the_driver_to_install() {
        let why = too_old(11_080).unwrap();
        assert_eq!(why, "it supports CUDA up to 11.8, but 12.0 is needed: install driver 525 or newer");
        assert_eq!((too_old(12_000), too_old(13_000)), (None, None));
    }
}
