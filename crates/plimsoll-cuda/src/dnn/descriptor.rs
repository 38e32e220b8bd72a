//! cuDNN's descriptors: creating them, setting attributes, finalizing, reading and destroying them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::graph::Value;
use crate::driver::Handle;
use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions, package};
use crate::search::Search;
use crate::step::Float;

functions! {
    /// The functions, under the names that the library exports.
    Functions {
        cudnnCreate(*mut Handle);
        cudnnDestroy(Handle);
        cudnnSetStream(Handle, Handle);
        cudnnBackendCreateDescriptor(c_int, *mut Handle);
        cudnnBackendDestroyDescriptor(Handle);
        cudnnBackendFinalize(Handle);
        cudnnBackendSetAttribute(Handle, c_int, c_int, i64, *const c_void);
        cudnnBackendGetAttribute(Handle, c_int, c_int, i64, *mut i64, *mut c_void);
        cudnnBackendExecute(Handle, Handle, Handle);
    }
}

/// `cudnnBackendAttributeType_t`.
mod of {
    use std::ffi::c_int;

    pub(super) const HANDLE: c_int = 0;
    pub(super) const TYPE: c_int = 1;
    pub(super) const INTEGER: c_int = 3;
    pub(super) const FLOAT: c_int = 4;
    pub(super) const DOUBLE: c_int = 5;
    pub(super) const POINTER: c_int = 6;
    pub(super) const NUMERICAL_NOTE: c_int = 11;
    pub(super) const DESCRIPTOR: c_int = 15;
}

/// The maximum number of an engine's notes.
const MOST_NOTES: usize = 32;

/// The library's functions.
pub(super) struct Api {
    functions: Arc<Functions>,
    library: Library,
    version: unsafe extern "C" fn() -> usize,
    cuda_version: unsafe extern "C" fn() -> usize,
}

/// A descriptor, destroyed when it is dropped.
pub(super) struct Descriptor {
    handle: Handle,
    functions: Arc<Functions>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor was created by `Api::create` and is destroyed only here.
        unsafe { (self.functions.cudnnBackendDestroyDescriptor)(self.handle) };
    }
}

fn checked(call: &'static str, code: c_int) -> Result<()> {
    let (name, text) = match code {
        0 => return Ok(()),
        1001 => ("CUDNN_STATUS_NOT_INITIALIZED", "the library could not be started"),
        2000..3000 => ("CUDNN_STATUS_BAD_PARAM", "an argument that the library does not accept"),
        3000..4000 => ("CUDNN_STATUS_NOT_SUPPORTED", "not supported for these sizes and types"),
        4000..5000 => ("CUDNN_STATUS_INTERNAL_ERROR", "an internal error of the library"),
        5000..6000 => ("CUDNN_STATUS_EXECUTION_FAILED", "the work could not be queued"),
        _ => ("cuDNN", "an error of the library"),
    };
    Err(CudaError::Call { call, name: format!("{name}, {code}"), text: text.to_owned(), is_sticky: false })
}

