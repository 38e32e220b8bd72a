//! Creates tensors: from values, filled with a constant or a sequence, or random.

use std::sync::Arc;

use smallvec::smallvec;

use crate::caller::Entry;
use crate::cpu::kernels::random;
use crate::cpu::kernels::strided::{copy_strided, fill};
use crate::cuda::{self, CudaCall, Placed};
use crate::data::Data;
use crate::device::Device;
use crate::dispatch;
use crate::dtype::{DType, Element, by_dtype};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::{self, Dims};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::random::{Distribution, RandomStream};
use crate::suite::Case;
use crate::tensor::Tensor;
use crate::view::Out;

/// The contents of a new tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// One value everywhere.
    Value(f64),
    /// `start`, `start + step`, …
    Sequence { start: f64, step: f64 },
    /// `count` evenly spaced values from `start` to `end`, both included.
    Between { start: f64, end: f64, count: usize },
    /// Random values.
    Random(Distribution, RandomStream),
    /// Random integers in `[low, high)`.
    Integers { low: i64, high: i64, from: RandomStream },
    /// The integers below the length, in random order.
    Permutation(RandomStream),
}

impl Source {
    /// Fills `out`.
    pub(crate) fn write(self, out: Out<'_>) {
        match self {
            Source::Value(value) => by_dtype!(out.dtype(), T => fill_strided::<T>(T::from_f64(value), out)),
            Source::Sequence { start, step } => numbered(out, |i| start + i as f64 * step),
            // Computed from both ends, as in PyTorch, so that the last value is exactly `end`.
            Source::Between { start, end, count } => {
                let step = if count > 1 { (end - start) / (count - 1) as f64 } else { 0.0 };
                numbered(out, |i| match i < count / 2 || count == 1 {
                    true => start + step * i as f64,
                    false => end - step * (count - 1 - i) as f64,
                });
            }
            Source::Integers { low, high, from } => random::integers(low, high, from, out.elements()),
            Source::Permutation(from) => random::permutation(from, out.elements()),
            Source::Random(distribution, from) => match out.dtype() {
                DType::F64 => random::fill::<f64>(distribution, from, out.elements()),
                _ => random::fill::<f32>(distribution, from, out.elements()),
            },
        }
    }

    /// Fills `out` on a GPU.
    pub(crate) fn write_cuda(self, call: &mut CudaCall<'_>, out: Placed<'_>) -> Result<()> {
        match self {
            Source::Value(value) => cuda::elementwise::fill(call, value, out),
            Source::Sequence { start, step } => cuda::elementwise::sequence(call, start, step, out),
            Source::Random(distribution, from) => cuda::random::draw(call, distribution, from, out),
            Source::Between { start, end, count } => {
                let step = if count > 1 { (end - start) / (count - 1) as f64 } else { 0.0 };
                let (half, last) = (if count == 1 { 1 } else { count / 2 }, count.saturating_sub(1));
                let front = format!("C({start:?}) + C({step:?}) * C(i)");
                let back = format!("C({end:?}) - C({step:?}) * (C({:?}) - C(i))", last as f64);
                let text = format!("C(i) < C({:?}) ? {front} : {back}", half as f64);
                let expression = cuda::elementwise::Expression::new(text, DType::F64);
                cuda::elementwise::evaluate(call, expression, &[], out)
            }
            Source::Integers { low, high, from } => cuda::random::integers(call, low, high, from, out),
            Source::Permutation(from) => cuda::random::permutation(call, from, out),
        }
    }

    /// The random numbers that it uses, if any.
    pub(crate) fn varies(self) -> Option<Varies> {
        match self {
            Source::Random(_, from) | Source::Integers { from, .. } | Source::Permutation(from) => {
                Some(Varies::Random(from))
            }
            Source::Value(_) | Source::Sequence { .. } | Source::Between { .. } => None,
        }
    }

    /// The same source with another random stream.
    pub(crate) fn with_random(self, from: RandomStream) -> Source {
        match self {
            Source::Random(distribution, _) => Source::Random(distribution, from),
            Source::Integers { low, high, .. } => Source::Integers { low, high, from },
            Source::Permutation(_) => Source::Permutation(from),
            fixed => fixed,
        }
    }

