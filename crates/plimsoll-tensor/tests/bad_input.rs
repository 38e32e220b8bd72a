//! Bad input of every kind: a typed error names operator and owner, nothing leaks, and the next operation works.

use plimsoll_tensor::autograd::saved_tensors_hooks;
use plimsoll_tensor::label::{Span, intern};
use plimsoll_tensor::testing::LateConfig;
use plimsoll_tensor::{
    CpuConfig, DType, Device, Error, Function, FunctionBackward, Grads, Result, Save, SimConfig, Tensor,
    Tensors, apply,
};

fn devices() -> [Device; 3] {
    let sim = Device::sim(SimConfig::new(1 << 30));
    [Device::cpu_with(CpuConfig::default()), Device::late(LateConfig::default()), sim]
}

/// Runs `f` as the layer `fc1` on every device. Checks that the error names the operator and the layer, that no memory leaks,
/// and that the next operation works.
fn refused(op: &str, expected: fn(&Error) -> bool, f: impl Fn(&Device) -> Result<Tensor>) {
    for device in devices() {
        let before = device.memory_allocated();
        let error = {
            let _layer = Span::layer(intern("fc1"));
            // A device that computes later returns its error from the next call that looks for one.
            f(&device).and_then(|_| device.synchronize()).expect_err(op)
        };
        let text = error.to_string();
        let inner = match error.without_layer() {
            Error::Late { cause, .. } => cause.without_layer(),
            inner => inner,
        };
        assert!(expected(inner), "{op} on {device}: {error:?}");
        assert!(text.contains(op) && text.contains("fc1"), "{op} on {device}: {text}");
        let _ = device.synchronize();
        assert_eq!(device.memory_allocated(), before, "{op} on {device}: something leaked");
        let next = Tensor::ones(&[2], &device).unwrap().add_scalar(1.0).unwrap();
        if device.has_values() {
            assert_eq!(next.to_vec::<f32>().unwrap(), [2.0; 2]);
        }
    }
}

#[test]
fn tensors_of_two_devices() {
    let expected = |error: &Error| matches!(error, Error::Device { .. });
    let other = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[2], &other).unwrap();
    refused("mul", expected, |device| Tensor::ones(&[2], device)?.mul(&x));
    refused("cat", expected, |device| Tensor::cat(&[&Tensor::ones(&[2], device)?, &x], 0));
    refused("copy_", expected, |device| {
        let y = Tensor::ones(&[2], device)?;
        y.copy_(&x)?;
        Ok(y)
    });
}

#[test]
fn types_without_a_promotion() {
    let expected = |error: &Error| matches!(error, Error::DType { .. });
    refused("matmul", expected, |device| {
        let x = Tensor::ones(&[2, 2], device)?;
        x.matmul(&x.double()?)
    });
    refused("sub", expected, |device| {
        let truth = Tensor::full(&[2], 1.0, DType::Bool, device)?;
        truth.sub(&truth)
    });
    refused(
        "add_",
        |error| matches!(error, Error::Argument { .. }),
        |device| {
            let whole = Tensor::arange(2, device)?;
            whole.add_(&Tensor::ones(&[2], device)?)?;
            Ok(whole)
        },
    );
}

#[test]
fn shapes_that_do_not_fit() {
    let expected = |error: &Error| matches!(error, Error::Shape { .. });
    refused("add", expected, |device| Tensor::ones(&[2, 3], device)?.add(&Tensor::ones(&[4], device)?));
    refused("matmul", expected, |device| {
        let x = Tensor::ones(&[2, 3], device)?;
        x.matmul(&x)
    });
    refused("linear", expected, |device| {
        Tensor::ones(&[1, 4], device)?.linear(&Tensor::ones(&[2, 3], device)?, None)
    });
    refused("expand", expected, |device| Tensor::ones(&[2], device)?.expand(&[3]));
}

#[test]
fn an_index_out_of_range() {
    for device in devices().into_iter().filter(Device::has_values) {
        let x = Tensor::ones(&[3, 2], &device).unwrap();
        let index = Tensor::from_slice(&[0i64, 3], &[2], &device).unwrap();
        let rows = index.unsqueeze(1).unwrap();
        device.synchronize().unwrap();
        let before = device.memory_allocated();
        for op in ["index_select", "gather", "scatter"] {
            let error = {
                let _layer = Span::layer(intern("embed"));
                let out = match op {
                    "index_select" => x.index_select(0, &index),
                    "gather" => x.gather(0, &rows),
                    _ => x.scatter(0, &rows, &x),
                };
                out.and_then(|_| device.synchronize()).unwrap_err().to_string()
            };
            assert!(error.contains(op) && error.contains("embed") && error.contains('3'), "{error}");
            assert_eq!(device.memory_allocated(), before, "{op} on {device}");
            assert_eq!(x.sum().unwrap().item::<f32>().unwrap(), 6.0);
        }
    }
}

/// The identity, with various faults.
#[derive(Clone, Copy)]
enum Faulty {
    ForwardFails,
    ForwardPanics,
    BackwardFails,
    BackwardPanics,
    WrongShape,
    WrongNumber,
}