impl Api {
    /// # Errors
    /// If the library is missing or lacks a function.
    pub(super) fn open(search: &Search, driver: i32) -> Result<Api> {
        let wanted = Wanted { library: "cuDNN", names: &["libcudnn.so.9"], advice: package(driver) };
        let library = Library::open(wanted, search)?;
        let functions = Arc::new(Functions::load(&library)?);
        let number = |name| {
            let address = library.function(name)?;
            // SAFETY: both functions take no arguments and return a `size_t`; the library is never closed.
            Ok(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address) })
        };
        let (version, cuda_version) = (number(c"cudnnGetVersion")?, number(c"cudnnGetCudartVersion")?);
        Ok(Api { functions, library, version, cuda_version })
    }

    pub(super) fn path(&self) -> String {
        self.library.path().display().to_string()
    }

    /// Its version, such as `91900`, and the version of CUDA for which it was built, such as `13000`.
    pub(super) fn versions(&self) -> (usize, usize) {
        // SAFETY: they take no arguments and return numbers.
        unsafe { ((self.version)(), (self.cuda_version)()) }
    }

    pub(super) fn create_handle(&self) -> Result<Handle> {
        let mut handle = 0;
        // SAFETY: the pointer is to a handle that the call writes.
        checked("cudnnCreate", unsafe { (self.functions.cudnnCreate)(&raw mut handle) })?;
        Ok(handle)
    }

    pub(super) fn destroy_handle(&self, handle: Handle) {
        // SAFETY: a handle from `create_handle`, which its owner no longer uses.
        unsafe { (self.functions.cudnnDestroy)(handle) };
    }

    pub(super) fn set_stream(&self, handle: Handle, stream: Handle) -> Result<()> {
        // SAFETY: a live handle, and a stream in its context.
        checked("cudnnSetStream", unsafe { (self.functions.cudnnSetStream)(handle, stream) })
    }

    /// Makes a descriptor of a kind with these attributes, which may refer to `parts` by index.
    pub(super) fn make(
        &self,
        kind: c_int,
        attributes: &[(c_int, Value)],
        parts: &[Descriptor],
    ) -> Result<Descriptor> {
        let made = self.create(kind)?;
        for (name, value) in attributes {
            self.set(&made, *name, value, parts)?;
        }
        self.finalize(made)
    }

    /// Makes a descriptor with one attribute, which is another descriptor.
    pub(super) fn make_of(
        &self,
        kind: c_int,
        attributes: &[(c_int, Value)],
        name: c_int,
        of: &Descriptor,
    ) -> Result<Descriptor> {
        let made = self.create(kind)?;
        for (name, value) in attributes {
            self.set(&made, *name, value, &[])?;
        }
        self.put(&made, name, of::DESCRIPTOR, &[of.handle])?;
        self.finalize(made)
    }

    fn create(&self, kind: c_int) -> Result<Descriptor> {
        let mut handle = 0;
        // SAFETY: the pointer is to a handle that the call writes.
        let code = unsafe { (self.functions.cudnnBackendCreateDescriptor)(kind, &raw mut handle) };
        checked("cudnnBackendCreateDescriptor", code)?;
        Ok(Descriptor { handle, functions: self.functions.clone() })
    }

    fn finalize(&self, made: Descriptor) -> Result<Descriptor> {
        // SAFETY: a live descriptor that is not finalized yet.
        checked("cudnnBackendFinalize", unsafe { (self.functions.cudnnBackendFinalize)(made.handle) })?;
        Ok(made)
    }

    fn set(&self, to: &Descriptor, name: c_int, value: &Value, parts: &[Descriptor]) -> Result<()> {
        match value {
            Value::Integers(numbers) => self.put(to, name, of::INTEGER, numbers),
            Value::Float(number) => self.put(to, name, of::FLOAT, &[*number]),
            Value::Double(number) => self.put(to, name, of::DOUBLE, &[*number]),
            Value::Type(float) => self.put(to, name, of::TYPE, &[number(*float)]),
            Value::Choice { kind, value } => {
                self.put(to, name, *kind, &[c_int::try_from(*value).unwrap_or(-1)])
            }
            Value::Addresses(addresses) => self.put(to, name, of::POINTER, addresses),
            Value::Handle(handle) => self.put(to, name, of::HANDLE, &[*handle]),
            Value::Descriptors(places) => {
                let handles: Vec<Handle> = places.iter().map(|&place| parts[place].handle).collect();
                self.put(to, name, of::DESCRIPTOR, &handles)
            }
        }
    }

    fn put<T>(&self, to: &Descriptor, name: c_int, kind: c_int, values: &[T]) -> Result<()> {
        let (count, place) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: a live descriptor, and `count` values of the kind's size, which the library copies: `set` pairs kinds
        // with the types of C that cuDNN's documentation names (an enumeration is an int).
        let code = unsafe { (self.functions.cudnnBackendSetAttribute)(to.handle, name, kind, count, place) };
        checked("cudnnBackendSetAttribute", code)
    }

    fn get<T>(&self, from: &Descriptor, name: c_int, kind: c_int, values: &mut [T]) -> Result<usize> {
        let (mut count, capacity) = (0, values.len() as i64);
        // SAFETY: a live, finalized descriptor; room for `capacity` values of the kind's size. cuDNN writes at most
        // `capacity`.
        let code = unsafe {
            (self.functions.cudnnBackendGetAttribute)(
                from.handle,
                name,
                kind,
                capacity,
                &raw mut count,
                values.as_mut_ptr().cast(),
            )
        };
        checked("cudnnBackendGetAttribute", code)?;
        Ok(usize::try_from(count).unwrap_or(0).min(values.len()))
    }

    /// The descriptors in an attribute, up to this number.
    pub(super) fn parts(
        &self,
        of: &Descriptor,
        name: c_int,
        kind: c_int,
        most: usize,
    ) -> Result<Vec<Descriptor>> {
        let mut made = (0..most).map(|_| self.create(kind)).collect::<Result<Vec<Descriptor>>>()?;
        // The library writes to the descriptors behind these handles.
        let mut handles: Vec<Handle> = made.iter().map(|part| part.handle).collect();
        let count = self.get(of, name, of::DESCRIPTOR, &mut handles)?;
        made.truncate(count);
        Ok(made)
    }

    /// The number in an attribute.
    pub(super) fn number(&self, of: &Descriptor, name: c_int) -> Result<i64> {
        let mut values = [0_i64];
        self.get(of, name, of::INTEGER, &mut values)?;
        Ok(values[0])
    }

    /// An engine's notes; none if it has no such attribute.
    pub(super) fn notes(&self, engine: &Descriptor, name: c_int) -> Vec<i64> {
        let mut values = [0 as c_int; MOST_NOTES];
        let count = self.get(engine, name, of::NUMERICAL_NOTE, &mut values).unwrap_or(0);
        values[..count].iter().map(|&note| i64::from(note)).collect()
    }

    /// Queues a plan on the handle's stream.
    pub(super) fn execute(&self, handle: Handle, plan: &Descriptor, pack: &Descriptor) -> Result<()> {
        // SAFETY: live, finalized descriptors of this handle; device addresses are plain numbers on the host.
        let code = unsafe { (self.functions.cudnnBackendExecute)(handle, plan.handle, pack.handle) };
        checked("cudnnBackendExecute", code)
    }
}

/// `cudnnDataType_t`.
fn number(float: Float) -> c_int {
    match float {
        Float::F32 => 0,
        Float::F64 => 1,
        Float::F16 => 2,
        Float::BF16 => 9,
    }
}