    /// Rejects dtypes that cannot hold such values.
    pub(crate) fn check(self, op: &'static str, dtype: DType) -> Result<()> {
        let refused = |expected| Err(Error::DType { op, expected, got: dtype });
        match self {
            Source::Value(_) => Ok(()),
            Source::Sequence { .. } | Source::Between { .. } if dtype == DType::Bool => {
                refused("a numeric type")
            }
            Source::Sequence { .. } | Source::Between { .. } => Ok(()),
            Source::Integers { .. } | Source::Permutation(_) if dtype.is_float() || dtype == DType::Bool => {
                refused("an integer type")
            }
            Source::Integers { .. } | Source::Permutation(_) => Ok(()),
            Source::Random(..) if !dtype.is_float() => refused("a floating-point type"),
            Source::Random(..) => Ok(()),
        }
    }

    /// The dtype that the host's kernel writes: random values are drawn in 32 or 64 bits.
    pub(crate) fn cpu_type(self, dtype: DType) -> DType {
        match self {
            Source::Random(..) | Source::Integers { .. } | Source::Permutation(_) => dtype.accumulator(),
            _ => dtype,
        }
    }
}

/// Fills `out` with a function of each element's row-major index.
fn numbered(out: Out<'_>, value: impl Fn(usize) -> f64) {
    by_dtype!(out.dtype(), T => {
        let write = |(i, x): (usize, &mut <T as Element>::Stored)| *x = T::from_f64(value(i)).to_stored();
        out.elements::<<T as Element>::Stored>().iter_mut().enumerate().for_each(write);
    });
}

fn fill_strided<T: Element>(value: T, out: Out<'_>) {
    let (shape, strides, repeat) = (out.shape(), out.strides(), Dims::from_elem(0, out.shape().len()));
    match out.layout().is_contiguous() {
        true => fill(out.elements(), value.to_stored()),
        false => copy_strided(shape, &[value.to_stored()], &repeat, out.elements(), strides),
    }
}

/// `() -> out`.
#[derive(Clone, Debug)]
struct Create {
    /// The name of the function that was called, as in PyTorch: `zeros`, `randn`.
    name: &'static str,
    source: Source,
    shape: Dims,
    dtype: DType,
}

