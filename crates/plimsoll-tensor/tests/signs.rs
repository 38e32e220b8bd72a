//! The operators `+ - * /`, `& | ^`, `-x` and `!x`, and methods that take tensors: owned or borrowed operands, and numbers.

use plimsoll_tensor::{DType, Device, Result, Tensor};

fn of(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap()
}

/// Checks that all results are equal, to the bit.
fn check(expected: [f32; 2], results: impl IntoIterator<Item = Result<Tensor>>) {
    for (i, result) in results.into_iter().enumerate() {
        assert_eq!(result.unwrap().to_vec::<f32>().unwrap(), expected, "result {i}");
    }
}

#[test]
fn tensors_may_be_owned_or_borrowed_on_either_side_of_an_operator() {
    let (a, b) = (of(&[6.0, 8.0]), of(&[2.0, -4.0]));
    let own = Clone::clone;
    check([8.0, 4.0], [own(&a) + own(&b), own(&a) + &b, &a + own(&b), &a + &b]);
    check([4.0, 12.0], [own(&a) - own(&b), own(&a) - &b, &a - own(&b), &a - &b]);
    check([12.0, -32.0], [own(&a) * own(&b), own(&a) * &b, &a * own(&b), &a * &b]);
    check([3.0, -2.0], [own(&a) / own(&b), own(&a) / &b, &a / own(&b), &a / &b]);
    check([-2.0, 4.0], [-&b, -b]);
}

#[test]
fn numbers_may_be_on_either_side_of_an_operator() {
    let x = of(&[2.0, -4.0]);
    let own = || x.clone();
    check([3.0, -3.0], [own() + 1.0, &x + 1.0, 1.0 + own(), 1.0 + &x, own() + 1, 1 + &x]);
    check([1.0, -5.0], [own() - 1.0, &x - 1.0, own() - 1, &x - 1]);
    check([-1.0, 5.0], [1.0 - own(), 1.0 - &x, 1 - own(), 1 - &x]);
    check([6.0, -12.0], [own() * 3.0, &x * 3.0, 3.0 * own(), 3.0 * &x, own() * 3, 3 * &x]);
    check([0.5, -1.0], [own() / 4.0, &x / 4.0, own() / 4, &x / 4]);
    check([2.0, -1.0], [4.0 / own(), 4.0 / &x, 4 / own(), 4 / &x]);
    let whole = Tensor::arange(2, &Device::cpu()).unwrap();
    assert_eq!((5 - &whole).unwrap().to_vec::<i64>().unwrap(), [5, 4]);
    assert_eq!((0.5 + whole).unwrap().dtype(), DType::F32);
}

#[test]
fn masks_may_be_owned_or_borrowed() {
    let device = Device::cpu();
    let [a, b] = [[true, true, false], [true, false, false]]
        .map(|mask| Tensor::from_slice(&mask, &[3], &device).unwrap());
    let same = |result: Result<Tensor>, expected: [bool; 3]| {
        assert_eq!(result.unwrap().to_vec::<bool>().unwrap(), expected);
    };
    same(a.clone() & &b, [true, false, false]);
    same(&a | b.clone(), [true, true, false]);
    same(a.clone() ^ b.clone(), [false, true, false]);
    same(!&a, [false, false, true]);
    same(!(a ^ b).unwrap(), [true, false, true]);
}

#[test]
fn methods_take_owned_and_borrowed_tensors_and_options_without_some() {
    let device = Device::cpu();
    let (x, w, bias) = (of(&[1.0, 2.0]), Tensor::eye(2, 2, &device).unwrap(), of(&[1.0, 1.0]));
    check(
        [2.0, 4.0],
        [x.add(&x), x.add(x.clone()), x.matmul(x.diag_embed(0).unwrap()).unwrap().add(of(&[1.0, 0.0]))],
    );
    check([2.0, 3.0], [x.linear(&w, &bias), x.linear(w.clone(), Some(&bias))]);
    check([1.0, 2.0], [x.linear(w, None)]);
    assert_eq!(Tensor::cat(&[x.clone(), bias.clone()], 0).unwrap().shape(), [4]);
    assert_eq!(Tensor::stack(&[&x, &bias], 0).unwrap().shape(), [2, 2]);
}

#[test]
fn an_owned_operand_gets_its_gradient() {
    let x = of(&[2.0, 3.0]).requires_grad_(true).unwrap();
    let y = (1.0 - (x.clone() * x.clone()).unwrap()).unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [-4.0, -6.0]);
}
