//! Runs a backward pass on the simulated device and prints the owner and category of every byte at its peak.
//!
//! ```console
//! cargo run -p plimsoll-tensor --example owners
//! ```

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use plimsoll_tensor::{Device, Result, SimConfig, Tensor};

fn main() -> Result<()> {
    let device = Device::sim(SimConfig::like("T4")?);
    let weight = Tensor::randn(&[1024, 1024], &device)?.requires_grad_(true)?;
    let x = Tensor::randn(&[256, 1024], &device)?;
    x.matmul(&weight)?.relu()?.sum()?.backward()?;
    println!(
        "{} bytes allocated at the peak, {} reserved",
        device.max_memory_allocated(),
        device.max_memory_reserved()
    );
    for owner in device.owners_at_peak() {
        println!("{:>10}  {:<12}  {}", owner.bytes, owner.category.name(), owner.label);
    }
    Ok(())
}
