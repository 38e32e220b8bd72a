//! Views share memory, copies do not, and invalid calls fail with a readable message.

use plimsoll_tensor::{BackwardOptions, DType, Device, PadMode, Result, SimConfig, Tensor, no_grad};

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, &Device::cpu()).unwrap()
}

fn indices(values: &[i64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap()
}

#[test]
fn views_share_their_storage_and_say_so() {
    let x = zeros(&[4, 6]);
    let views = [
        x.slice(0, 1..4, 2),
        x.select(1, -1),
        x.diagonal(1, 0, 1),
        x.unfold(1, 3, 2),
        x.unflatten(1, &[2, 3]),
        x.movedim(&[0], &[1]),
        x.unsqueeze_dims(&[0, -1]),
        x.expand_as(zeros(&[2, 4, 6])),
        x.view_as(zeros(&[3, 8])),
    ];
    let mut views: Vec<Tensor> = views.into_iter().collect::<Result<_>>().unwrap();
    views.extend(x.chunk(2, 0).unwrap());
    views.extend(x.split(4, 1).unwrap());
    assert!(views.iter().all(|view| view.shares_storage(&x) && view.storage_ptr() == x.storage_ptr()));
    assert_eq!((x.storage_bytes(), x.storage_ref_count()), (96, 1 + views.len()));
    let part = x.select(0, 2).unwrap();
    assert_eq!((part.storage_offset(), part.data_ptr() - x.data_ptr(), part.strides()), (12, 48, &[1][..]));
    assert!(!x.repeat(&[1, 1]).unwrap().shares_storage(&x));
    drop((views, part));
    assert_eq!(x.storage_ref_count(), 1);
}

#[test]
fn a_change_of_a_part_is_seen_in_the_whole() {
    let x = zeros(&[3, 3]);
    x.diagonal(0, 0, 1).unwrap().fill_(2.0).unwrap();
    x.slice(1, .., 2).unwrap().select(0, 0).unwrap().fill_(1.0).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0]);
}

#[test]
fn the_gradient_of_a_split_is_put_together_once() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let x = Tensor::zeros(&[1 << 10, 3 << 10], &device).unwrap().requires_grad_(true).unwrap();
    let parts = x.split(1 << 10, 1).unwrap();
    let y = (&(&parts[0] + &parts[1]).unwrap() + &parts[2]).unwrap();
    let gradient = Some(no_grad(|| y.ones_like()).unwrap());
    drop(parts);
    device.reset_peak_memory_stats();
    let before = device.memory_allocated();
    y.backward_with(BackwardOptions { gradient, ..BackwardOptions::default() }).unwrap();
    // Only the gradient of x is allocated: the parts' gradients are all that of y.
    assert_eq!(device.max_memory_allocated() - before, 12 << 20);
}

#[test]
fn parts_that_are_not_there_are_named() {
    let x = zeros(&[2, 3]);
    assert_eq!(text(x.select(1, 3)), "select: index 3 is out of range for dimension 1 of size 3");
    assert_eq!(text(x.select(0, -3)), "select: index -3 is out of range for dimension 0 of size 2");
    assert_eq!(text(x.slice(0, .., 0)), "slice: a step of 0 never reaches the end: use at least 1");
    assert!(text(x.unfold(1, 4, 1)).starts_with("unfold: size 4 and step 1 for dimension 1 of size 3"));
    assert_eq!(text(x.diagonal(0, 1, -1)), "diagonal: dimension 1 is named twice");
    assert_eq!(text(x.split(0, 1)), "split: parts of 0 elements of a dimension of size 3");
    let message = "split_with_sizes: [1, 1] do not add up to 3, the size of dimension 1";
    assert_eq!(text(x.split_with_sizes(&[1, 1], 1)), message);
    assert_eq!(text(x.chunk(0, 0)), "chunk: 0 chunks: needs at least 1");
    let message = "unflatten: [2, 2] do not multiply to 3, the size of dimension 1";
    assert_eq!(text(x.unflatten(1, &[2, 2])), message);
    assert_eq!(text(x.movedim(&[0, 0], &[0, 1])), "movedim: dimension 0 is named twice in [0, 0]");
    let message = "reshape: [3, 2] with strides [1, 3] into [6] needs a copy: use `reshape`";
    assert_eq!(text(x.t().unwrap().view(&[6])), message);
}

#[test]
fn tensors_that_do_not_go_together_are_named() {
    let (x, y) = (zeros(&[2, 3]), zeros(&[2, 4]));
    let message =
        "cat: tensor 1 is [2, 4], but tensor 0 is [2, 3]: all sizes except that of dimension 0 must be equal";
    assert_eq!(text(Tensor::cat(&[&x, &y], 0)), message);
    assert_eq!(text(Tensor::cat(&[] as &[Tensor], 0)), "cat: an empty list: needs at least one tensor");
    let message = "cat: [2, 3] and [3] must have the same number of dimensions";
    assert_eq!(text(Tensor::cat(&[&x, &zeros(&[3])], 0)), message);
    assert_eq!(text(Tensor::stack(&[&x, &y], 0)), "stack: [2, 3] with [2, 4]: the shapes must be equal");
    assert_eq!(text(x.repeat(&[2])), "repeat: [2] for [2, 3]: needs a number for each dimension");
}

