//! Batch normalization: one launch computes partial sums for each channel, a second one adds them in a fixed order, and then
//! one pass goes over the images.
//!
//! Channels-last images are read by rows, 16 bytes per thread; others one element per thread.

use plimsoll_cuda::{Args, Source};

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("batch_norm.cu");
const UPDATE: &str = include_str!("batch_norm_update.cu");

/// The memory layout of images: `[outer, channels, inner]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Images {
    pub(crate) outer: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
}

/// The ReLU after a normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// No ReLU.
    None,
    /// The backward pass recomputes the ReLU's input.
    Recomputed,
    /// A residual is added before the ReLU; the backward pass reads the ReLU's output.
    FromOutput,
    /// A residual is added before the ReLU; the backward pass recomputes its output from the input and the residual.
    FromResidual,
}

impl Cut {
    fn adds(self) -> bool {
        matches!(self, Cut::FromOutput | Cut::FromResidual)
    }
}

/// The division of the images among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    last: bool,
    vector: usize,
    lanes: usize,
    /// The number of adjacent blocks, and the number of rows.
    across: usize,
    rows: usize,
}

impl Images {
    fn tiles(self, bytes: usize, aligned: bool) -> Tiles {
        let Images { outer, channels, inner } = self;
        if inner != 1 {
            return Tiles { last: false, vector: 1, lanes: 1, across: channels, rows: outer * inner };
        }
        let fits = |count: &usize| count * bytes <= 16 && channels.is_multiple_of(*count) && aligned;
        let vector = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let lanes = channels.div_ceil(vector).next_power_of_two().clamp(1, 32);
        Tiles { last: true, vector, lanes, across: channels.div_ceil(vector * lanes), rows: outer }
    }

    /// The number of parts into which sums are split. It depends only on sizes.
    fn parts(self, dtype: DType) -> usize {
        let tiles = self.tiles(dtype.size(), true);
        let step = if tiles.last { 256 / tiles.lanes } else { 256 };
        tiles.rows.div_ceil(step * 16).clamp(1, (2048 / tiles.across.max(1)).clamp(1, 512))
    }

    /// Bytes of scratch memory for the partial sums.
    pub(crate) fn scratch(self, dtype: DType) -> u64 {
        (2 * self.parts(dtype) * self.channels * dtype.accumulator().size()) as u64
    }

    fn len(self) -> usize {
        self.outer * self.channels * self.inner
    }
}

/// The statistics and parameters with which the elements of a channel are normalized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale<'a> {
    pub(crate) mean: Placed<'a>,
    pub(crate) rstd: Placed<'a>,
    pub(crate) weight: Option<Placed<'a>>,
    pub(crate) bias: Option<Placed<'a>>,
}

struct Pass {
    source: Source,
    tiles: Tiles,
    images: Images,
}

fn address(x: Option<Placed<'_>>) -> u64 {
    x.map_or(0, |x| x.address)
}

impl Pass {
    /// Prepares a pass over images at these addresses.
    fn new(call: &CudaCall<'_>, images: Images, dtype: DType, cut: Cut, streams: &[u64]) -> Pass {
        let tiles = images.tiles(dtype.size(), streams.iter().all(|at| at.is_multiple_of(16)));
        let source = call
            .source(TEXT)
            .with("A", name(dtype.accumulator()))
            .with("T", name(dtype))
            .with("LAST", if tiles.last { "1" } else { "0" })
            .with("VEC", tiles.vector.to_string())
            .with("LANES", tiles.lanes.to_string())
            .with("RELU", (cut as u8).to_string());
        Pass { source, tiles, images }
    }

    fn types(self, weight: DType, bias: DType, given: DType) -> Pass {
        let source = self.source.with("W", name(weight)).with("B", name(bias)).with("S", name(given));
        Pass { source, ..self }
    }

    fn scaled(self, scale: &Scale<'_>) -> Pass {
        let of = |x: Option<Placed<'_>>| x.map_or(DType::F32, |x| x.dtype);
        self.types(of(scale.weight), of(scale.bias), DType::F32)
    }

