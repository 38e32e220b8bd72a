//! Inference mode, and what is not saved in it and under `no_grad`.

use plimsoll_tensor::{
    Category, Device, Error, InferenceMode, Result, SimConfig, Tensor, enable_grad, inference_mode,
    is_grad_enabled, is_inference_mode_enabled, no_grad,
};

const MIB: u64 = 1 << 20;

fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

fn leaf() -> Tensor {
    Tensor::ones(&[2], &Device::cpu()).unwrap().requires_grad_(true).unwrap()
}

#[test]
fn inference_mode_records_nothing_and_ends_with_its_scope() {
    let w = leaf();
    inference_mode(|| {
        assert!(is_inference_mode_enabled() && !is_grad_enabled());
        let y = enable_grad(|| w.exp()).unwrap();
        assert!(y.is_inference() && !y.requires_grad(), "enable_grad does not reach into it");
        inference_mode(|| assert!(is_inference_mode_enabled()));
        assert!(is_inference_mode_enabled());
    });
    assert!(!is_inference_mode_enabled() && is_grad_enabled());
    let guard = InferenceMode::new();
    assert!(is_inference_mode_enabled());
    drop(guard);
    assert!(w.exp().unwrap().requires_grad());
}

#[test]
fn an_inference_tensor_cannot_be_saved_and_the_error_names_the_operation() {
    let (w, x) = (leaf(), inference_mode(|| Tensor::ones(&[2], &Device::cpu())).unwrap());
    assert_eq!(
        text(w.mul(&x)),
        "mul: an inference tensor (made in `inference_mode`) cannot be saved for the backward pass: `copy` it outside \
         of that mode first"
    );
    // A sum saves nothing; a copy is a normal tensor.
    w.add(&x).unwrap().sum().unwrap().backward().unwrap();
    w.mul(x.copy().unwrap()).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [2.0; 2]);
    assert!(matches!(x.requires_grad_(true), Err(Error::Autograd { op: "requires_grad_", .. })));
    assert!(
        matches!(x.narrow(0, 0, 1).unwrap().mul(&w), Err(Error::Autograd { op: "mul", .. })),
        "a view of it"
    );
}

#[test]
fn changes_in_place_are_allowed_inside_and_refused_outside() {
    let x = inference_mode(|| Tensor::ones(&[2], &Device::cpu())).unwrap();
    assert!(text(x.fill_(2.0)).contains("cannot be changed in place outside of that mode"));
    inference_mode(|| x.fill_(2.0)).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [2.0; 2]);
    let normal = Tensor::ones(&[2], &Device::cpu()).unwrap();
    let view = inference_mode(|| normal.narrow(0, 0, 1)).unwrap();
    assert!(!view.is_inference(), "a view of a normal tensor");
    inference_mode(|| normal.fill_(3.0)).unwrap();
    assert_eq!(view.to_vec::<f32>().unwrap(), [3.0]);
}

/// Peak memory of ten layers' forward pass in MiB, above what was allocated before; and the activations in that peak.
fn peak_of_forward(f: impl FnOnce(&dyn Fn() -> Tensor) -> Tensor) -> (u64, u64) {
    let device = Device::sim(SimConfig::new(1 << 30));
    let w = Tensor::ones(&[512, 512], &device).unwrap().requires_grad_(true).unwrap();
    let x = Tensor::ones(&[512, 512], &device).unwrap();
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    let out = f(&|| (0..10).try_fold(x.clone(), |x, _| x.matmul(&w)?.tanh()).unwrap());
    let activations: u64 = device
        .peak_by_category()
        .iter()
        .filter(|&(category, _)| category == Category::Activation)
        .map(|(_, bytes)| bytes)
        .sum();
    drop(out);
    ((device.max_memory_allocated() - before) / MIB, activations / MIB)
}

#[test]
fn neither_no_grad_nor_inference_mode_holds_an_activation() {
    let recorded = peak_of_forward(|forward| forward());
    assert_eq!(recorded, (11, 12), "ten saved outputs and a product; the input is saved as well");
    // A layer's input, its product and its result.
    assert_eq!(peak_of_forward(|forward| no_grad(forward)), (3, 0));
    assert_eq!(peak_of_forward(|forward| inference_mode(forward)), (3, 0));
}
