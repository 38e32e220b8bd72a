//! More ways of creating tensors: sequences, the identity, random integers and permutations, and tensors in the shape of
//! another tensor.

use smallvec::smallvec;

use super::create::{Source, create, like};
use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::random::Distribution;
use crate::suite::Case;
use crate::tensor::Tensor;

impl Tensor {
    /// `start`, `start + step`, … up to but excluding `end`, as `dtype`. Like `torch.arange(start, end, step)`.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Device, Tensor};
    /// let x = Tensor::arange_from(1.0, 2.0, 0.25, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.25, 1.5, 1.75]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the step is 0 or in the wrong direction, the bounds are not finite, or memory runs out.
    #[track_caller]
    pub fn arange_from(start: f64, end: f64, step: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        let count = (end - start) / step;
        if step == 0.0 || !count.is_finite() || count < 0.0 {
            let message =
                format!("from {start} to {end} by {step}: the step must be finite and lead to the end");
            return Err(Error::argument("arange", message));
        }
        create("arange", Source::Sequence { start, step }, &[count.ceil() as usize], dtype, device)
    }

    /// `count` evenly spaced values from `start` to `end`, both included, as `float32`. Like `torch.linspace`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn linspace(start: f64, end: f64, count: usize, device: &Device) -> Result<Tensor> {
        create("linspace", Source::Between { start, end, count }, &[count], DType::F32, device)
    }

    /// `base` raised to the values of [`Tensor::linspace`]. Like `torch.logspace`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn logspace(start: f64, end: f64, count: usize, base: f64, device: &Device) -> Result<Tensor> {
        Tensor::linspace(start, end, count, device)?.affine(base.ln(), 0.0)?.exp()
    }

    /// Ones on the diagonal, zeros elsewhere, as `float32`. Like `torch.eye(rows, columns)`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn eye(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
        let eye = Tensor::zeros(&[rows, columns], device)?;
        eye.diagonal(0, 0, 1)?.fill_(1.0)?;
        Ok(eye)
    }

    /// Uniform random integers in `[low, high)`, as `int64`. Like `torch.randint`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// If the range is empty, or memory runs out.
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: &[usize], device: &Device) -> Result<Tensor> {
        if low >= high {
            return Err(Error::argument(
                "randint",
                format!("from {low} up to {high}: there is no number between"),
            ));
        }
        create(
            "randint",
            Source::Integers { low, high, from: device.next_random() },
            shape,
            DType::I64,
            device,
        )
    }

    /// `0, 1, …, n - 1` in random order, as `int64`. Like `torch.randperm`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn randperm(n: usize, device: &Device) -> Result<Tensor> {
        create("randperm", Source::Permutation(device.next_random()), &[n], DType::I64, device)
    }

    /// A tensor filled with `value`, with another tensor's shape, dtype and order of dimensions. Like `torch.full_like`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Result<Tensor> {
        like(self, |shape| create("full_like", Source::Value(value), shape, self.dtype(), self.device()))
    }

    /// A tensor of this shape filled with `value`, with another tensor's dtype, on its device. Like `Tensor.new_full`.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Device, Tensor};
    /// let x = Tensor::full(&[4], 1.0, DType::F64, &Device::cpu())?;
    /// assert_eq!(x.new_full(&[2], 0.5)?.to_vec::<f64>()?, [0.5, 0.5]);
    /// assert_eq!(x.new_zeros(&[3])?.dtype(), DType::F64);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn new_full(&self, shape: &[usize], value: f64) -> Result<Tensor> {
        Tensor::full(shape, value, self.dtype(), self.device())
    }

    /// A tensor of zeros, with another tensor's dtype, on its device. Like `Tensor.new_zeros`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn new_zeros(&self, shape: &[usize]) -> Result<Tensor> {
        self.new_full(shape, 0.0)
    }

    /// A tensor of ones, with another tensor's dtype, on its device. Like `Tensor.new_ones`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn new_ones(&self, shape: &[usize]) -> Result<Tensor> {
        self.new_full(shape, 1.0)
    }

    /// An uninitialized tensor with another tensor's shape, dtype and order of dimensions. Like `torch.empty_like`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn empty_like(&self) -> Result<Tensor> {
        self.empty_like_of(self.dtype())
    }

    /// [`Tensor::empty_like`] with a different dtype. Like `torch.empty_like` with its argument `dtype`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn empty_like_of(&self, dtype: DType) -> Result<Tensor> {
        like(self, |shape| Tensor::empty(shape, dtype, self.device()))
    }

    /// Uniform random values in `[0, 1)`, with another tensor's shape and dtype. Like `torch.rand_like`.
    ///
    /// # Errors
    /// If the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn rand_like(&self) -> Result<Tensor> {
        self.drawn_like("rand_like", Distribution::Uniform { low: 0.0, high: 1.0 })
    }

    /// Values from the standard normal distribution, with another tensor's shape and dtype. Like `torch.randn_like`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::rand_like`].
    #[track_caller]
    pub fn randn_like(&self) -> Result<Tensor> {
        self.drawn_like("randn_like", Distribution::Normal { mean: 0.0, std: 1.0 })
    }

    #[track_caller]
    fn drawn_like(&self, name: &'static str, from: Distribution) -> Result<Tensor> {
        let source = Source::Random(from, self.device().next_random());
        create(name, source, self.shape(), self.dtype(), self.device())
    }

    /// 1 with the probability given by each element, otherwise 0, in this tensor's dtype. Like `torch.bernoulli`.
    ///
    /// # Errors
    /// If the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Tensor> {
        no_grad(|| self.rand_like()?.lt(self)?.to_dtype(self.dtype()))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let linspace =
        |ins: &[&Tensor]| Ok(smallvec![Tensor::linspace(1.0, 2.0, ins[0].numel(), ins[0].device())?]);
    let eye =
        |ins: &[&Tensor]| Ok(smallvec![Tensor::eye(ins[0].shape()[0], ins[0].shape()[1], ins[0].device())?]);
    vec![
        Case::new("linspace", &[&[5]], linspace)
            .expect(|_| vec![vec![1.0, 1.25, 1.5, 1.75, 2.0]])
            .without_derivative(),
        Case::new("eye", &[&[2, 3]], eye)
            .expect(|_| vec![vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0]])
            .without_derivative(),
    ]
}
