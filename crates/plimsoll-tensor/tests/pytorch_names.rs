//! PyTorch's other names for operations, and short functions made of them, against literal results of PyTorch.

use plimsoll_tensor::{DType, Device, Element, SimConfig, Tensor};

fn of<T: Element>(values: &[T], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::cpu()).unwrap()
}

#[test]
fn either_side_of_where_may_be_a_number() {
    let x = of(&[-1.0f32, 2.0, -3.0], &[3]).requires_grad_(true).unwrap();
    let positive = x.gt_scalar(0.0).unwrap();
    let y = positive.where_cond(&x, 0.5).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.5, 2.0, 0.5]);
    y.sum().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0]);
    assert_eq!(positive.where_cond(7, x.detach()).unwrap().to_vec::<f32>().unwrap(), [-1.0, 7.0, -3.0]);
    assert_eq!(positive.where_cond(1.0, 0.0).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0]);
    assert_eq!(positive.where_cond(1, 0).unwrap().to_vec::<i64>().unwrap(), [0, 1, 0]);
    let types = |a: DType| {
        let x = x.detach().to_dtype(a).unwrap();
        (positive.where_cond(&x, 2).unwrap().dtype(), positive.where_cond(1.5, &x).unwrap().dtype())
    };
    assert_eq!(types(DType::F16), (DType::F16, DType::F16));
    assert_eq!(types(DType::I32), (DType::I32, DType::F32));
    assert_eq!(types(DType::Bool), (DType::I64, DType::F32));
    let gpu = Device::sim(SimConfig::new(1 << 22));
    let mask = Tensor::full(&[4], 1.0, DType::Bool, &gpu).unwrap();
    assert_eq!(mask.where_cond(1.0, 0.0).unwrap().shape(), [4]);
}

#[test]
fn shapes_have_numpys_names() {
    let x = Tensor::arange(24, &Device::cpu()).unwrap().reshape(&[2, 3, 4]).unwrap();
    assert_eq!(x.moveaxis(&[0], &[-1]).unwrap().shape(), [3, 4, 2]);
    assert_eq!(x.swapaxes(0, 2).unwrap().shape(), [4, 3, 2]);
    let columns = x.swapaxes(0, 2).unwrap().ravel().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(columns[..6], [0, 12, 4, 16, 8, 20]);
    assert_eq!(of(&[1.0f32], &[]).ravel().unwrap().shape(), [1]);
    let flat = Tensor::zeros(&[6, 4], &Device::cpu()).unwrap();
    assert_eq!(x.reshape_as(&flat).unwrap().shape(), [6, 4]);
    let error = x.reshape_as(flat.narrow(0, 0, 2).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("reshape: "), "{error}");
}

#[test]
fn mm_is_a_product_of_two_matrices_only() {
    let (a, b) = (of(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]), of(&[1.0f32, 0.0, 1.0, 1.0], &[2, 2]));
    assert_eq!(a.mm(&b).unwrap().to_vec::<f32>().unwrap(), [3.0, 2.0, 7.0, 4.0]);
    let error = a.mm(b.select(0, 0).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "mm: [2, 2] times [2]: needs [n, k] and [k, m]");
}

#[test]
fn tensors_are_made_in_the_type_and_on_the_device_of_another() {
    let gpu = Device::sim(SimConfig::new(1 << 22));
    let like = Tensor::full(&[3], 1.0, DType::F16, &gpu).unwrap();
    for made in [like.new_zeros(&[2, 2]), like.new_ones(&[2, 2]), like.new_full(&[2, 2], 7.0)] {
        let made = made.unwrap();
        assert_eq!((made.shape(), made.dtype(), made.device()), (&[2, 2][..], DType::F16, &gpu));
    }
    let whole = of(&[5i64], &[1]);
    assert_eq!(whole.new_ones(&[2]).unwrap().to_vec::<i64>().unwrap(), [1, 1]);
    assert_eq!(of(&[1.5f32, -2.5], &[2]).type_as(&whole).unwrap().to_vec::<i64>().unwrap(), [1, -2]);
    assert_eq!(of(&[1.5f32], &[1]).type_as(&like).unwrap().device(), &gpu);
}

#[test]
fn runs_of_equal_elements_are_those_of_pytorch() {
    let x = of(&[1i64, 1, 2, 2, 3, 1, 1, 2], &[2, 4]);
    let (values, inverse, counts) = x.unique_consecutive_counts().unwrap();
    assert_eq!(values.to_vec::<i64>().unwrap(), [1, 2, 3, 1, 2]);
    assert_eq!(inverse.shape(), [2, 4]);
    assert_eq!(inverse.to_vec::<i64>().unwrap(), [0, 0, 1, 1, 2, 3, 3, 4]);
    assert_eq!(counts.to_vec::<i64>().unwrap(), [2, 2, 1, 2, 1]);
    assert_eq!(of::<f32>(&[], &[0]).unique_consecutive().unwrap().shape(), [0]);
    assert_eq!(of(&[0.5f32], &[1]).unique_consecutive().unwrap().to_vec::<f32>().unwrap(), [0.5]);
}
