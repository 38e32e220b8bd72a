//! In-place and `out` forms: bit-identical to the out-of-place forms, in any layout, without allocating memory for the result.

use plimsoll_tensor::{DType, Device, Error, Result, SimConfig, Tensor, into_out, no_grad};

type Out = fn(&Tensor) -> Result<Tensor>;
type InPlace = fn(&Tensor) -> Result<()>;

/// Each function with its in-place form.
const UNARY: &[(&str, Out, InPlace)] = &[
    ("relu", Tensor::relu, Tensor::relu_),
    ("exp", Tensor::exp, Tensor::exp_),
    ("log", Tensor::log, Tensor::log_),
    ("neg", Tensor::neg, Tensor::neg_),
    ("sqrt", Tensor::sqrt, Tensor::sqrt_),
    ("square", Tensor::square, Tensor::square_),
    ("reciprocal", Tensor::reciprocal, Tensor::reciprocal_),
    ("tanh", Tensor::tanh, Tensor::tanh_),
    ("sigmoid", Tensor::sigmoid, Tensor::sigmoid_),
    ("abs", Tensor::abs, Tensor::abs_),
    ("sin", Tensor::sin, Tensor::sin_),
    ("cos", Tensor::cos, Tensor::cos_),
    ("floor", Tensor::floor, Tensor::floor_),
    ("ceil", Tensor::ceil, Tensor::ceil_),
    ("round", Tensor::round, Tensor::round_),
    ("rsqrt", Tensor::rsqrt, Tensor::rsqrt_),
    ("silu", Tensor::silu, Tensor::silu_),
    ("clamp", |x| x.clamp(0.7, 1.2), |x| x.clamp_(0.7, 1.2)),
    ("leaky_relu", |x| x.leaky_relu(0.1), |x| x.leaky_relu_(0.1)),
    ("pow", |x| x.pow_scalar(1.5), |x| x.pow_scalar_(1.5)),
    ("add", |x| x.add_scalar(0.25), |x| x.add_scalar_(0.25)),
    ("sub", |x| x.sub_scalar(2), |x| x.sub_scalar_(2)),
    ("mul", |x| x.mul_scalar(-1.5), |x| x.mul_scalar_(-1.5)),
    ("div", |x| x.div_scalar(4), |x| x.div_scalar_(4)),
];

fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Positive numbers: dense, transposed, and every second column.
fn forms(dtype: DType) -> [Tensor; 3] {
    let device = Device::cpu();
    let x = Tensor::linspace(0.3, 2.5, 24, &device).unwrap().reshape(&[4, 6]).unwrap();
    let make = || x.to_dtype(dtype).unwrap().copy().unwrap();
    [make(), make().transpose(0, 1).unwrap(), make().slice(1, 0..6, 2).unwrap()]
}

#[test]
fn every_function_in_place_gives_the_bits_of_the_function() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (name, out, in_place) in UNARY {
            for x in forms(dtype) {
                let expected = values(&out(&x).unwrap());
                in_place(&x).unwrap();
                assert_eq!(values(&x), expected, "{name}_ of {dtype} with strides {:?}", x.strides());
            }
        }
    }
}

#[test]
fn whole_numbers_change_in_place_and_hold_no_fractions() {
    let x = Tensor::from_slice(&[-2i64, 0, 3], &[3], &Device::cpu()).unwrap();
    x.abs_().unwrap();
    x.mul_scalar_(3).unwrap();
    x.clamp_(1.0, 7.0).unwrap();
    let error = x.clamp_(0.5, 7.0).unwrap_err().to_string();
    assert!(error.contains("bounds of 0.5 and 7"), "{error}");
    assert_eq!(x.to_vec::<i64>().unwrap(), [6, 1, 7]);
    for result in [x.exp_(), x.mul_scalar_(0.5), x.div_(&x), x.div_scalar_(2)] {
        let text = result.unwrap_err().to_string();
        assert!(text.ends_with("which a tensor of int64 cannot hold: convert one first"), "{text}");
    }
    assert_eq!(x.to_vec::<i64>().unwrap(), [6, 1, 7], "nothing changed");
}

