//! Computes the sizes of a convolution, and checks that shapes and options are compatible.

use super::options::{ConvOptions, ConvPadding, ConvTransposeOptions};
use crate::cpu::kernels::conv::ConvShape;
use crate::error::{Error, Result};

/// The operands' shapes, for checks and their messages.
pub(super) struct ConvOperands<'a> {
    pub(super) op: &'static str,
    /// Its shape, with the batch.
    pub(super) input: &'a [usize],
    pub(super) weight: &'a [usize],
    pub(super) bias: Option<&'a [usize]>,
    /// Whether a transposed convolution may return empty images. As in PyTorch, which allows it for an empty batch and for
    /// 16-bit floats.
    pub(super) may_be_empty: bool,
}

/// The options that both directions share.
struct Windows<const N: usize> {
    stride: [usize; N],
    dilation: [usize; N],
    groups: usize,
}

impl ConvOperands<'_> {
    fn misfit(&self, why: impl std::fmt::Display) -> Error {
        let ConvOperands { op, input, weight, bias, .. } = self;
        let bias = bias.map_or_else(String::new, |bias| format!(", bias {bias:?}"));
        Error::shape(op, format!("{why} (input {input:?}, weight {weight:?}{bias})"))
    }

    fn choice(&self, why: impl Into<String>) -> Error {
        Error::argument(self.op, why)
    }

    /// Checks that both directions share; `results` is the number of output channels.
    fn check<const N: usize>(&self, windows: &Windows<N>, results: usize) -> Result<()> {
        let &Windows { stride, dilation, groups } = windows;
        if stride.contains(&0) {
            return Err(self.choice(format!("stride {stride:?}: windows must move by at least 1")));
        }
        if dilation.contains(&0) {
            return Err(self.choice(format!("dilation {dilation:?} must be at least 1")));
        }
        let filters = self.weight[0];
        if filters < groups || !filters.is_multiple_of(groups) {
            let why = format!("the first size of the weight, {filters}, is not divisible by {groups} groups");
            return Err(self.misfit(why));
        }
        if self.weight[2..].contains(&0) {
            return Err(self.misfit("a window must have at least one element"));
        }
        if self.input[2..].contains(&0) {
            return Err(self.misfit("only the batch and the channels of an input may be empty"));
        }
        if self.bias.is_some_and(|bias| bias != [results]) {
            return Err(self.misfit(format!("the bias must have one dimension with {results} elements")));
        }
        Ok(())
    }

    fn ranks<const N: usize>(&self, groups: usize) -> Result<()> {
        if groups == 0 {
            return Err(self.choice("groups must be at least 1"));
        }
        match self.input.len() == N + 2 && self.weight.len() == N + 2 {
            true => Ok(()),
            false => Err(self.misfit(format!(
                "needs an input of {} dimensions, or of {} without a batch, and a weight of {}",
                N + 2,
                N + 1,
                N + 2
            ))),
        }
    }
}

/// Returns `N` sizes as the last of three; the missing leading ones are `first`.
fn three<const N: usize>(sizes: &[usize], first: usize) -> [usize; 3] {
    let mut all = [first; 3];
    all[3 - N..].copy_from_slice(sizes);
    all
}

/// The distance from the first to the last element of a window.
fn reach(kernel: usize, dilation: usize) -> Option<usize> {
    (kernel - 1).checked_mul(dilation)?.checked_add(1)
}

