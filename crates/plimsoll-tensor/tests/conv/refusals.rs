//! The error messages of invalid convolutions.

use plimsoll_tensor::{
    Conv2dOptions, ConvPadding, ConvTranspose2dOptions, Device, Error, Result, SimConfig, Tensor,
};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, &Device::cpu()).unwrap()
}

fn conv(x: &[usize], w: &[usize], bias: &[usize], options: Conv2dOptions) -> String {
    text(zeros(x).conv2d(zeros(w), Some(&zeros(bias)), options))
}

fn text(result: Result<Tensor>) -> String {
    result.unwrap_err().to_string()
}

const IMAGES: &[usize] = &[2, 4, 6, 6];
const FILTERS: &[usize] = &[6, 4, 3, 3];

#[test]
fn what_does_not_fit_is_named_with_all_shapes() {
    let plain = Conv2dOptions::default();
    assert_eq!(
        conv(&[2, 4, 6, 2], FILTERS, &[6], plain),
        "conv2d: a window spans 3 elements of dimension 3, which has only 2 with padding \
         (input [2, 4, 6, 2], weight [6, 4, 3, 3], bias [6])"
    );
    assert_eq!(
        conv(IMAGES, &[6, 3, 3, 3], &[6], plain),
        "conv2d: the input has 4 channels, but 1 groups of 3 are needed \
         (input [2, 4, 6, 6], weight [6, 3, 3, 3], bias [6])"
    );
    assert_eq!(
        conv(IMAGES, &[5, 2, 3, 3], &[5], Conv2dOptions { groups: 2, ..plain }),
        "conv2d: the first size of the weight, 5, is not divisible by 2 groups \
         (input [2, 4, 6, 6], weight [5, 2, 3, 3], bias [5])"
    );
    assert_eq!(
        conv(IMAGES, FILTERS, &[6, 1], plain),
        "conv2d: the bias must have one dimension with 6 elements \
         (input [2, 4, 6, 6], weight [6, 4, 3, 3], bias [6, 1])"
    );
    assert_eq!(
        conv(&[6, 6], FILTERS, &[6], plain),
        "conv2d: needs an input of 4 dimensions, or of 3 without a batch, and a weight of 4 \
         (input [6, 6], weight [6, 4, 3, 3], bias [6])"
    );
}

#[test]
fn options_without_a_meaning_are_refused() {
    let plain = Conv2dOptions::default();
    let refused = |options| conv(IMAGES, FILTERS, &[6], options);
    assert_eq!(
        refused(Conv2dOptions { stride: [1, 0], ..plain }),
        "conv2d: stride [1, 0]: windows must move by at least 1"
    );
    assert_eq!(
        refused(Conv2dOptions { dilation: [0, 1], ..plain }),
        "conv2d: dilation [0, 1] must be at least 1"
    );
    assert_eq!(refused(Conv2dOptions { groups: 0, ..plain }), "conv2d: groups must be at least 1");
    assert_eq!(
        refused(Conv2dOptions { padding: ConvPadding::Same, stride: [2, 2], ..plain }),
        "conv2d: padding `Same` needs a stride of 1, not [2, 2]"
    );
    let enormous = Conv2dOptions { padding: [usize::MAX, 1].into(), ..plain };
    assert!(refused(enormous).ends_with("leads to sizes that overflow"));
    let enormous = Conv2dOptions { padding: [usize::MAX / 8, usize::MAX / 8].into(), ..plain };
    assert!(refused(enormous).contains("more elements than an address space holds"));
    let options = ConvTranspose2dOptions { stride: [2, 2], output_padding: [2, 0], ..Default::default() };
    assert_eq!(
        text(zeros(IMAGES).conv_transpose2d(zeros(&[4, 6, 3, 3]), None, options)),
        "conv_transpose2d: output padding [2, 0] must be smaller than the stride [2, 2] or the dilation [1, 1]"
    );
}

#[test]
fn tensors_of_two_types_or_devices_are_refused() {
    let (x, w) = (zeros(IMAGES), zeros(FILTERS));
    let wide = w.to_dtype(plimsoll_tensor::DType::F64).unwrap();
    let plain = Conv2dOptions::default();
    assert_eq!(
        text(x.conv2d(&wide, None, plain)),
        "conv2d: expected float32, got float64; convert with `to_dtype`"
    );
    let elsewhere = Tensor::zeros(FILTERS, &Device::sim(SimConfig::new(1 << 30))).unwrap();
    assert!(matches!(x.conv2d(&elsewhere, None, plain), Err(Error::Device { op: "conv2d", .. })));
    assert_eq!(x.conv2d(&w, None, plain).unwrap().shape(), [2, 6, 4, 4], "and the next one works");
}