#[test]
fn pairs_in_place_give_the_bits_of_the_pair() {
    type Both = (fn(&Tensor, &Tensor) -> Result<Tensor>, fn(&Tensor, &Tensor) -> Result<()>);
    let pairs: [Both; 4] = [
        (|a, b| a.sub(b), |a, b| a.sub_(b)),
        (|a, b| a.mul(b), |a, b| a.mul_(b)),
        (|a, b| a.div(b), |a, b| a.div_(b)),
        (|a, b| a.pow(b), |a, b| a.pow_(b)),
    ];
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (out, in_place) in pairs {
            for x in forms(dtype) {
                let row = x.select(0, 1).unwrap().copy().unwrap();
                let expected = values(&out(&x, &row).unwrap());
                in_place(&x, &row).unwrap();
                assert_eq!(values(&x), expected, "{dtype}, strides {:?}", x.strides());
            }
        }
    }
    let x = forms(DType::F32)[0].clone();
    assert!(matches!(
        x.sub_(Tensor::ones(&[2, 4, 6], x.device()).unwrap()),
        Err(Error::Shape { op: "sub_", .. })
    ));
}

#[test]
fn elements_are_put_in_place_at_an_index_and_under_a_mask() {
    let device = Device::cpu();
    let index = Tensor::from_slice(&[2i64, 0], &[2], &device).unwrap();
    let wide = index.reshape(&[1, 2]).unwrap().expand(&[4, 2]).unwrap();
    let src = Tensor::full(&[4, 2], 9.0, DType::F32, &device).unwrap();
    type Put = (
        fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Result<Tensor>,
        fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Result<()>,
    );
    let puts: [Put; 6] = [
        (|x, _, w, s| x.scatter(1, w, s), |x, _, w, s| x.scatter_(1, w, s)),
        (|x, _, w, s| x.scatter_add(1, w, s), |x, _, w, s| x.scatter_add_(1, w, s)),
        (|x, _, w, _| x.scatter_value(1, w, 7.0), |x, _, w, _| x.scatter_value_(1, w, 7.0)),
        (|x, i, _, s| x.index_add(1, i, s), |x, i, _, s| x.index_add_(1, i, s)),
        (|x, i, _, s| x.index_copy(1, i, s), |x, i, _, s| x.index_copy_(1, i, s)),
        (|x, i, _, _| x.index_fill(1, i, 7.0), |x, i, _, _| x.index_fill_(1, i, 7.0)),
    ];
    for (out, in_place) in puts {
        let x = forms(DType::F32)[0].clone();
        for x in [x.clone(), x.slice(1, 0..6, 2).unwrap()] {
            let expected = values(&out(&x, &index, &wide, &src).unwrap());
            in_place(&x, &index, &wide, &src).unwrap();
            assert_eq!(values(&x), expected);
        }
    }
    for x in forms(DType::BF16) {
        let mask = x.gt_scalar(1.5).unwrap();
        let expected = values(&x.masked_fill(&mask, -1.0).unwrap());
        x.masked_fill_(&mask, -1.0).unwrap();
        assert_eq!(values(&x), expected);
    }
    // An index out of range is refused, and changes nothing.
    let x = Tensor::zeros(&[3], &device).unwrap();
    assert!(x.index_add_(0, index.add_scalar(1).unwrap(), Tensor::ones(&[2], &device).unwrap()).is_err());
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0; 3], "an index out of range changes nothing");
}

#[test]
fn several_indices_are_written_at_once() {
    let device = Device::cpu();
    let x = Tensor::zeros(&[2, 3, 2], &device).unwrap();
    let (i, j) = (
        Tensor::from_slice(&[1i64, 0], &[2], &device).unwrap(),
        Tensor::from_slice(&[-1i64, -1], &[2], &device).unwrap(),
    );
    x.index_put_(&[Some(&i), Some(&j)], Tensor::from_slice(&[1.0f32, 2.0], &[2], &device).unwrap(), false)
        .unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0., 0., 0., 0., 1., 2., 0., 0., 0., 0., 1., 2.]);
    x.index_put_(&[None, Some(&j)], Tensor::ones(&[], &device).unwrap(), true).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0., 0., 0., 0., 3., 4., 0., 0., 0., 0., 3., 4.]);
    let apart = Tensor::zeros(&[2, 2, 2], &device).unwrap();
    apart.index_put_(&[Some(&i), None, Some(&i)], Tensor::ones(&[2, 2], &device).unwrap(), false).unwrap();
    assert_eq!(apart.to_vec::<f32>().unwrap(), [1., 0., 1., 0., 0., 1., 0., 1.]);
    x.index_put_(
        &[Some(&x.gt_scalar(3).unwrap())],
        Tensor::full(&[], -1.0, DType::F32, &device).unwrap(),
        false,
    )
    .unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0., 0., 0., 0., 3., -1., 0., 0., 0., 0., 3., -1.]);
    let outside = Tensor::from_slice(&[3i64], &[1], &device).unwrap();
    let text = x.index(&[None, Some(&outside)]).unwrap_err().to_string();
    assert_eq!(text, "index: index 3 is out of range for dimension 1 of size 3");
}

