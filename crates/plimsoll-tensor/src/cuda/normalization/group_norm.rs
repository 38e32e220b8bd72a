//! Group normalization, and instance normalization as groups of one channel.

use plimsoll_cuda::Args;

use crate::cuda::{CudaCall, Placed, name};
use crate::error::Result;

const TEXT: &str = include_str!("group_norm.cu");

/// The sizes `[batch, channels, inner]`, and the memory layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouped {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
    pub(crate) groups: usize,
    /// Whether the layout is channels-last.
    pub(crate) last: bool,
}

fn address(x: Option<&Placed<'_>>) -> u64 {
    x.map_or(0, |x| x.address)
}

impl Grouped {
    fn launch(
        &self,
        call: &mut CudaCall<'_>,
        pass: &'static str,
        (blocks, threads): (usize, u32),
        args: Args,
    ) -> Result<()> {
        let dtype = call.ins[0].dtype;
        let source = call
            .source(TEXT)
            .with("A", name(dtype.accumulator()))
            .with("T", name(dtype))
            .with("LAST", if self.last { "1" } else { "0" })
            .with("PASS", pass);
        let words = [self.batch, self.channels, self.inner, self.groups].map(|n| n as u64);
        call.launch(source, [blocks, 1, 1], threads, args.words(&words))
    }

    /// `x[, weight[, bias]] -> out, mean, rstd`.
    pub(crate) fn forward(&self, call: &mut CudaCall<'_>, eps: f64) -> Result<()> {
        let (ins, outs) = (call.ins.clone(), call.outs.clone());
        call.float(&ins)?;
        let args = outs.iter().fold(Args::new(), |args, out| args.address(out.address));
        let args = args.address(ins[0].address).address(address(ins.get(1))).address(address(ins.get(2)));
        self.launch(call, "0", (self.batch * self.groups, 512), args.f64(eps))
    }

    /// `grad, x, mean, rstd[, weight] -> grads of x, weight and bias`.
    pub(crate) fn backward(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, outs, sums) = (call.ins.clone(), call.outs.clone(), call.scratch_address());
        call.float(&ins[..2])?;
        let four =
            |first: u64| ins[..4].iter().fold(Args::new().address(first), |args, x| args.address(x.address));
        let args = four(outs[0].address).address(address(ins.get(4)));
        self.launch(call, "1", (self.batch * self.groups, 512), args)?;
        self.launch(call, "2", (self.batch * self.channels, 256), four(sums))?;
        let args = Args::new().address(outs[1].address).address(outs[2].address).address(sums);
        self.launch(call, "3", (self.channels.div_ceil(256), 256), args)
    }
}
