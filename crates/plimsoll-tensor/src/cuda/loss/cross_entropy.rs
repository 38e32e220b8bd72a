//! Losses against classes: cross entropy in all its forms, and negative log likelihood.

use plimsoll_cuda::{Args, Source, Step};

use crate::cuda::{CudaCall, Placed, fault, name, threads_for};
use crate::dtype::DType;
use crate::error::Result;

const LOSS: &str = include_str!("cross_entropy.cu");

/// The reduction of the losses of all positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    /// One loss for each position.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// The sizes and options of a loss of `[outer, classes, inner]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classes {
    pub(crate) positions: usize,
    pub(crate) classes: usize,
    pub(crate) inner: usize,
    /// The target value that is ignored.
    pub(crate) ignored: i64,
    pub(crate) smoothing: f64,
    pub(crate) reduced: Reduced,
}

fn address(x: Option<Placed<'_>>) -> u64 {
    x.map_or(0, |x| x.address)
}

impl Classes {
    fn words(&self) -> [u64; 5] {
        let Classes { positions, classes, inner, ignored, smoothing, .. } = *self;
        [positions as u64, classes as u64, inner as u64, ignored.cast_unsigned(), smoothing.to_bits()]
    }

    /// Whether a block handles a position: if its logits are contiguous and numerous.
    fn wide(&self) -> bool {
        self.inner == 1 && self.classes >= 32
    }

    fn source(
        &self,
        call: &CudaCall<'_>,
        pass: &'static str,
        dtype: DType,
        target: DType,
        grad: DType,
    ) -> Source {
        let probabilities = target.is_float();
        call.source(LOSS)
            .with("A", name(dtype.accumulator()))
            .with("T", name(dtype))
            .with("G", name(grad))
            .with("LOSS", name(if self.reduced == Reduced::None { grad } else { dtype.accumulator() }))
            .with("TARGET", name(target))
            .with("PROBABILITIES", if probabilities { "1" } else { "0" })
            .with("WIDE", if self.wide() { "1" } else { "0" })
            .with("REDUCTION", (self.reduced as u8).to_string())
            .with("PASS", pass)
    }

    /// The grid and the block size for all positions.
    fn grid(&self) -> ([usize; 3], u32) {
        match self.wide() {
            true => ([self.positions, 1, 1], threads_for(self.classes)),
            false => ([self.positions.div_ceil(128), 1, 1], 128),
        }
    }

    fn divisor(
        &self,
        call: &mut CudaCall<'_>,
        dtype: DType,
        target: Placed<'_>,
        weight: Option<Placed<'_>>,
        to: Placed<'_>,
    ) -> Result<()> {
        let source = self.source(call, "0", dtype, target.dtype, DType::F32);
        let args = Args::new().address(to.address).address(target.address).address(address(weight));
        call.launch(source, [1; 3], 512, args.words(&self.words()).fault(fault::TARGET))
    }

    /// `logits, target[, weight] -> loss, largest logits, log-sums, total`.
    pub(crate) fn forward(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, [loss, largest, logs, total]) =
            (call.ins.clone(), <[Placed<'_>; 4]>::try_from(&call.outs[..]).or_else(|_| call.missing())?);
        let (x, target, weight) = (ins[0], ins[1], ins.get(2).copied());
        self.divisor(call, x.dtype, target, weight, total)?;
        let losses = if self.reduced == Reduced::None { loss.address } else { call.scratch_address() };
        let (grid, threads) = self.grid();
        let source = self.source(call, "1", x.dtype, target.dtype, loss.dtype);
        let args = Args::new().address(losses).address(largest.address).address(logs.address);
        let args = args.address(x.address).address(target.address).address(address(weight));
        call.launch(source, grid, threads, args.words(&self.words()))?;
        if self.reduced == Reduced::None {
            return Ok(());
        }
        let source = self.source(call, "2", x.dtype, target.dtype, loss.dtype);
        let args = Args::new().address(loss.address).address(losses).address(total.address);
        call.launch(source, [1; 3], 512, args.words(&self.words()))
    }

    /// `grad, logits, target, largest logits, log-sums, total[, weight] -> grad of logits`.
    pub(crate) fn backward(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let [grad, x, target, largest, logs, total, weight @ ..] = &ins[..] else { return call.missing() };
        let (grid, threads) = self.grid();
        let source = self.source(call, "3", x.dtype, target.dtype, grad.dtype);
        let all = [grad, x, target, largest, logs, total];
        let args = all.into_iter().fold(Args::new().address(out.address), |args, x| args.address(x.address));
        let args = args.address(address(weight.first().copied())).words(&self.words());
        call.launch(source, grid, threads, args)
    }

    /// `target[, weight] -> coefficients`.
    pub(crate) fn coefficients(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let (grid, threads) = self.grid();
        let source = self.source(call, "4", out.dtype, ins[0].dtype, DType::F32);
        let args = Args::new().address(out.address).address(ins[0].address);
        let args = args.address(address(ins.get(1).copied())).words(&self.words());
        call.launch(source, grid, threads, args)
    }

    /// `log-probabilities, target[, weight] -> loss, total`.
    pub(crate) fn likelihood(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, [loss, total]) =
            (call.ins.clone(), <[Placed<'_>; 2]>::try_from(&call.outs[..]).or_else(|_| call.missing())?);
        let (x, target, weight) = (ins[0], ins[1], ins.get(2).copied());
        self.divisor(call, x.dtype, target, weight, total)?;
        let source = self.source(call, "5", x.dtype, target.dtype, loss.dtype);
        let args = Args::new().address(loss.address).address(x.address).address(target.address);
        let args = args.address(address(weight)).address(total.address).words(&self.words());
        call.launch(source, [1; 3], 512, args)
    }

    /// `grad, target, total[, weight] -> grad of log-probabilities`.
    pub(crate) fn likelihood_backward(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let [grad, target, total, weight @ ..] = &ins[..] else { return call.missing() };
        call.push(Step::Clear { address: out.address, bytes: (out.len() * out.dtype.size()) as u64 });
        let source = self.source(call, "6", out.dtype, target.dtype, grad.dtype);
        let args = Args::new().address(out.address).address(grad.address).address(target.address);
        let args = args.address(total.address).address(address(weight.first().copied()));
        call.launch(source, [self.positions.div_ceil(512), 1, 1], 512, args.words(&self.words()))
    }
}
