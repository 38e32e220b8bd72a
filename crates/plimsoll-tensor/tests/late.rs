//! The late device gives bit-identical results to the host's: for every operator, and for user-defined ones.

use std::time::Duration;

use plimsoll_tensor::suite::{Case, check_on};
use plimsoll_tensor::testing::LateConfig;
use plimsoll_tensor::{
    CpuCall, Device, Error, Kernel, Meta, OPERATORS, Operator, Output, Outputs, Result, Tensor, call,
};

#[test]
fn every_operator_gives_the_hosts_bits_later() {
    let longest_delay = Duration::from_micros(20);
    let device = Device::late(LateConfig { seed: 3, longest_delay, ..LateConfig::default() });
    let cases: Vec<Case> = OPERATORS.iter().flat_map(|(_, cases)| cases()).collect();
    let failures: Vec<String> = cases.iter().filter_map(|case| check_on(case, &device).err()).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert_eq!(device.memory_allocated(), 0);
}

/// A user-defined operator whose kernel panics, or keeps a tensor.
#[derive(Debug)]
struct Users {
    kept: Option<Tensor>,
}

impl Kernel for Users {
    fn name(&self) -> &'static str {
        "users"
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([_], [out]) = call.split();
        assert!(self.kept.is_some(), "nothing is kept");
        out.elements::<f32>().fill(5.0);
        Ok(())
    }
}

impl Operator for Users {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok([Output::new(ins[0].shape(), ins[0].dtype)].into_iter().collect())
    }
}

#[test]
fn a_kernel_that_panics_is_a_late_error_and_the_stream_goes_on() {
    let device = Device::late(LateConfig::default());
    let x = Tensor::ones(&[4], &device).unwrap();
    let y = call(Users { kept: None }, &[&x]).unwrap().remove(0);
    let error = device.synchronize().unwrap_err();
    assert_eq!(
        error.to_string(),
        "late: users, queued by an earlier call, failed: users: the kernel panicked: nothing is kept"
    );
    assert!(matches!(error, Error::Late { op: "users", .. }));
    drop(y);
    assert_eq!(x.add_scalar(1.0).unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
    assert_eq!(device.memory_allocated(), 512);
}

#[test]
fn a_kernel_that_owns_a_tensor_frees_it_after_it_has_run() {
    let device = Device::late(LateConfig::default());
    let x = Tensor::ones(&[4], &device).unwrap();
    let kept = Some(Tensor::ones(&[1024], &device).unwrap());
    let y = call(Users { kept }, &[&x]).unwrap().remove(0);
    device.empty_cache().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [5.0; 4]);
    drop(y);
    device.synchronize().unwrap();
    assert_eq!(device.memory_allocated(), 512, "the kernel's tensor is gone");
}