#[test]
fn an_index_out_of_range_is_named_with_its_place() {
    let x = zeros(&[2, 3]);
    let index = indices(&[0, 2, 3, -1]);
    let message = "index_select: index 3 at [2] is out of range for dimension 1 of size 3: use 0 to 2";
    assert_eq!(text(x.index_select(1, &index)), message);
    let square = index.reshape(&[2, 2]).unwrap();
    let message = "gather: index 3 at [1, 0] is out of range for dimension 1 of size 3: use 0 to 2";
    assert_eq!(text(x.gather(1, &square)), message);
    let message = "embedding: index 3 at [1, 0] is out of range for dimension 0 of size 2: use 0 to 1";
    assert_eq!(
        text(square.slice(0, 1.., 1).unwrap().view(&[2, 1]).unwrap().embedding(&x, None)),
        message.replace("[1, 0]", "[0, 0]")
    );
    let negative = indices(&[-1]);
    let message = "index_add: index -1 at [0] is out of range for dimension 0 of size 2: use 0 to 1";
    assert_eq!(text(x.index_add(0, &negative, zeros(&[1, 3]))), message);
    let message = "scatter: index 3 at [1, 0] is out of range for dimension 1 of size 3: use 0 to 2";
    assert_eq!(text(x.scatter_value(1, &square, 1.0)), message);
    let message = "gather: index 0 at [0, 0] is out of range: dimension 0 has no elements";
    assert_eq!(text(zeros(&[0, 1]).gather(0, indices(&[0]).view(&[1, 1]).unwrap())), message);
    assert_eq!(text(index.embedding(&x, Some(2))), "embedding: padding index 2 is not one of 2 rows");
}

#[test]
fn an_index_that_does_not_fit_is_named() {
    let x = zeros(&[2, 3]);
    let index = indices(&[0, 1]);
    assert!(text(x.gather(0, &index)).starts_with("gather: an index [2] for [2, 3] along dimension 0"));
    let large = zeros(&[3, 1]).to_dtype(DType::I64).unwrap();
    assert!(text(x.gather(1, &large)).starts_with("gather: an index [3, 1] for [2, 3] along dimension 1"));
    let message = "gather: expected int64 or int32 indices, got float32; convert with `to_dtype`";
    assert_eq!(text(x.gather(0, &x)), message);
    assert_eq!(text(x.index_select(0, &large)), "index_select: an index [3, 1]: needs a vector");
    let message = "index_add: a source [2, 2] for [2, 3] with 2 indices along dimension 0: needs [2, 3]";
    assert_eq!(text(x.index_add(0, &index, zeros(&[2, 2]))), message);
    let message = "repeat_interleave: repeat -1 at [1] is below 0";
    assert_eq!(text(x.repeat_interleave_each(indices(&[1, -1]), 0)), message);
}

#[test]
fn moved_elements_may_be_of_any_type() {
    for dtype in DType::ALL {
        let x = Tensor::arange(6, &Device::cpu()).unwrap().to_dtype(dtype).unwrap().view(&[2, 3]).unwrap();
        let index = indices(&[2, 0]);
        let picked = x.index_select(1, &index).unwrap();
        let twice = Tensor::cat(
            &[&picked, &picked.scatter_value(0, indices(&[1]).view(&[1, 1]).unwrap(), 1.0).unwrap()],
            1,
        )
        .unwrap();
        let got = twice.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
        let expected = [2, 0, 2, 0, 5, 3, 1, 3].map(|x: i64| if dtype == DType::Bool { x.min(1) } else { x });
        assert_eq!((twice.dtype(), got), (dtype, expected.to_vec()));
    }
}

