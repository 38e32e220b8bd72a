//! Three devices, of which two are visible, in reverse order: the third first.

use crate::c;
use crate::library;
use crate::test_name;

use crate::library::error;

fn opened(test: &str) -> bool {
    library::opened(test, &[("PLIMSOLL_STANDIN_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")])
}

fn left() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(c!(cudaMemGetInfo(&mut free => *mut usize, &mut total => *mut usize)), 0);
    free
}

#[test]
fn memory_is_counted_by_device() {
    if !opened(test_name!()) {
        return;
    }
    let (mut count, mut address) = (0, 0_u64);
    assert_eq!((c!(cudaGetDeviceCount(&mut count => *mut i32)), count), (0, 2));
    assert_eq!(c!(cudaSetDevice(2 => i32)), error::INVALID_DEVICE);
    let all = left();
    assert_eq!(c!(cudaSetDevice(1 => i32)), 0);
    assert_eq!(c!(cudaMalloc(&mut address => *mut u64, 4 << 20 => usize)), 0);
    assert_eq!(left(), all - (4 << 20));
    assert_eq!(c!(cudaSetDevice(0 => i32)), 0);
    assert_eq!(left(), all);
    assert_eq!(c!(cudaFree(address => u64)), 0, "from any device");
    c!(cudaGetLastError());
}

#[test]
fn a_thread_begins_at_the_first_device() {
    if !opened(test_name!()) {
        return;
    }
    c!(cudaSetDevice(1 => i32));
    let other = std::thread::spawn(|| {
        let mut device = 9;
        c!(cudaGetDevice(&mut device => *mut i32));
        device
    });
    assert_eq!(other.join().unwrap(), 0);
    c!(cudaSetDevice(0 => i32));
}

#[test]
fn access_to_a_peer_is_granted_once() {
    if !opened(test_name!()) {
        return;
    }
    let mut can = [9; 2];
    c!(cudaDeviceCanAccessPeer(&mut can[0] => *mut i32, 0 => i32, 1 => i32));
    c!(cudaDeviceCanAccessPeer(&mut can[1] => *mut i32, 0 => i32, 0 => i32));
    assert_eq!(can, [1, 0]);
    assert_eq!(c!(cudaDeviceEnablePeerAccess(1 => i32, 0 => u32)), 0);
    assert_eq!(c!(cudaDeviceEnablePeerAccess(1 => i32, 0 => u32)), error::PEER_ACCESS_ALREADY_ENABLED);
    c!(cudaGetLastError());
}

#[test]
fn a_device_is_the_same_for_the_runtime_and_for_nvml() {
    if !opened(test_name!()) {
        return;
    }
    let (mut address, mut device, mut number) = ([0_i8; 16], 0_u64, 9_u32);
    let length = address.len() as i32;
    assert_eq!(c!(cudaDeviceGetPCIBusId(address.as_mut_ptr() => *mut i8, length => i32, 0 => i32)), 0);
    assert_eq!(address.map(|byte| byte as u8).as_slice(), b"0000:03:00.0\0\0\0\0");
    assert_eq!(
        c!(nvmlDeviceGetHandleByPciBusId_v2(address.as_ptr() => *const i8, &mut device => *mut u64)),
        0
    );
    assert_eq!(c!(nvmlDeviceGetIndex(device => u64, &mut number => *mut u32)), 0);
    assert_eq!(number, 2);
    // NVML lists all devices of the machine, including those that CUDA_VISIBLE_DEVICES hides from CUDA.
    assert_eq!(c!(nvmlDeviceGetCount_v2(&mut number => *mut u32)), 0);
    assert_eq!(number, 3);
    assert_eq!(c!(nvmlDeviceGetHandleByIndex_v2(1 => u32, &mut device => *mut u64)), 0);
    assert_ne!(c!(nvmlDeviceGetIndex(device => u64, &mut number => *mut u32)), 0);
}