    fn size(&self, part: usize) -> [u64; 4] {
        [self.images.channels, self.tiles.rows, part, self.images.inner].map(|n| n as u64)
    }

    /// Queues the pass over this many parts of the rows.
    fn launch(self, call: &mut CudaCall<'_>, pass: &'static str, parts: usize, args: Args) -> Result<()> {
        let part = self.tiles.rows.div_ceil(parts.max(1)).max(1);
        let args = args.words(&self.size(part));
        let grid = [self.tiles.across, parts, 1];
        call.launch(self.source.with("PASS", pass), grid, 256, args)
    }

    /// The number of parts of a pass that writes images: enough to fill a device, with several rows for each thread.
    fn rows_apart(&self) -> usize {
        let step = if self.tiles.last { 256 / self.tiles.lanes } else { 256 };
        self.tiles.rows.div_ceil(step * 8).clamp(1, (8192 / self.tiles.across.max(1)).max(1)).min(65_535)
    }
}

/// `x -> out, mean, rstd, variance`, with the images' own statistics or given ones.
pub(crate) fn forward(
    call: &mut CudaCall<'_>,
    images: Images,
    given: Option<[Placed<'_>; 2]>,
    [weight, bias, residual]: [Option<Placed<'_>>; 3],
    cut: Cut,
    eps: f64,
) -> Result<()> {
    let (x, [out, mean, rstd, variance]) =
        (call.ins[0], <[Placed<'_>; 4]>::try_from(&call.outs[..]).or_else(|_| call.missing())?);
    let dtype = call.float(&[x, out])?;
    let numbers = Args::new().address(mean.address).address(rstd.address).address(variance.address);
    if let Some([of_mean, of_variance]) = given {
        if of_mean.dtype != of_variance.dtype {
            return call.missing();
        }
        let pass =
            Pass::new(call, images, dtype, Cut::None, &[]).types(DType::F32, DType::F32, of_mean.dtype);
        let args =
            numbers.address(of_mean.address).address(of_variance.address).f64(eps).size(images.channels);
        let grid = [images.channels.div_ceil(256), 1, 1];
        call.launch(pass.source.with("PASS", "2"), grid, 256, args)?;
    } else {
        let (parts, partial) = (images.parts(dtype), call.scratch_address());
        let plain = |call: &CudaCall<'_>| {
            Pass::new(call, images, dtype, Cut::None, &[x.address]).types(DType::F32, DType::F32, DType::F32)
        };
        let pass = plain(call);
        pass.launch(call, "0", parts, Args::new().address(partial).address(x.address))?;
        let pass = plain(call);
        let args = numbers.address(partial).address(x.address).size(parts).f64(eps).words(&pass.size(1));
        let grid = [images.channels.div_ceil(32), 1, 1];
        call.launch(pass.source.with("PASS", "1"), grid, 1024, args)?;
    }
    apply(call, images, &Scale { mean, rstd, weight, bias }, residual, cut)
}

/// `x -> out` with known statistics.
pub(crate) fn apply(
    call: &mut CudaCall<'_>,
    images: Images,
    scale: &Scale<'_>,
    residual: Option<Placed<'_>>,
    cut: Cut,
) -> Result<()> {
    let (x, out) = (call.ins[0], call.outs[0]);
    let dtype = call.float(&[x, out])?;
    if images.len() == 0 {
        return Ok(());
    }
    let Scale { mean, rstd, weight, bias } = *scale;
    let streams = [x.address, out.address, address(residual)];
    let pass = Pass::new(call, images, dtype, cut, &streams).scaled(scale);
    let args = Args::new().address(out.address).address(x.address).address(address(residual));
    let args =
        args.address(mean.address).address(rstd.address).address(address(weight)).address(address(bias));
    let parts = pass.rows_apart();
    pass.launch(call, "3", parts, args)
}

/// `grad, x[, out or residual] -> grads of x, weight and bias[, of the residual]`. `batch` says whether the statistics were
/// those of `x`.
pub(crate) fn backward(
    call: &mut CudaCall<'_>,
    images: Images,
    batch: bool,
    scale: &Scale<'_>,
    made: Option<Placed<'_>>,
    cut: Cut,
) -> Result<()> {
    let (grad, x) = (call.ins[0], call.ins[1]);
    let dtype = call.float(&[grad, x])?;
    let [to_x, to_weight, to_bias] = [0, 1, 2].map(|i| call.outs[i]);
    let to_residual = call.outs.get(3).map_or(0, |out| out.address);
    let (parts, partial) = (images.parts(dtype), call.scratch_address());
    let Scale { mean, rstd, weight, bias } = *scale;
    let numbers = |args: Args| {
        let args = args.address(mean.address).address(rstd.address);
        args.address(address(weight)).address(address(bias))
    };
    let streams = [grad.address, x.address, address(made), to_residual];
    let pass = Pass::new(call, images, dtype, cut, &streams).scaled(scale);
    let args = Args::new().address(partial).address(to_residual).address(grad.address).address(x.address);
    pass.launch(call, "4", parts, numbers(args.address(address(made))))?;
    let pass = Pass::new(call, images, dtype, Cut::None, &[]).types(DType::F32, DType::F32, DType::F32);
    let args = Args::new().address(to_weight.address).address(to_bias.address).address(partial);
    let args = args.address(rstd.address).size(parts).words(&pass.size(1));
    call.launch(pass.source.with("PASS", "5"), [images.channels.div_ceil(32), 1, 1], 1024, args)?;
    if images.len() == 0 {
        return Ok(());
    }
    // The gradient of the residual already includes the ReLU.
    let (from, cut) = if cut.adds() { (to_residual, Cut::None) } else { (grad.address, cut) };
    let pass = Pass::new(call, images, dtype, cut, &[from, x.address, to_x.address]).scaled(scale);
    let pass = Pass { source: pass.source.with("BATCH", if batch { "1" } else { "0" }), ..pass };
    let args = numbers(Args::new().address(to_x.address).address(from).address(x.address));
    let parts = pass.rows_apart();
    pass.launch(call, "6", parts, args.address(to_weight.address).address(to_bias.address))
}

/// `mean, variance -> running mean, running variance[, batches]` in place. Without a share, the running statistics are the mean
/// over all batches.
pub(crate) fn update(call: &mut CudaCall<'_>, share: Option<f64>, correction: f64) -> Result<()> {
    let ([of_mean, of_variance], [mean, variance, batches @ ..]) = (&call.ins[..], &call.outs[..]) else {
        return call.missing();
    };
    if of_mean.dtype != of_variance.dtype || mean.dtype != variance.dtype {
        return call.missing();
    }
    let source = call
        .source(UPDATE)
        .with("A", name(mean.dtype.accumulator()))
        .with("R", name(mean.dtype))
        .with("V", name(of_mean.dtype));
    let args = Args::new()
        .address(mean.address)
        .address(variance.address)
        .address(address(batches.first().copied()));
    let args = args.address(of_mean.address).address(of_variance.address).f64(share.unwrap_or(-1.0));
    let args = args.f64(correction).size(mean.len());
    call.launch(source, [1; 3], 256, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_channels_last_images_by_sixteen_bytes() {
        let images = Images { outer: 128 * 56 * 56, channels: 64, inner: 1 };
        let tiles = images.tiles(2, true);
        assert_eq!((tiles.vector, tiles.lanes, tiles.across), (8, 8, 1));
        assert_eq!(images.parts(DType::BF16), 512);
        assert_eq!(images.tiles(2, false).vector, 1);
        let odd = Images { outer: 6, channels: 3, inner: 1 };
        assert_eq!((odd.tiles(4, true).vector, odd.tiles(4, true).lanes, odd.parts(DType::F32)), (1, 4, 1));
    }
}