#[test]
fn what_cannot_be_padded_sorted_or_drawn_is_named() {
    let x = zeros(&[2, 3]);
    let message =
        "pad: 3 and 0 elements around dimension 1 of size 3: Reflect padding allows at most 2 on a side";
    assert_eq!(text(x.pad(&[3, 0], PadMode::Reflect)), message);
    let message = "pad: [-2, -2] removes more elements than dimension 1 of size 3 has";
    assert_eq!(text(x.pad(&[-2, -2], PadMode::Constant(0.0))), message);
    assert_eq!(text(x.flip(&[0, -2])), "flip: dimension 0 is named twice in [0, -2]");
    assert_eq!(text(x.topk(4, 1, true, true)), "topk: cannot select 4 elements of a dimension of size 3");
    assert_eq!(text(zeros(&[2, 0]).max_dim(1)), "max: [2, 0] has no elements in the reduced dimensions [1]");
    let message = "multinomial: row 0 has 0 weights above 0: needs at least 1";
    assert_eq!(text(x.multinomial(1, true)), message);
    let weights = Tensor::from_slice(&[0.5f32, -1.0], &[2], &Device::cpu()).unwrap();
    let message = "multinomial: weight -1 at [1]: needs finite weights of at least 0";
    assert_eq!(text(weights.multinomial(1, true)), message);
    assert_eq!(text(x.multinomial(4, false)), "multinomial: cannot draw 4 of 3 indices without replacement");
    let message = "one_hot: index 3 at [1] is out of range for dimension 1 of size 3: use 0 to 2";
    assert_eq!(text(indices(&[0, 3]).one_hot(Some(3))), message);
    let message = "masked_select: expected bool, got float32; convert with `to_dtype`";
    assert_eq!(text(x.masked_select(&x)), message);
    let sim = Device::sim(SimConfig::new(1 << 30));
    let y = Tensor::zeros(&[2], &sim).unwrap();
    let message = "masked_select: the size of the result depends on the mask, and sim computes no values: call \
                   `Device::rehearse` to take them as zeros";
    assert_eq!(text(y.masked_select(y.gt_scalar(0.0).unwrap())), message);
}

#[test]
fn an_equation_that_is_none_is_named() {
    let (x, y) = (zeros(&[2, 3]), zeros(&[4, 5]));
    let of = |equation: &str| text(Tensor::einsum(equation, &[&x, &y]));
    assert_eq!(of("ij,jk->ik"), "einsum: subscript `j` has size 3 in operand 0 and 4 in operand 1");
    assert_eq!(of("ij->i"), "einsum: `ij->i` has 1 operands, but 2 tensors are given");
    assert_eq!(of("ij,k->ik"), "einsum: `k` has 1 subscripts, but operand 1 [4, 5] has 2 dimensions");
    assert_eq!(of("ij,kl->im"), "einsum: subscript `m` of the result `im` is in no operand");
    assert_eq!(of("ij,kl->ii"), "einsum: subscript `i` appears twice in the result `ii`");
    assert_eq!(of("i1,kl->ik"), "einsum: `i1` has 1 subscripts, but operand 0 [2, 3] has 2 dimensions");
    assert_eq!(of("ii,kl->ik"), "einsum: subscript `i` of operand 0 has sizes 2 and 3");
}

#[test]
fn draws_by_weights_are_the_same_for_the_same_seed() {
    let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    let weights = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 0.0], &[4], &device).unwrap();
    let draw = || {
        device.manual_seed(5);
        let many = weights.multinomial(1000, true).unwrap().to_vec::<i64>().unwrap();
        (many, weights.multinomial(3, false).unwrap().to_vec::<i64>().unwrap())
    };
    let (many, three) = draw();
    assert_eq!((many.clone(), three.clone()), draw());
    assert!(many.iter().all(|&place| place < 3) && !three.contains(&3));
}

#[test]
fn derivatives_of_derivatives_are_those_of_the_formulas() {
    use plimsoll_tensor::autograd::grad;
    let x = Tensor::from_slice(&[1.0f32, -2.0, 0.0, 3.0], &[4], &Device::cpu()).unwrap();
    let second = |f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Vec<f32> {
        let x = x.detach().copy().unwrap().requires_grad_(true).unwrap();
        let weights = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4], &Device::cpu()).unwrap();
        let options = || plimsoll_tensor::autograd::GradOptions { create_graph: true, ..Default::default() };
        let y = f(&x).unwrap().sum().unwrap();
        let first = grad(&[&y], &[&x], options()).unwrap().remove(0).unwrap();
        let along = first.mul(&weights).unwrap().sum().unwrap();
        grad(&[&along], &[&x], options()).unwrap().remove(0).unwrap().to_vec().unwrap()
    };
    let near = |got: Vec<f32>, expected: [f32; 4]| {
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}, not {expected:?}");
    };
    // PyTorch's values.
    near(second(&Tensor::prod), [-18.0, 9.0, -8.0, -6.0]);
    near(second(&|x| x.cumprod(0)), [-22.0, 13.0, -8.0, -6.0]);
    near(second(&|x| x.square()?.gather(0, indices(&[1, 1, 3]))), [0.0, 8.0, 0.0, 8.0]);
    near(second(&|x| x.var(0.0)), [-0.75, -0.25, 0.25, 0.75]);
    near(second(&|x| x.std(1.0)), [-0.264_827, 0.043_111, 0.104_699, 0.117_017]);
    near(second(&|x| x.norm(2.0)), [0.095_450, 0.878_144, 0.801_784, 0.553_613]);
    near(second(&|x| x.logsumexp(&[0])), [-0.295_941, -0.009_081, -0.025_326, 0.330_348]);
    near(second(&|x| Tensor::einsum("i,j,i->j", &[x, x, x])), [42.0, -14.0, 30.0, 94.0]);
}