#[test]
fn a_result_goes_into_memory_that_is_there() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let [a, b, out] = [(); 3].map(|()| Tensor::zeros(&[256, 256], &device).unwrap());
    let (before, address) = (device.memory_allocated(), out.storage_ptr());
    device.reset_peak_memory_stats();
    into_out(&out, || a.add(&b)).unwrap();
    into_out(&out, || a.matmul(&b)).unwrap();
    into_out(&out, || a.exp()).unwrap();
    into_out(&out, || a.softmax(-1)).unwrap();
    assert_eq!((device.max_memory_allocated(), out.storage_ptr()), (before, address));

    let device = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device).unwrap();
    let out = Tensor::zeros(&[2, 2], &device).unwrap();
    into_out(&out, || x.matmul(&x)).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [7., 10., 15., 22.]);
    into_out(&out, || out.add(&x)).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [8., 12., 18., 26.], "an operand is read before it is written");
    into_out(&out.transpose(0, 1).unwrap(), || x.neg()).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [-1., -3., -2., -4.], "another layout");
    let row = out.select(0, 1).unwrap();
    into_out(&row, || Tensor::ones(&[2], &device)).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [-1., -3., 1., 1.], "a part of a tensor");
    let wide = Tensor::full(&[2, 2], 0.0, DType::F64, &device).unwrap();
    into_out(&wide, || x.neg()).unwrap();
    assert_eq!(wide.to_vec::<f64>().unwrap(), [-1., -2., -3., -4.], "another type");
}

#[test]
fn results_of_several_operations_go_there_too() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0, 0.5], &[2, 2], &device).unwrap();
    let stack = x.unsqueeze(0).unwrap();
    type Made = Box<dyn Fn() -> Result<Tensor>>;
    let made = |f: fn(&Tensor) -> Result<Tensor>| -> Made {
        let x = x.clone();
        Box::new(move || f(&x))
    };
    let cases: Vec<Made> = vec![
        made(|x| x.exp()?.add(x)),
        made(|x| x.exp()?.add(x)?.neg()?.mul(x)),
        made(|x| x.exp()?.t()?.add(x)),
        made(|x| x.exp()?.t()),
        made(|x| {
            let kept = x.exp()?;
            let sum = kept.add(x)?.neg()?.abs()?;
            kept.mul(&sum)
        }),
        made(|x| {
            let y = x.square()?;
            y.add_(x)?;
            Ok(y)
        }),
        made(|x| x.logcumsumexp(1)),
        made(|x| x.inner(x)),
        made(|x| x.tensordot(x, &[1], &[0])),
        made(|x| x.clamp_tensors(Some(&x.neg()?), Some(&x.square()?))),
        made(Tensor::acosh),
        made(|x| x.softmin(0)),
        made(|x| x.normalize(1)),
        made(|x| x.roll(&[1], &[0])?.flip(&[1])),
        made(|x| Ok(x.cummax(1)?.0)),
        made(|x| x.nan_to_num(0.0, None, None)?.lerp_scalar(x, 0.25)),
        made(Tensor::t),
        Box::new(move || stack.baddbmm(&stack, &stack, 0.5, 2.0)?.squeeze(0)),
    ];
    for (i, f) in cases.iter().enumerate() {
        let expected = f().unwrap().to_vec::<f32>().unwrap();
        let out = Tensor::zeros(&[2, 2], &device).unwrap();
        into_out(&out, f).unwrap();
        let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
        let got = out.to_vec::<f32>().unwrap();
        assert!(got.iter().zip(&expected).all(same), "case {i}: {got:?}, not {expected:?}");
    }
    // If no earlier result is in use, no memory is allocated: of three successive results, only one is.
    let device = Device::sim(SimConfig::new(1 << 30));
    let [x, out] = [(); 2].map(|()| Tensor::zeros(&[256, 256], &device).unwrap());
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    into_out(&out, || {
        let second = x.exp()?.neg()?;
        second.abs()
    })
    .unwrap();
    assert_eq!(device.max_memory_allocated() - before, 256 * 256 * 4);
}