/// The sizes of a forward convolution.
pub(super) fn forward<const N: usize>(
    given: &ConvOperands<'_>,
    options: &ConvOptions<N>,
) -> Result<ConvShape> {
    let &ConvOptions { stride, padding, dilation, groups } = options;
    given.ranks::<N>(groups)?;
    let (input, weight) = (given.input, given.weight);
    given.check(&Windows { stride, dilation, groups }, weight[0])?;
    if weight[1].checked_mul(groups) != Some(input[1]) {
        let why =
            format!("the input has {} channels, but {} groups of {} are needed", input[1], groups, weight[1]);
        return Err(given.misfit(why));
    }
    if padding == ConvPadding::Same && stride != [1; N] {
        return Err(given.choice(format!("padding `Same` needs a stride of 1, not {stride:?}")));
    }
    let (mut before, mut output) = ([0; N], [0; N]);
    for i in 0..N {
        let (size, kernel) = (input[2 + i], weight[2 + i]);
        let window = reach(kernel, dilation[i]);
        let both = match padding {
            ConvPadding::Zeros(zeros) => zeros[i].checked_mul(2),
            ConvPadding::Same => window.map(|window| window - 1),
            ConvPadding::Valid => Some(0),
        };
        let padded = both.and_then(|both| size.checked_add(both));
        let (Some(window), Some(both), Some(padded)) = (window, both, padded) else {
            return Err(given.choice(format!("{options:?} leads to sizes that overflow")));
        };
        if window > padded {
            let why = format!(
                "a window spans {window} elements of dimension {}, which has only {padded} with padding",
                2 + i
            );
            return Err(given.misfit(why));
        }
        before[i] = both / 2;
        output[i] = (padded - window) / stride[i] + 1;
    }
    Ok(ConvShape {
        rank: N,
        batch: input[0],
        groups,
        in_channels: input[1],
        out_channels: weight[0],
        input: three::<N>(&input[2..], 1),
        output: three::<N>(&output, 1),
        kernel: three::<N>(&weight[2..], 1),
        stride: three::<N>(&stride, 1),
        padding: three::<N>(&before, 0),
        dilation: three::<N>(&dilation, 1),
    })
}

/// The sizes of the convolution whose derivative the transposed one is: its input is the output here.
pub(super) fn transposed<const N: usize>(
    given: &ConvOperands<'_>,
    options: &ConvTransposeOptions<N>,
) -> Result<ConvShape> {
    let &ConvTransposeOptions { stride, padding, output_padding, dilation, groups } = options;
    given.ranks::<N>(groups)?;
    let (input, weight) = (given.input, given.weight);
    let Some(results) = weight[1].checked_mul(groups) else {
        return Err(given.choice(format!("{groups} groups are too many")));
    };
    given.check(&Windows { stride, dilation, groups }, results)?;
    if input[1] != weight[0] {
        let why = format!("the input has {} channels, but the weight has {}", input[1], weight[0]);
        return Err(given.misfit(why));
    }
    let mut output = [0; N];
    for i in 0..N {
        let (size, kernel) = (input[2 + i], weight[2 + i]);
        if output_padding[i] >= stride[i].max(dilation[i]) {
            let why = format!(
                "output padding {output_padding:?} must be smaller than the stride {stride:?} or the dilation {dilation:?}"
            );
            return Err(given.choice(why));
        }
        let full = (size - 1).checked_mul(stride[i]).zip(reach(kernel, dilation[i]));
        let full =
            full.and_then(|(to_last, window)| to_last.checked_add(window)?.checked_add(output_padding[i]));
        let (Some(full), Some(both)) = (full, padding[i].checked_mul(2)) else {
            return Err(given.choice(format!("{options:?} leads to sizes that overflow")));
        };
        if full < both || (full == both && !given.may_be_empty) {
            let why =
                format!("a padding of {padding:?} leaves nothing of {full} elements of dimension {}", 2 + i);
            return Err(given.misfit(why));
        }
        output[i] = full - both;
    }
    Ok(ConvShape {
        rank: N,
        batch: input[0],
        groups,
        in_channels: results,
        out_channels: weight[0],
        input: three::<N>(&output, 1),
        output: three::<N>(&input[2..], 1),
        kernel: three::<N>(&weight[2..], 1),
        stride: three::<N>(&stride, 1),
        padding: three::<N>(&padding, 0),
        dilation: three::<N>(&dilation, 1),
    })
}