impl Kernel for Create {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        self.source.cpu_type(dtype)
    }

    fn varies(&self) -> Option<Varies> {
        self.source.varies()
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(Create { source: self.source.with_random(from), ..self.clone() }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let out = call.outs[0];
        self.source.write_cuda(call, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([], [out]) = call.split();
        self.source.write(out);
        Ok(())
    }
}

impl Operator for Create {
    fn infer(&self, _: &[Meta<'_>]) -> Result<Outputs> {
        layout::checked_len(&self.shape)?;
        self.source.check(self.name, self.dtype)?;
        Ok(smallvec![Output::new(&self.shape, self.dtype)])
    }
}

/// Fails unless the number of bytes matches the shape and dtype.
fn want_elements(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<()> {
    let needed = layout::checked_len(shape)? * dtype.size();
    if bytes.len() != needed {
        let got = bytes.len();
        let message = format!("shape {shape:?} of {dtype} has {needed} bytes, but the values have {got}");
        return Err(Error::shape("from_bytes", message));
    }
    if dtype == DType::Bool
        && let Some(at) = bytes.iter().position(|&byte| byte > 1)
    {
        let message = format!("byte {at} is {}; booleans are 0 or 1", bytes[at]);
        return Err(Error::argument("from_bytes", message));
    }
    Ok(())
}

impl Tensor {
    /// A tensor of this shape with these values, row-major. Like `torch.tensor`.
    ///
    /// # Errors
    /// If the number of values does not match the shape, or memory runs out.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(T::bytes_of(values), T::DTYPE, shape, device)
    }

    /// A tensor from the native-endian bytes of its elements, row-major.
    ///
    /// # Errors
    /// If a byte count does not match the shape, a boolean is neither 0 nor 1, or memory runs out.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
        want_elements(bytes, dtype, shape)?;
        let data = dispatch::empty(shape, dtype, device, "tensor")?;
        dispatch::write(&data, bytes)?;
        Ok(Tensor::from_data(data))
    }

    /// [`Tensor::from_bytes`] into pinned host memory, with a single copy. Like `torch.tensor(…, pin_memory=True)`.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Tensor};
    /// let x = Tensor::from_bytes_pinned(&[1, 2, 3, 4], DType::U8, &[2, 2])?;
    /// assert!(x.is_pinned());
    /// assert_eq!(x.to_vec::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::from_bytes`]; [`Error::PinnedMemory`] if no pinned memory is available.
    #[track_caller]
    pub fn from_bytes_pinned(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<Tensor> {
        want_elements(bytes, dtype, shape)?;
        let data = dispatch::empty_in_pinned(shape, dtype, &Device::cpu(), "pin_memory")?;
        dispatch::write(&data, bytes)?;
        Ok(Tensor::from_data(data))
    }

    /// An uninitialized tensor. Like `torch.empty`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        dispatch::empty(shape, dtype, device, "tensor").map(Tensor::from_data)
    }

    /// Zeros, as `float32`. Like `torch.zeros`.
    ///
    /// # Errors
    /// If memory runs out, as for every constructor.
    #[track_caller]
    pub fn zeros(shape: &[usize], device: &Device) -> Result<Tensor> {
        create("zeros", Source::Value(0.0), shape, DType::F32, device)
    }

    /// Ones, as `float32`. Like `torch.ones`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn ones(shape: &[usize], device: &Device) -> Result<Tensor> {
        create("ones", Source::Value(1.0), shape, DType::F32, device)
    }

    /// A tensor filled with `value`, converted to `dtype`. Like `torch.full`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn full(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        create("full", Source::Value(value), shape, dtype, device)
    }

    /// Zeros with another tensor's shape, dtype, device and order of dimensions. Like `torch.zeros_like`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        like(self, |shape| create("zeros_like", Source::Value(0.0), shape, self.dtype(), self.device()))
    }

    /// Ones with another tensor's shape, dtype, device and order of dimensions. Like `torch.ones_like`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        like(self, |shape| create("ones_like", Source::Value(1.0), shape, self.dtype(), self.device()))
    }

    /// `0, 1, …, n - 1` as 64-bit integers. Like `torch.arange(n)`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn arange(n: usize, device: &Device) -> Result<Tensor> {
        create("arange", Source::Sequence { start: 0.0, step: 1.0 }, &[n], DType::I64, device)
    }

    /// Values from the standard normal distribution. Like `torch.randn`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn randn(shape: &[usize], device: &Device) -> Result<Tensor> {
        let from = Distribution::Normal { mean: 0.0, std: 1.0 };
        create("randn", Source::Random(from, device.next_random()), shape, DType::F32, device)
    }

    /// Uniform random values in `[0, 1)`. Like `torch.rand`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn rand(shape: &[usize], device: &Device) -> Result<Tensor> {
        let from = Distribution::Uniform { low: 0.0, high: 1.0 };
        create("rand", Source::Random(from, device.next_random()), shape, DType::F32, device)
    }
}

/// A tensor that `make` creates, with its dimensions in the same memory order as those of `x`. `make` gets the shape in that
/// order; the values that it fills in must not depend on the order.
#[track_caller]
pub(in crate::ops) fn like(x: &Tensor, make: impl FnOnce(&[usize]) -> Result<Tensor>) -> Result<Tensor> {
    let _entry = Entry::here();
    let layout = x.data().layout.dense();
    if layout.is_contiguous() {
        return make(x.shape());
    }
    let lying: Dims = layout.order().iter().map(|&dim| x.shape()[dim]).collect();
    let made = make(&lying)?;
    let Data { storage, dtype, .. } = made.data().clone();
    Ok(Tensor::from_data(Data { storage, layout, dtype }))
}

#[track_caller]
pub(in crate::ops) fn create(
    name: &'static str,
    source: Source,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let op = Create { name, source, shape: shape.into(), dtype };
    Ok(dispatch::create(op, device)?.remove(0))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let full =
        |ins: &[&Tensor]| Ok(smallvec![Tensor::full(ins[0].shape(), 2.5, DType::F32, ins[0].device())?]);
    let count = |ins: &[&Tensor]| Ok(smallvec![Tensor::arange(ins[0].numel(), ins[0].device())?]);
    vec![
        Case::new("full", &[&[2, 3]], full).expect(|_| vec![vec![2.5; 6]]).without_derivative(),
        Case::new("arange", &[&[4]], count).expect(|_| vec![vec![0.0, 1.0, 2.0, 3.0]]).without_derivative(),
    ]
}