#[test]
fn what_cannot_go_there_is_refused() {
    let device = Device::cpu();
    let (x, out) = (Tensor::ones(&[2], &device).unwrap(), Tensor::zeros(&[2], &device).unwrap());
    assert!(matches!(into_out(&out, || x.sum()), Err(Error::Shape { op: "into_out", .. })));
    let whole = Tensor::arange(2, &device).unwrap();
    assert!(matches!(into_out(&whole, || x.exp()), Err(Error::DType { .. })));
    let leaf = x.detach().requires_grad_(true).unwrap();
    assert!(matches!(into_out(&out, || leaf.exp()), Err(Error::Autograd { .. })));
    no_grad(|| into_out(&out, || leaf.exp())).unwrap();
    let text = into_out(&out, || x.exp()?.add(&out)).unwrap_err().to_string();
    assert!(text.contains("exp wrote its result into `out`, but add still reads `out`"), "{text}");
    x.exp().unwrap(); // without a target again
}

#[test]
fn generators_draw_for_themselves_and_fork() {
    use plimsoll_tensor::{Generator, with_generator};
    let device = Device::cpu_with(Default::default());
    device.manual_seed(1);
    let draw = |generator: &Generator| {
        with_generator(generator, || Tensor::randn(&[4], &device)).unwrap().to_vec::<f32>().unwrap()
    };
    let (first, second) = (Generator::new(3), Generator::new(3));
    assert_eq!(draw(&first), draw(&second));
    let children = [first.fork(), second.fork(), first.fork()].map(|child| draw(&child));
    assert_eq!(children[0], children[1]);
    assert_ne!(children[0], children[2]);
    assert_eq!(device.rng_state().next_stream, 0, "the device's own numbers were not used");
    let before = Tensor::randn(&[2], &device).unwrap().to_vec::<f32>().unwrap();
    device.manual_seed(1);
    device.fork_rng(|| Tensor::randn(&[2], &device)).unwrap();
    assert_eq!(Tensor::randn(&[2], &device).unwrap().to_vec::<f32>().unwrap(), before);
}

#[test]
fn drawn_values_have_their_distribution() {
    let device = Device::cpu_with(Default::default());
    device.manual_seed(5);
    let dice = Tensor::randint(1, 7, &[60_000], &device).unwrap();
    let counts = dice.bincount(None, 0).unwrap().to_vec::<i64>().unwrap();
    assert!(counts[0] == 0 && counts[1..].iter().all(|n| (9_600..10_400).contains(n)), "{counts:?}");
    let order = Tensor::randperm(1000, &device).unwrap().to_vec::<i64>().unwrap();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..1000).collect::<Vec<i64>>());
    assert!(order.iter().enumerate().filter(|(i, x)| **x == *i as i64).count() < 10);
    let mean = |x: &Tensor| x.mean().unwrap().item::<f32>().unwrap();
    let p = Tensor::full(&[50_000], 0.3, DType::F32, &device).unwrap();
    assert!((mean(&p.bernoulli().unwrap()) - 0.3).abs() < 0.01);
    let x = p.empty_like().unwrap();
    x.bernoulli_(0.8, None).unwrap();
    assert!((mean(&x) - 0.8).abs() < 0.01);
    x.exponential_(4.0, None).unwrap();
    assert!((mean(&x) - 0.25).abs() < 0.01);
    for (p, expected) in [(0.0, 0.0), (1.0, 1.0)] {
        x.bernoulli_(p, None).unwrap();
        assert_eq!(mean(&x), expected);
    }
    assert!(Tensor::randint(3, 3, &[1], &device).is_err());
    assert!(x.bernoulli_(1.5, None).is_err());
}
