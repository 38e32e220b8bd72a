//! Matrix products for the last few classes of a projection, for which a library's products take several times as long.

use plimsoll_cuda::{Args, Source};

use crate::cuda::reduce::sum::neighbours;
use crate::cuda::{CudaCall, typed};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("few_classes.cu");

/// Rows that one block sums for the weight's gradient. The partial sums are added at the end, in a fixed order.
const PART: usize = 128;

/// The last few classes of a projection, which have their own kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct FewClasses {
    pub(super) count: usize,
    pub(super) dim: usize,
    /// Elements from one row of logits to the next.
    pub(super) stride: usize,
    pub(super) dtype: DType,
    /// The address of the first class's weight.
    pub(super) weight: u64,
}

/// The number of partial sums of the weight's gradient for this many rows.
pub(super) fn parts(rows: usize) -> usize {
    rows.div_ceil(PART)
}

impl FewClasses {
    fn source(&self, call: &CudaCall<'_>, pass: &'static str, addresses: &[u64]) -> (Source, usize) {
        let fits = |&address: &u64| neighbours(self.dim, (address, self.dtype), &[self.dim]);
        let vector = addresses.iter().map(fits).min().unwrap_or(1);
        let source = typed(call, TEXT, self.dtype).with("PASS", pass).with("FEW", self.count.to_string());
        (source.with("VEC", vector.to_string()), vector)
    }

    /// Writes the logits of these classes for `rows` rows to `to`.
    pub(super) fn logits(&self, call: &mut CudaCall<'_>, rows: usize, [to, x, bias]: [u64; 3]) -> Result<()> {
        let (source, _) = self.source(call, "0", &[x, self.weight]);
        let args = Args::new().address(to).address(x).address(self.weight).address(bias);
        let args = args.size(rows).size(self.dim).size(self.stride);
        call.launch(source, [rows.div_ceil(8), 1, 1], 256, args)
    }

    /// From the gradients of their logits, writes the gradient of `x` to `to_x` and partial gradients of their weight to
    /// `sums`, unless that address is 0.
    pub(super) fn gradients(
        &self,
        call: &mut CudaCall<'_>,
        rows: usize,
        [to_x, sums, grads, x]: [u64; 4],
    ) -> Result<()> {
        let (source, vector) = self.source(call, "1", &[to_x, x, self.weight]);
        let args = Args::new().address(to_x).address(sums).address(grads).address(x).address(self.weight);
        let args = args.size(rows).size(self.dim).size(self.stride).size(PART);
        call.launch(source, [self.dim.div_ceil(32 * vector), parts(rows), 1], 256, args)
    }

    /// Adds up the gradient of their weight from its partial sums.
    pub(super) fn weight(&self, call: &mut CudaCall<'_>, to: u64, sums: u64, parts: usize) -> Result<()> {
        let (source, _) = self.source(call, "2", &[]);
        let count = self.count * self.dim;
        let args = Args::new().address(to).address(sums).size(parts).size(count);
        call.launch(source, [count.div_ceil(32), 1, 1], 1024, args)
    }
}
