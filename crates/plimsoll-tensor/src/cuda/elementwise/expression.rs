//! Evaluates an expression for each element, for any types. Used by the tables of operators, fills and copies.

use std::borrow::Cow;

use plimsoll_cuda::Args;
use smallvec::{SmallVec, smallvec};

use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, blocks_for, name};
use crate::dtype::{DType, result_type};
use crate::error::Result;
use crate::layout::Dims;

const TEXT: &str = include_str!("expression.cu");

/// An expression to evaluate.
#[derive(Clone, Debug)]
pub(crate) struct Expression<'e> {
    /// A CUDA C++ expression of the input elements `a` to `d`, the old output element `y`, its index `i`, and constants
    /// `C(…)`.
    pub(crate) text: Cow<'e, str>,
    /// The compute type: an accumulator type, or a word type for elements that are only moved.
    pub(crate) compute: &'static str,
    /// Whether `y` is read.
    pub(crate) reads_output: bool,
}

impl<'e> Expression<'e> {
    /// An expression that is computed in the accumulator type of `compute`.
    pub(crate) fn new(text: impl Into<Cow<'e, str>>, compute: DType) -> Expression<'e> {
        Expression { text: text.into(), compute: name(compute.accumulator()), reads_output: false }
    }
}

/// The maximum number of numeric constants that an expression can have as arguments.
pub(in crate::cuda) const NUMBERS: usize = 8;

/// Replaces the constants of an expression by arguments: `C(2.5)` becomes `p0`, so that one kernel works for all values.
/// Constants that exceed the available arguments stay in the text.
pub(in crate::cuda) fn hoisted(text: &str) -> (String, [f64; NUMBERS]) {
    let (mut numbers, mut count) = ([0.0f64; NUMBERS], 0);
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("C(") {
        let (before, from) = rest.split_at(at);
        let starts_a_word = before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let number = from.find(')').and_then(|end| Some((end, from[2..end].parse::<f64>().ok()?)));
        let number = number.filter(|_| !starts_a_word);
        out.push_str(before);
        let known = |value: f64| numbers[..count].iter().position(|x| x.to_bits() == value.to_bits());
        rest = match number.map(|(end, value)| (end, value, known(value))) {
            Some((end, _, Some(slot))) => {
                out.push_str(&format!("p{slot}"));
                &from[end + 1..]
            }
            Some((end, value, None)) if count < NUMBERS => {
                numbers[count] = value;
                out.push_str(&format!("p{count}"));
                count += 1;
                &from[end + 1..]
            }
            _ => {
                out.push_str("C(");
                &from[2..]
            }
        };
    }
    out.push_str(rest);
    (out, numbers)
}

/// Evaluates an expression of up to four inputs, broadcast to the output.
#[allow(clippy::needless_pass_by_value, reason = "made for the call")]
pub(crate) fn evaluate(
    call: &mut CudaCall<'_>,
    expression: Expression<'_>,
    ins: &[Placed<'_>],
    out: Placed<'_>,
) -> Result<()> {
    if ins.len() > 4 {
        return call.missing();
    }
    if out.is_empty() {
        return Ok(());
    }
    let space = Space::of(out.layout, ins);
    // Everything collapses to one dimension, and each operand is contiguous or broadcast.
    let is_flat = space.rank() == 1
        && (space.strides[0][0] == 1 || space.size[0] == 1)
        && space.strides[1..].iter().all(|strides| strides[0] <= 1);
    let flat = |n: usize| is_flat && space.strides.get(n + 1).is_some_and(|strides| strides[0] == 1);
    let mut beside: SmallVec<[Placed<'_>; 5]> = smallvec![out];
    beside.extend(ins.iter().enumerate().filter(|&(n, _)| flat(n)).map(|(_, x)| *x));
    let vector = if is_flat { together(&beside) } else { along_the_last(&space, out, ins) };
    let is_beside = |n: usize| match is_flat {
        true => flat(n),
        false => vector == 1 || space.strides.get(n + 1).is_some_and(|strides| strides.last() == Some(&1)),
    };
    // This many threads keep a large GPU busy. With more elements, each thread reads further ahead.
    let ahead = if is_flat && vector > 1 && out.len() / vector >= 1 << 20 { 4 } else { 1 };
    let (text, numbers) = hoisted(&expression.text);
    let mut source = call
        .source(TEXT)
        .with("C", expression.compute)
        .with("EXPRESSION", format!("({text})"))
        .with("TO", element(expression.compute, out.dtype))
        .with("NINS", ins.len().to_string())
        .with("READS", if expression.reads_output { "1" } else { "0" })
        .with("RANK", if is_flat { 0 } else { space.rank() }.to_string())
        .with("VEC", vector.to_string())
        .with("AHEAD", ahead.to_string())
        .with("QUICK", if out.dtype.size() == 2 && expression.compute == "float" { "1" } else { "0" });
    let mut args = Args::new().address(out.address);
    for (n, (stride, letter)) in
        [("S0", "T0"), ("S1", "T1"), ("S2", "T2"), ("S3", "T3")].into_iter().enumerate()
    {
        let dtype = ins.get(n).map_or("u8", |x| element(expression.compute, x.dtype));
        source = source.with(letter, dtype).with(stride, if is_beside(n) { "1" } else { "0" });
        args = args.address(ins.get(n).map_or(0, |x| x.address));
    }
    args = args.size(out.len()).words(&numbers.map(f64::to_bits));
    if !is_flat {
        let mut words = space.words();
        // The kernel's struct has room for at least one input.
        words.extend(std::iter::repeat_n(0, space.rank()));
        args = args.words(&words);
    }
    let blocks = blocks_for(out.len(), 256, vector * ahead);
    call.launch(source, [blocks, 1, 1], 256, args)
}

/// The type of an element in a kernel with this compute type; if elements are only moved, the word type.
fn element(compute: &'static str, dtype: DType) -> &'static str {
    if ["u8", "u16", "u32", "u64"].contains(&compute) { compute } else { name(dtype) }
}

/// How many elements a thread reads at once: as many as fill 16 bytes in the smallest type, if every operand is aligned to
/// that many and they divide the length.
fn together(all: &[Placed<'_>]) -> usize {
    let smallest = all.iter().map(|x| x.dtype.size()).min().unwrap_or(4);
    let fits = |count: usize| {
        all[0].len().is_multiple_of(count)
            && all.iter().all(|x| x.address.is_multiple_of((count * x.dtype.size()) as u64))
    };
    [8, 4, 2].into_iter().find(|&count| count * smallest <= 16 && fits(count)).unwrap_or(1)
}

/// Like [`together`], for operands with different layouts: along the last dimension, in which each operand is
/// contiguous or broadcast.
fn along_the_last(space: &Space, out: Placed<'_>, ins: &[Placed<'_>]) -> usize {
    let all: SmallVec<[Placed<'_>; 5]> = std::iter::once(out).chain(ins.iter().copied()).collect();
    let smallest = all.iter().map(|x| x.dtype.size()).min().unwrap_or(4);
    let fits = |count: usize| {
        let lies = |(nth, (x, strides)): (usize, (&Placed<'_>, &Dims))| match strides.split_last() {
            Some((1, others)) => {
                let begins_well = x.address.is_multiple_of((count * x.dtype.size()) as u64);
                begins_well && others.iter().all(|stride| stride.is_multiple_of(count))
            }
            Some((0, _)) => nth > 0,
            _ => false,
        };
        space.size.last().is_some_and(|size| size.is_multiple_of(count))
            && all.iter().zip(&space.strides).enumerate().all(lies)
    };
    [8, 4, 2].into_iter().find(|&count| count * smallest <= 16 && fits(count)).unwrap_or(1)
}

/// Evaluates an operator's expression of all its inputs. The default compute type is their promoted type.
pub(crate) fn of_operator(call: &mut CudaCall<'_>, text: &str, compute: Option<DType>) -> Result<()> {
    let ins = call.ins.clone();
    let [out] = call.outs[..] else { return call.missing() };
    let meet = || result_type(ins.iter().map(|x| (x.dtype, !x.shape().is_empty()))).unwrap_or(out.dtype);
    let compute = compute.unwrap_or_else(meet);
    evaluate(call, Expression::new(text, compute), &ins, out)
}

/// Changes the output in place, with an expression of its old element `y` and the inputs' elements, in the output's type.
pub(crate) fn change(call: &mut CudaCall<'_>, text: &str) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    change_tensor(call, text, &ins, out)
}

/// Like [`change`], for tensors that are not those of the call.
pub(crate) fn change_tensor(
    call: &mut CudaCall<'_>,
    text: &str,
    ins: &[Placed<'_>],
    out: Placed<'_>,
) -> Result<()> {
    let expression = Expression { reads_output: true, ..Expression::new(text, out.dtype) };
    evaluate(call, expression, ins, out)
}

/// Fills a tensor with one value.
pub(crate) fn fill(call: &mut CudaCall<'_>, value: f64, out: Placed<'_>) -> Result<()> {
    evaluate(call, Expression::new(format!("C({value:?})"), DType::F64), &[], out)
}

/// Fills a contiguous output with `start`, `start + step`, ….
pub(crate) fn sequence(call: &mut CudaCall<'_>, start: f64, step: f64, out: Placed<'_>) -> Result<()> {
    evaluate(call, Expression::new(format!("C({start:?}) + C(i) * C({step:?})"), DType::F64), &[], out)
}

/// Copies an input, with broadcasting, and converts it if the types differ.
pub(crate) fn copy(call: &mut CudaCall<'_>, x: Placed<'_>, out: Placed<'_>) -> Result<()> {
    let mut expression = Expression::new("a", x.dtype);
    if x.dtype == out.dtype {
        expression.compute = match x.dtype.size() {
            8 => "u64",
            4 => "u32",
            2 => "u16",
            _ => "u8",
        };
    }
    evaluate(call, expression, &[x], out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn constants_become_arguments_so_that_one_kernel_serves_all_values() {
        let (text, numbers) = hoisted("((a * C(2.5)) + C(-1.0)) <= C(2.5) ? C(inf) : C(a)");
        assert_eq!(text, "((a * p0) + p1) <= p0 ? p2 : C(a)");
        assert_eq!(numbers[..3], [2.5, -1.0, f64::INFINITY]);
    }

    #[test]
    fn a_row_that_is_repeated_is_read_in_as_large_parts_as_it_allows() {
        let check = |row: &[usize], address: u64| {
            let (out, row) = (Layout::contiguous(&[2, 3, 16]), Layout::contiguous(row));
            let placed = |layout| Placed { address, dtype: DType::BF16, layout };
            along_the_last(&Space::of(&out, &[placed(&row)]), placed(&out), &[placed(&row)])
        };
        assert_eq!((check(&[3, 16], 512), check(&[16], 512), check(&[2, 3, 1], 512)), (8, 8, 8));
        assert_eq!((check(&[16], 520), check(&[16], 514)), (4, 1));
    }
}
