//! A device of one's own: its memory is on the other side of a bus, where the host can only copy to and from. It has three
//! kernels; the host runs all others on copies. It passes the suite that every device must pass, and trains a small network.
//!
//!     cargo run --release -p plimsoll --example own_device

#![allow(clippy::print_stdout, reason = "an example")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::backend::{Addr, Backend, Config, DeviceMemory, Driver, DriverError, Launch, Limit, View};
use plimsoll::nn::{Linear, ReLU};
use plimsoll::prelude::*;
use plimsoll::suite::Case;
use plimsoll::{
    DeviceProperties, In, Kernel, MemoryInfo, OPERATORS, Out, Result, StreamId, check_backend, memory,
};

const CAPACITY: u64 = 1 << 30;

/// The memory behind the bus: segments by their first address. No address of the host is one of these.
#[derive(Clone, Default)]
struct Bus(Arc<Mutex<BTreeMap<u64, Vec<u8>>>>);

impl Bus {
    /// Calls `f` with the bytes of the device from an address on.
    fn at<T>(&self, address: u64, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut segments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, bytes) = segments.range_mut(..=address).next_back().expect("an address of the device");
        f(&mut bytes[(address - first) as usize..])
    }

    fn read(&self, address: u64, to: &mut [u8]) {
        self.at(address, |bytes| to.copy_from_slice(&bytes[..to.len()]));
    }

    fn write(&self, address: u64, from: &[u8]) {
        self.at(address, |bytes| bytes[..from.len()].copy_from_slice(from));
    }

    fn floats(&self, view: &View<'_>) -> Vec<f32> {
        let mut bytes = vec![0; view.span_bytes() as usize];
        self.read(view.first_address(), &mut bytes);
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }
}

/// Gives segments of memory to the allocator.
struct Segments {
    bus: Bus,
    next: u64,
}

impl Driver for Segments {
    fn segment_alloc(&mut self, bytes: u64) -> std::result::Result<Addr, DriverError> {
        let address = self.next;
        self.next += bytes.next_multiple_of(2 << 20);
        self.bus.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address, vec![0; bytes as usize]);
        Ok(Addr(address))
    }

    fn segment_free(&mut self, address: Addr) -> std::result::Result<(), DriverError> {
        let mut segments = self.bus.0.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = segments.remove(&address.0);
        freed.map(drop).ok_or_else(|| DriverError::Failed(format!("no segment begins at {:#x}", address.0)))
    }

    fn memory(&self) -> MemoryInfo {
        let segments = self.bus.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used: usize = segments.values().map(Vec::len).sum();
        MemoryInfo { free_bytes: CAPACITY.saturating_sub(used as u64), total_bytes: CAPACITY }
    }
}

/// The device.
pub(crate) struct Own {
    bus: Bus,
    memory: DeviceMemory,
    properties: DeviceProperties,
    /// How many operators ran here, and how many on the host.
    own: Arc<[AtomicU64; 2]>,
}

impl Own {
    /// A device that counts its operators.
    pub(crate) fn new(own: Arc<[AtomicU64; 2]>) -> Own {
        let bus = Bus::default();
        // No address of a process is this high.
        let segments = Segments { bus: bus.clone(), next: 1 << 56 };
        let memory = DeviceMemory::new(Config::default(), Limit::new(segments, CAPACITY));
        Own { bus, memory, properties: DeviceProperties::of_memory("own", CAPACITY), own }
    }

    /// Runs a kernel of this device's own, if it has one for these tensors. Returns whether it has.
    fn run_here(&self, name: &str, launch: &Launch<'_>) -> bool {
        let ([out], ins) = (launch.outs, launch.ins) else { return false };
        if out.layout().is_empty() {
            return true;
        }
        let is_plain = |view: &View<'_>| {
            view.dtype() == DType::F32
                && view.layout().is_contiguous()
                && view.layout().shape() == out.layout().shape()
        };
        if !ins.iter().chain([out]).all(is_plain) {
            return false;
        }
        let values: Vec<f32> = match (name, ins) {
            ("add", [a, b]) => {
                self.bus.floats(a).iter().zip(self.bus.floats(b)).map(|(a, b)| a + b).collect()
            }
            ("mul", [a, b]) => {
                self.bus.floats(a).iter().zip(self.bus.floats(b)).map(|(a, b)| a * b).collect()
            }
            ("relu", [x]) => self.bus.floats(x).iter().map(|x| if *x < 0.0 { 0.0 } else { *x }).collect(),
            _ => return false,
        };
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
        self.bus.write(out.first_address(), &bytes);
        true
    }
}

impl Backend for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    fn has_values(&self) -> bool {
        true
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()> {
        if self.run_here(kernel.name(), &launch) {
            self.own[0].fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.own[1].fetch_add(1, Ordering::Relaxed);
        launch.run_on_host(
            kernel,
            |address, to| {
                self.bus.read(address, to);
                Ok(())
            },
            |address, from| {
                self.bus.write(address, from);
                Ok(())
            },
        )
    }

    fn write(&self, to: View<'_>, bytes: &[u8], _: StreamId) -> Result<()> {
        self.bus.write(to.first_address(), bytes);
        Ok(())
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, _: StreamId) -> Result<()> {
        let start = bytes.len();
        bytes.resize(start + from.span_bytes() as usize, 0);
        self.bus.read(from.first_address(), &mut bytes[start..]);
        Ok(())
    }

    fn copy_in(&self, from: In<'_>, to: View<'_>, _: StreamId) -> Result<()> {
        self.bus.write(to.first_address(), from.bytes());
        Ok(())
    }

    fn copy_out(&self, from: View<'_>, to: Out<'_>, _: StreamId) -> Result<()> {
        self.bus.read(from.first_address(), to.bytes());
        Ok(())
    }
}

fn main() -> Result<()> {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let device = Device::with_backend(Own::new(counts.clone()));
    let cases: Vec<Case> = OPERATORS.iter().flat_map(|(_, cases)| cases()).collect();
    let found = check_backend(&cases, &device);
    found.differ.iter().for_each(|why| println!("{why}"));
    println!("{} checks agree with the host, {} differ", found.agree, found.differ.len());

    let model = Sequential::new(&Scope::new(&device, 1))
        .add("fc1", |s| Linear::new(s, 8, 64))?
        .add("relu", ReLU::new)?
        .add("fc2", |s| Linear::new(s, 64, 1))?;
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-2, ..AdamWOptions::default() });
    let x = Tensor::randn(&[256, 8], &device)?;
    let y = x.square()?.sum_dims(&[1])?.unsqueeze(1)?;
    for step in 0..200 {
        let loss = model.forward(&x)?.mse_loss(&y)?;
        adamw.zero_grad();
        loss.backward()?;
        adamw.step()?;
        if step % 50 == 49 {
            println!("step {:>3}  loss {:.4}", step + 1, loss.item::<f32>()?);
        }
    }
    println!("{}", memory::Report::of(&device));
    let [own, host] = [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
    println!("{own} operators ran on the device, {host} on the host");
    Ok(())
}
