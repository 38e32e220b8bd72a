//! Matrix products: with cuBLASLt if it supports the strides, otherwise with our own kernel.

use plimsoll_cuda::{Args, Float, Matrix, Product, Step};

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Dims, Layout};
use crate::tf32;

const TEXT: &str = include_str!("product.cu");

/// A stack of matrices with any strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    /// The elements from one matrix, row and column to the next.
    pub(crate) strides: [usize; 3],
}

impl Operand {
    /// One matrix, row-major.
    pub(crate) fn rows(address: u64, dtype: DType, cols: usize) -> Operand {
        Operand { address, dtype, strides: [0, cols, 1] }
    }

    /// The transposed operand.
    #[must_use]
    pub(crate) fn transposed(mut self) -> Operand {
        self.strides.swap(1, 2);
        self
    }

    fn matrix(&self, float: Float) -> Matrix {
        let [batch, row, col] = self.strides;
        Matrix { address: self.address, float, row, col, batch }
    }
}

/// The type under its name in NVIDIA's libraries, if they can multiply it.
pub(in crate::cuda) fn float(dtype: DType) -> Option<Float> {
    match dtype {
        DType::F64 => Some(Float::F64),
        DType::F32 => Some(Float::F32),
        DType::F16 => Some(Float::F16),
        DType::BF16 => Some(Float::BF16),
        _ => None,
    }
}

/// `c = a b + keep · c [+ bias]`, with sizes `[batch, m, n, k]`. `c` is row-major; the bias has one number for each column, in
/// the type of `c`.
pub(crate) fn product(
    call: &mut CudaCall<'_>,
    sizes: [usize; 4],
    a: Operand,
    b: Operand,
    c: Operand,
    bias: Option<u64>,
    keep: f64,
) -> Result<()> {
    scaled(call, sizes, a, b, c, bias, [1.0, keep])
}

/// `c = alpha · a b + beta · c [+ bias]`.
pub(crate) fn scaled(
    call: &mut CudaCall<'_>,
    [batch, m, n, k]: [usize; 4],
    a: Operand,
    b: Operand,
    c: Operand,
    bias: Option<u64>,
    [alpha, beta]: [f64; 2],
) -> Result<()> {
    if batch == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let of = |operand: &Operand, rows: usize, cols: usize| {
        Matrix::fits(rows, cols, operand.strides[1], operand.strides[2])
            .then(|| float(operand.dtype))
            .flatten()
    };
    // cuBLASLt does not support empty sums, and adds a bias before it adds the old values.
    let plain = k > 0 && (bias.is_none() || beta == 0.0);
    let floats = (of(&a, m, k), of(&b, k, n), of(&c, m, n));
    if let (true, (Some(of_a), Some(of_b), Some(of_c))) = (plain, floats)
        && of_a == of_b
        && (of_c == of_a || (of_c == Float::F32 && of_a != Float::F64))
    {
        let (a, b, c) = (a.matrix(of_a), b.matrix(of_b), c.matrix(of_c));
        let tf32 = tf32::is_allowed_in_matmul();
        call.push(Step::Product(Product { batch, m, n, k, a, b, c, bias, alpha, beta, tf32 }));
        return Ok(());
    }
    if a.dtype != b.dtype {
        return call.missing();
    }
    let source = call
        .source(TEXT)
        .with("A", name(c.dtype.accumulator()))
        .with("T", name(a.dtype))
        .with("TO", name(c.dtype));
    let words = [m, n, k].into_iter().chain(a.strides).chain(b.strides).chain(c.strides);
    let words: Vec<u64> = words.map(|n| n as u64).collect();
    let args =
        Args::new().address(c.address).address(a.address).address(b.address).address(bias.unwrap_or(0));
    let args = args.f64(alpha).f64(beta).words(&words);
    call.launch(source, [m.div_ceil(16), n.div_ceil(16), batch], 256, args)
}

/// `a, b -> out` over the last two dimensions; the leading ones broadcast. If these have no common stride, the products are
/// computed one by one.
pub(crate) fn matmul(call: &mut CudaCall<'_>) -> Result<()> {
    let ([a, b], out) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    let lead = out.shape().len() - 2;
    let (leading, [m, n]) = (&out.shape()[..lead], [out.shape()[lead], out.shape()[lead + 1]]);
    let k = a.cols();
    let wide = |x: &Placed<'_>, rows: usize, cols: usize| {
        let shape: Dims = leading.iter().copied().chain([rows, cols]).collect();
        x.layout.expand(&shape).unwrap_or_else(|| unreachable!("inferred"))
    };
    let (a_layout, b_layout) = (wide(&a, m, k), wide(&b, k, n));
    let operand = |x: &Placed<'_>, layout: &Layout, batch: usize, matrix: usize| {
        let at = place(layout, leading, matrix);
        let strides = [batch, layout.strides()[lead], layout.strides()[lead + 1]];
        Operand { address: x.address + (at * x.dtype.size()) as u64, dtype: x.dtype, strides }
    };
    let to = |matrix: usize| Operand {
        address: out.address + (matrix * m * n * out.dtype.size()) as u64,
        dtype: out.dtype,
        strides: [m * n, n, 1],
    };
    let batch: usize = leading.iter().product();
    if let (Some(of_a), Some(of_b)) = (lead_stride(&a_layout, lead), lead_stride(&b_layout, lead)) {
        let (a, b) = (operand(&a, &a_layout, of_a, 0), operand(&b, &b_layout, of_b, 0));
        return product(call, [batch, m, n, k], a, b, to(0), None, 0.0);
    }
    for matrix in 0..batch {
        let (a, b) = (operand(&a, &a_layout, 0, matrix), operand(&b, &b_layout, 0, matrix));
        product(call, [1, m, n, k], a, b, to(matrix), None, 0.0)?;
    }
    Ok(())
}

/// The offset of a matrix in a stack.
fn place(layout: &Layout, leading: &[usize], mut matrix: usize) -> usize {
    let mut at = 0;
    for (dim, &size) in leading.iter().enumerate().rev() {
        at += matrix % size.max(1) * layout.strides()[dim];
        matrix /= size.max(1);
    }
    at
}

/// The distance between neighbouring matrices, if it is the same for all leading dimensions.
fn lead_stride(layout: &Layout, lead: usize) -> Option<usize> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut dims = (0..lead).rev().filter(|&dim| shape[dim] != 1);
    let Some(last) = dims.next() else { return Some(0) };
    let mut span = strides[last] * shape[last];
    dims.all(|dim| {
        let fits = strides[dim] == span;
        span *= shape[dim];
        fits
    })
    .then_some(strides[last])
}

/// `x, w[, bias] -> out`: rows of `x` times a weight whose strides are given as `[in, out]`.
pub(crate) fn linear(
    call: &mut CudaCall<'_>,
    rows: &Layout,
    [k, n]: [usize; 2],
    weight: [usize; 2],
) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let [x, w, bias @ ..] = &ins[..] else { return call.missing() };
    let a =
        Operand { address: x.address, dtype: x.dtype, strides: [0, rows.strides()[0], rows.strides()[1]] };
    let b = Operand { address: w.address, dtype: w.dtype, strides: [0, weight[0], weight[1]] };
    let c = Operand::rows(out.address, out.dtype, n);
    product(call, [1, rows.shape()[0], n, k], a, b, c, bias.first().map(|bias| bias.address), 0.0)
}
