//! Distances between all pairs from two sets of vectors.

use plimsoll_cuda::{Args, Source};

use crate::cuda::{CudaCall, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("distance.cu");

/// Two sets of `rows` and `columns` vectors with `width` elements each, and the order of the norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distances {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) width: usize,
    pub(crate) p: f64,
}

impl Distances {
    fn source(&self, call: &CudaCall<'_>, dtype: DType, backward: &'static str) -> Source {
        let norm = match self.p {
            0.0 => "0",
            1.0 => "1",
            2.0 => "2",
            f64::INFINITY => "3",
            _ => "4",
        };
        let source = call.source(TEXT).with("A", name(dtype.accumulator())).with("T", name(dtype));
        source.with("NORM", norm).with("BACKWARD", backward)
    }

    fn words(&self) -> [u64; 3] {
        [self.rows, self.columns, self.width].map(|n| n as u64)
    }

    /// `x, y -> distances`.
    pub(crate) fn forward(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let source = self.source(call, call.float(&ins)?, "0");
        let args = ins.iter().fold(Args::new().address(out.address), |args, x| args.address(x.address));
        let args = args.size(out.len()).f64(self.p).words(&self.words());
        call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
    }

    /// `grad, x, y, distances -> grad of x`, where `left` says on which side of the pairs `x` is.
    pub(crate) fn backward(&self, call: &mut CudaCall<'_>, left: bool) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let source = self.source(call, call.float(&ins)?, "1");
        let (by_row, by_column) = if left { (self.columns, 1) } else { (1, self.rows) };
        let args = ins.iter().fold(Args::new().address(out.address), |args, x| args.address(x.address));
        let args = args.size(out.len()).f64(self.p).size(by_row).size(by_column).words(&self.words());
        call.launch(source, [out.len().div_ceil(256), 1, 1], 256, args)
    }
}