impl Function for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let out = ins[0].copy()?;
        save.tensor(&out)?;
        match self {
            Faulty::ForwardFails => Err(Error::argument("faulty", "not this one")),
            Faulty::ForwardPanics => panic!("in its forward pass"),
            _ => Ok(vec![out].into()),
        }
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let grad = at.grad(0).unwrap().mul(&at.saved(0)?)?;
        match self {
            Faulty::BackwardFails => Err(Error::argument("faulty", "not back")),
            Faulty::BackwardPanics => panic!("on its way back"),
            Faulty::WrongShape => Ok(vec![Some(grad.unsqueeze(0)?)].into()),
            _ => Ok(vec![Some(grad.clone()), Some(grad)].into()),
        }
    }
}

#[test]
fn a_function_that_fails_or_panics_or_gives_a_gradient_of_the_wrong_shape() {
    use Faulty::{BackwardFails, BackwardPanics, ForwardFails, ForwardPanics, WrongNumber, WrongShape};
    let faults = [ForwardFails, ForwardPanics, BackwardFails, BackwardPanics, WrongShape, WrongNumber];
    for (fault, text) in faults.into_iter().zip([
        "not this one",
        "`forward` panicked: in its forward pass",
        "not back",
        "`backward` panicked: on its way back",
        "returned a gradient [1, 4] of float32 for input 0, which is [4] of float32",
        "returned 2 gradients for 1 inputs",
    ]) {
        let expected = |error: &Error| matches!(error, Error::Argument { .. } | Error::Autograd { .. });
        refused("faulty", expected, |device| {
            let x = Tensor::ones(&[4], device)?.requires_grad_(true)?;
            let error = apply(fault, &[&x.exp()?]).and_then(|y| y[0].sum()?.backward()).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
            assert!(x.grad().is_none());
            x.square()?.sum()?.backward()?;
            assert!(x.grad().is_some());
            Err(error)
        });
    }
}

#[test]
fn a_hook_that_fails_or_panics() {
    type Hook = fn(&Tensor) -> Result<Option<Tensor>>;
    let fails: Hook = |_| Err(Error::argument("mine", "not today"));
    let panics: Hook = |_| panic!("not today");
    let shrinks: Hook = |grad| Ok(Some(grad.narrow(0, 0, 1)?));
    for hook in [fails, panics, shrinks] {
        // On the output of an operation, and on a leaf.
        refused(
            "exp",
            |error| matches!(error, Error::Hook { op: "exp", .. }),
            |device| {
                let y = Tensor::ones(&[4], device)?.requires_grad_(true)?.exp()?;
                let _handle = y.register_hook(hook)?;
                y.sum()?.backward()?;
                Ok(y)
            },
        );
        refused(
            "accumulate_grad",
            |error| matches!(error, Error::Hook { op: "accumulate_grad", .. }),
            |device| {
                let x = Tensor::ones(&[4], device)?.requires_grad_(true)?;
                let _handle = x.register_hook(hook)?;
                x.exp()?.sum()?.backward()?;
                Ok(x)
            },
        );
    }
    refused(
        "accumulate_grad",
        |error| matches!(error, Error::Hook { .. }),
        |device| {
            let x = Tensor::ones(&[4], device)?.requires_grad_(true)?;
            x.register_post_accumulate_grad_hook(|_| panic!("not today"))?;
            x.exp()?.sum()?.backward()?;
            Ok(x)
        },
    );
}

#[test]
fn a_hook_on_saved_tensors_that_fails_or_panics() {
    let expected = |error: &Error| matches!(error, Error::Argument { .. });
    let packs: [fn(&Tensor) -> Result<Tensor>; 2] =
        [|_| Err(Error::argument("saved_tensors_hooks", "full")), |_| panic!("full")];
    for pack in packs {
        refused("saved_tensors_hooks", expected, |device| {
            let x = Tensor::ones(&[4], device)?.requires_grad_(true)?;
            saved_tensors_hooks(pack, |packed: &Tensor| Ok(packed.clone()), || x.exp())
        });
        refused("saved_tensors_hooks", expected, |device| {
            let x = Tensor::ones(&[4], device)?.requires_grad_(true)?;
            let y = saved_tensors_hooks(
                |saved: &Tensor| Ok(saved.clone()),
                move |packed: &Tensor| pack(packed),
                || x.exp(),
            )?;
            y.sum()?.backward()?;
            Ok(y)
        });
    }
}

#[test]
fn bytes_that_cannot_come_back() {
    refused(
        "sum",
        |error| matches!(error, Error::NotResident { .. }),
        |device| {
            let x = Tensor::ones(&[4], device)?;
            x.evict_with(|| Err(Error::argument("users", "lost")))?;
            x.sum()
        },
    );
    refused(
        "sum",
        |error| matches!(error, Error::NotResident { .. }),
        |device| {
            let x = Tensor::ones(&[4], device)?;
            x.evict_with(|| panic!("lost"))?;
            x.sum()
        },
    );
}
