//! Devices of back ends outside of the library.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use plimsoll::backend::{Backend, DeviceMemory, Launch, View};
use plimsoll::suite::{Case, Comparison};
use plimsoll::testing::LateConfig;
use plimsoll::{
    Device, DeviceProperties, In, Kernel, OPERATORS, Out, Result, StreamId, Tensor, check_backend,
    with_stream,
};

use own_device::Own;

#[path = "../examples/own_device.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod own_device;

fn own() -> Own {
    Own::new(Arc::new([const { AtomicU64::new(0) }; 2]))
}

/// The cases of operators in these files; of all with an empty list.
fn checked(device: &Device, files: &[&str]) -> Comparison {
    let chosen = OPERATORS.iter().filter(|(file, _)| files.is_empty() || files.contains(file));
    let cases: Vec<Case> = chosen.flat_map(|(_, cases)| cases()).collect();
    assert!(cases.len() >= files.len());
    check_backend(&cases, device)
}

#[test]
fn a_device_of_ones_own_passes_all_checks() {
    let found = checked(&Device::with_backend(own()), &[]);
    assert!(found.differ.is_empty(), "{:#?}", found.differ);
    assert!(found.missing.is_empty() && found.agree > 2000, "{found:?}");
}

/// A back end with a kernel that forgets to write its output.
struct Forgets(Own);

impl Backend for Forgets {
    fn name(&self) -> &str {
        "forgets"
    }

    fn memory(&self) -> &DeviceMemory {
        self.0.memory()
    }

    fn has_values(&self) -> bool {
        true
    }

    fn properties(&self) -> &DeviceProperties {
        self.0.properties()
    }

    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()> {
        if kernel.name() == "softmax" { Ok(()) } else { self.0.run(kernel, launch) }
    }

    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()> {
        self.0.write(to, bytes, on)
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()> {
        self.0.read(from, bytes, on)
    }

    fn copy_in(&self, from: In<'_>, to: View<'_>, on: StreamId) -> Result<()> {
        self.0.copy_in(from, to, on)
    }

    fn copy_out(&self, _: View<'_>, _: Out<'_>, _: StreamId) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_checks_find_a_kernel_that_does_nothing_and_a_copy_that_does_not() -> Result<()> {
    let device = Device::with_backend(Forgets(own()));
    let found = checked(&device, &["softmax"]);
    assert!(found.differ.iter().any(|why| why.contains("softmax")), "{:#?}", found.differ);
    // Offloaded values come back as they left.
    let x = Tensor::ones(&[1024], &device)?;
    x.offload()?;
    assert_ne!(x.to_vec::<f32>()?, [1.0; 1024]);
    Ok(())
}

#[test]
fn a_device_with_queues_passes_the_checks_of_streams_and_captures() -> Result<()> {
    let device = Device::late(LateConfig::default());
    let found = checked(&device, &["matmul", "softmax"]);
    assert!(found.differ.is_empty(), "{:#?}", found.differ);
    let side = plimsoll::Stream::new(&device);
    assert_eq!(with_stream(&side, || Tensor::ones(&[2], &device))?.stream(), side);
    Ok(())
}
