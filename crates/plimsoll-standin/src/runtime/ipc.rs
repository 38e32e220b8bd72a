//! Memory and events that processes share (`cudaIpc…`), as `torch.multiprocessing` does with tensors.
//!
//! A handle names the bytes of an allocation; a process that opens it gets addresses for them. Only the allocating
//! process's memory counts. Values are not shared: reads yield zeros.

use std::ffi::c_uint;

use crate::argument::Out;
use crate::call::calls;
use crate::error::{Failure, Outcome};
use crate::memory::{Kind, memory};
use crate::stream::{EventHandle, streams};

/// The first word of a handle.
const MEMORY: u64 = u64::from_ne_bytes(*b"plimsmem");
const EVENT: u64 = u64::from_ne_bytes(*b"plimsevt");

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`, which are passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Handle([u64; 8]);

calls! { Runtime:
    fn cudaIpcGetMemHandle(handle: Out<Handle>, address: u64) {
        handle.put(shared(address)?)
    }
    fn cudaIpcOpenMemHandle(address: Out<u64>, handle: Handle, _flags: c_uint) {
        address.put(opened(handle)?)
    }
    fn cudaIpcCloseMemHandle(address: u64) {
        memory().unreserve(address)
    }
    fn cudaIpcGetEventHandle(handle: Out<Handle>, _event: EventHandle) {
        handle.put(Handle([EVENT, 0, 0, 0, 0, 0, 0, 0]))
    }
    fn cudaIpcOpenEventHandle(event: Out<EventHandle>, handle: Handle) {
        if handle.0[0] != EVENT {
            return Err(Failure::InvalidHandle);
        }
        event.put(streams().create_event())
    }
}

calls! { Driver:
    fn cuIpcGetMemHandle(handle: Out<Handle>, address: u64) {
        handle.put(shared(address)?)
    }
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: Handle, _flags: c_uint) {
        address.put(opened(handle)?)
    }
    fn cuIpcCloseMemHandle(address: u64) {
        memory().unreserve(address)
    }
    fn cuIpcGetEventHandle(handle: Out<Handle>, _event: EventHandle) {
        handle.put(Handle([EVENT, 0, 0, 0, 0, 0, 0, 0]))
    }
    fn cuIpcOpenEventHandle(event: Out<EventHandle>, handle: Handle) {
        if handle.0[0] != EVENT {
            return Err(Failure::InvalidHandle);
        }
        event.put(streams().create_event())
    }
}

/// The handle of the allocation that contains an address. Handles are equal exactly if their allocations are the same.
fn shared(address: u64) -> Outcome<Handle> {
    let range = memory().find(address).ok_or(Failure::InvalidValue)?;
    let Kind::Device(device) = range.kind else { return Err(Failure::InvalidValue) };
    let process = u64::from(std::process::id());
    Ok(Handle([MEMORY, process, device as u64, range.begin, range.bytes, 0, 0, 0]))
}

/// Addresses for the allocation that a handle names.
fn opened(handle: Handle) -> Outcome<u64> {
    let [kind, _process, _device, _begin, bytes, ..] = handle.0;
    if kind != MEMORY {
        return Err(Failure::InvalidHandle);
    }
    memory().reserve(bytes)
}

const _: () = assert!(size_of::<Handle>() == 64);
