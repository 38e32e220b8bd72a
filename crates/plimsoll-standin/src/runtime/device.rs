//! Devices: count, current device, properties; peer access; errors.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::sync::Mutex;

use crate::argument::{Out, Text, put_text};
use crate::call::{calls, last_error, nothing, take_last_error};
use crate::error::{Failure, Outcome};
use crate::gpu::{self, Form, current_device, set_current_device, setup};
use crate::lock::locked;
use crate::{comm, exchange, version};

calls! { Runtime:
    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.put(c_int::try_from(setup().devices()).unwrap_or(c_int::MAX))
    }
    fn cudaDeviceSynchronize() {
        comm::wait_for_others(exchange::deadline());
        Ok(())
    }
    fn cudaGetDevice(device: Out<c_int>) {
        device.put(c_int::try_from(current_device()?).unwrap_or(c_int::MAX))
    }
    fn cudaSetDevice(device: c_int) {
        set_current_device(device)
    }
    fn cudaInitDevice(device: c_int, _flags: u32, _more: u32) {
        setup().device(device).map(drop)
    }
    fn cudaDriverGetVersion(version: Out<c_int>) {
        version.put(version::DRIVER)
    }
    /// CUDA 13's form.
    fn cudaGetDeviceProperties(properties: Out<u8>, device: c_int) {
        properties.put_bytes(&gpu::structure(setup(), setup().device(device)?, Form::Thirteen))
    }
    /// CUDA 12's form.
    fn cudaGetDeviceProperties_v2(properties: Out<u8>, device: c_int) {
        properties.put_bytes(&gpu::structure(setup(), setup().device(device)?, Form::Twelve))
    }
    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        value.put(gpu::attribute(setup(), setup().device(device)?, attribute))
    }
    fn cudaDeviceGetPCIBusId(address: Out<c_char>, length: c_int, device: c_int) {
        let text = setup().pci(setup().device(device)?);
        put_text(address, usize::try_from(length).unwrap_or(0), &text)
    }
    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, address: Text) {
        let found = setup().at_pci(&address.read()?).ok_or(Failure::InvalidValue)?;
        device.put(c_int::try_from(found).unwrap_or(c_int::MAX))
    }
    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }
    fn cudaDeviceGetLimit(bytes: Out<usize>, _limit: c_int) {
        bytes.put(0)
    }
    fn cudaGetDeviceFlags(flags: Out<u32>) {
        flags.put(0)
    }
    fn cudaDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let two = setup().device(device)? != setup().device(peer)?;
        can.put(c_int::from(two))
    }
    fn cudaDeviceEnablePeerAccess(peer: c_int, _flags: u32) {
        enable_peer(setup().device(peer)?)
    }
    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let pair = (current_device()?, setup().device(peer)?);
        let mut enabled = locked(&PEERS);
        if enabled.remove(&pair) { Ok(()) } else { Err(Failure::InvalidValue) }
    }
}

nothing! { Runtime:
    cudaThreadSynchronize cudaDeviceReset cudaDeviceSetLimit cudaSetDeviceFlags
    cudaDeviceSetCacheConfig cudaDeviceSetSharedMemConfig cudaProfilerStart cudaProfilerStop
}

/// Peer access between devices.
static PEERS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

fn enable_peer(peer: usize) -> Outcome {
    let pair = (current_device()?, peer);
    let mut enabled = locked(&PEERS);
    match (pair.0 == peer, enabled.insert(pair)) {
        (true, _) => Err(Failure::InvalidDevice),
        (false, true) => Ok(()),
        (false, false) => Err(Failure::PeerAccessAlreadyEnabled),
    }
}

/// Returns the thread's last error and clears it.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> c_int {
    take_last_error()
}

/// Returns the thread's last error.
#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> c_int {
    last_error()
}
