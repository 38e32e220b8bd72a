//! The convolution layers: PyTorch's names, weight shapes, initial values, and every option.

use plimsoll::nn::{
    Conv1d, Conv2d, Conv2dConfig, Conv3d, ConvTranspose2d, ConvTranspose2dConfig, Module, Scope,
};
use plimsoll::{Device, PadMode, Tensor};

fn scope() -> Scope {
    Scope::new(&Device::cpu(), 1)
}

fn shapes(module: &impl Module) -> Vec<(String, Vec<usize>)> {
    let named = module.named_parameters();
    named.into_iter().map(|(name, parameter)| (name, parameter.shape().to_vec())).collect()
}

#[test]
fn weights_have_pytorchs_names_and_shapes() {
    let named = |weight: &[usize], bias: usize| {
        vec![("weight".to_owned(), weight.to_vec()), ("bias".to_owned(), vec![bias])]
    };
    assert_eq!(shapes(&Conv1d::new(&scope(), 4, 6, 3).unwrap()), named(&[6, 4, 3], 6));
    assert_eq!(shapes(&Conv2d::new(&scope(), 4, 6, [3, 5]).unwrap()), named(&[6, 4, 3, 5], 6));
    assert_eq!(shapes(&Conv3d::new(&scope(), 4, 6, 2).unwrap()), named(&[6, 4, 2, 2, 2], 6));
    let grouped = Conv2d::with(&scope(), 4, 6, Conv2dConfig::new(3).groups(2)).unwrap();
    assert_eq!(shapes(&grouped), named(&[6, 2, 3, 3], 6));
    let transposed = ConvTranspose2dConfig::new(3).groups(2);
    let transposed = ConvTranspose2d::with(&scope(), 4, 6, transposed).unwrap();
    assert_eq!(shapes(&transposed), named(&[4, 3, 3, 3], 6));
    let bare = Conv2d::with(&scope(), 4, 6, Conv2dConfig::new(3).without_bias()).unwrap();
    assert_eq!(shapes(&bare).len(), 1);
}

#[test]
fn start_values_are_within_pytorchs_bound() {
    // The fan-in is the weight's second dimension times the kernel size: 2 * 9 for both.
    let bound = 1.0 / 18f32.sqrt();
    let config = Conv2dConfig::new(3).groups(32);
    let conv = Conv2d::with(&scope(), 64, 64, config).unwrap();
    let config = ConvTranspose2dConfig::new(3).groups(32);
    let transposed = ConvTranspose2d::with(&scope(), 64, 64, config).unwrap();
    for weight in [conv.weight(), transposed.weight()] {
        let values: Vec<f32> = weight.to_vec().unwrap();
        assert!(values.iter().all(|x| x.abs() <= bound) && values.iter().any(|x| x.abs() > 0.95 * bound));
    }
}

#[test]
fn padding_may_hold_what_is_inside() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 1, 1, 3], &device).unwrap();
    let sums = |mode: PadMode| {
        let config = Conv2dConfig::new([1, 3]).padding([0, 1]).padding_mode(mode).without_bias();
        let conv = Conv2d::with(&Scope::new(&device, 1), 1, 1, config).unwrap();
        plimsoll::no_grad(|| conv.weight().fill_(1.0)).unwrap();
        conv.forward(&x).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(sums(PadMode::Constant(0.0)), [3.0, 6.0, 5.0]);
    assert_eq!(sums(PadMode::Replicate), [4.0, 6.0, 8.0]);
    assert_eq!(sums(PadMode::Reflect), [5.0, 6.0, 7.0]);
    assert_eq!(sums(PadMode::Circular), [6.0, 6.0, 6.0]);
}

#[test]
fn same_padding_keeps_sizes_and_groups_must_divide() {
    let x = Tensor::zeros(&[2, 4, 5, 7], &Device::cpu()).unwrap();
    let same = Conv2dConfig::new([4, 3]).dilation([1, 2]).same_padding();
    let conv = Conv2d::with(&scope(), 4, 3, same).unwrap();
    assert_eq!(conv.forward(&x).unwrap().shape(), [2, 3, 5, 7]);
    let error = Conv2d::with(&scope(), 4, 6, Conv2dConfig::new(3).groups(4)).unwrap_err();
    assert_eq!(error.to_string(), "Conv: 4 groups must divide 4 input channels and 6 output channels");
}
