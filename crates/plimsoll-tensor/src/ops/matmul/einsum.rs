//! Sums of products in Einstein notation. The equation is parsed, then computed with `permute`, `reshape`, `matmul` and `sum`,
//! pair by pair from the left.

use smallvec::smallvec;

use crate::caller::Entry;
use crate::error::{Error, Result};
use crate::ops::borrowed;
use crate::suite::Case;
use crate::tensor::Tensor;

/// The label of a dimension: a letter, or a position in the ellipsis, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(std::cmp::Reverse<usize>),
    Letter(char),
}

fn wrong(message: String) -> Error {
    Error::argument("einsum", message)
}

/// The labels of one term; `ellipsis` is the number of dimensions that `...` stands for.
fn labels(term: &str, ellipsis: usize) -> Result<Vec<Label>> {
    let (mut labels, mut rest) = (Vec::new(), term);
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if labels.iter().any(|label| matches!(label, Label::Ellipsis(_))) || after.contains("...") {
                return Err(wrong(format!("`{term}` has more than one `...`")));
            }
            labels.extend((0..ellipsis).rev().map(|i| Label::Ellipsis(std::cmp::Reverse(i))));
            rest = after;
            continue;
        }
        if !letter.is_ascii_alphabetic() {
            return Err(wrong(format!("subscript `{letter}` in `{term}`: use letters, `...`, `,` and `->`")));
        }
        labels.push(Label::Letter(letter));
        rest = &rest[1..];
    }
    Ok(labels)
}

/// An operand and its labels, with repeated labels reduced to a diagonal.
#[track_caller]
fn operand(term: &str, number: usize, tensor: &Tensor) -> Result<(Tensor, Vec<Label>)> {
    let letters = term.chars().filter(|letter| letter.is_ascii_alphabetic()).count();
    let ellipsis = tensor.rank().checked_sub(letters).filter(|&n| n == 0 || term.contains("..."));
    let Some(ellipsis) = ellipsis else {
        let (shape, rank) = (tensor.shape(), tensor.rank());
        let message = format!(
            "`{term}` has {letters} subscripts, but operand {number} {shape:?} has {rank} dimensions"
        );
        return Err(wrong(message));
    };
    let (mut tensor, mut labels) = (tensor.clone(), labels(term, ellipsis)?);
    while let Some((first, second)) = repeated(&labels) {
        let (label, a, b) = (labels[first], tensor.shape()[first], tensor.shape()[second]);
        if a != b {
            let Label::Letter(letter) = label else { unreachable!("an ellipsis repeats no label") };
            return Err(wrong(format!("subscript `{letter}` of operand {number} has sizes {a} and {b}")));
        }
        tensor = tensor.diagonal(0, first as isize, second as isize)?;
        labels.remove(second);
        labels.remove(first);
        labels.push(label);
    }
    Ok((tensor, labels))
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|i| (i + 1..labels.len()).find(|&j| labels[i] == labels[j]).map(|j| (i, j)))
}

/// The labels of the result: those after `->`, or by default the ellipsis and the letters that occur once, sorted.
fn result(named: Option<&str>, operands: &[(Tensor, Vec<Label>)], terms: &[&str]) -> Result<Vec<Label>> {
    let mut all: Vec<Label> = operands.iter().flat_map(|(_, labels)| labels.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    let Some(named) = named else {
        let count = |letter: char| terms.iter().map(|term| term.matches(letter).count()).sum::<usize>();
        return Ok(all
            .into_iter()
            .filter(|label| !matches!(label, Label::Letter(x) if count(*x) > 1))
            .collect());
    };
    let ellipsis = all.iter().filter(|label| matches!(label, Label::Ellipsis(_))).count();
    let labels = labels(named, ellipsis)?;
    for (i, label) in labels.iter().enumerate() {
        let Label::Letter(letter) = label else { continue };
        if labels[..i].contains(label) {
            return Err(wrong(format!("subscript `{letter}` appears twice in the result `{named}`")));
        }
        if !all.contains(label) {
            return Err(wrong(format!("subscript `{letter}` of the result `{named}` is in no operand")));
        }
    }
    Ok(labels)
}

/// The tensor with a dimension for every label, in order; of size 1 for labels that it does not have.
#[track_caller]
fn spread((tensor, own): &(Tensor, Vec<Label>), all: &[Label]) -> Result<Tensor> {
    let present: Vec<isize> = all
        .iter()
        .filter_map(|label| own.iter().position(|own| own == label))
        .map(|dim| dim as isize)
        .collect();
    let missing: Vec<isize> =
        (0..all.len()).filter(|&i| !own.contains(&all[i])).map(|dim| dim as isize).collect();
    tensor.permute(&present)?.unsqueeze_dims(&missing)
}

/// Fails if a label has two different sizes, neither of which is 1.
fn check_sizes(tensors: &[Tensor], all: &[Label]) -> Result<()> {
    for (dim, label) in all.iter().enumerate() {
        let mut sizes = tensors.iter().map(|x| x.shape()[dim]).enumerate().filter(|&(_, size)| size != 1);
        let Some((first, size)) = sizes.next() else { continue };
        if let Some((other, wrong_size)) = sizes.find(|&(_, other)| other != size) {
            let name = match label {
                Label::Letter(letter) => format!("subscript `{letter}`"),
                Label::Ellipsis(_) => "a dimension of `...`".to_owned(),
            };
            return Err(wrong(format!(
                "{name} has size {size} in operand {first} and {wrong_size} in operand {other}"
            )));
        }
    }
    Ok(())
}

/// The product of two tensors of the same rank, summed over some dimensions, which remain with size 1.
#[track_caller]
fn contract(a: &Tensor, b: &Tensor, summed: &[usize]) -> Result<Tensor> {
    let alone = |x: &Tensor, other: &Tensor| -> Result<Tensor> {
        // A dimension that only one operand has is summed before the product.
        let dims: Vec<isize> = summed
            .iter()
            .filter(|&&dim| x.shape()[dim] != 1 && other.shape()[dim] == 1)
            .map(|&dim| dim as isize)
            .collect();
        if dims.is_empty() { Ok(x.clone()) } else { x.sum_keepdim(&dims) }
    };
    let (a, b) = (alone(a, b)?, alone(b, a)?);
    let (mut both, mut left, mut right, mut inner, mut ones) = (vec![], vec![], vec![], vec![], vec![]);
    for dim in 0..a.rank() {
        match (a.shape()[dim] != 1, b.shape()[dim] != 1) {
            (true, true) if summed.contains(&dim) => inner.push(dim),
            (true, true) => both.push(dim),
            (true, false) => left.push(dim),
            (false, true) => right.push(dim),
            (false, false) => ones.push(dim),
        }
    }
    let size = |x: &Tensor, dims: &[usize]| dims.iter().map(|&dim| x.shape()[dim]).product::<usize>();
    let ordered = |x: &Tensor, groups: [&[usize]; 5]| -> Result<Tensor> {
        x.permute(&groups.concat().iter().map(|&dim| dim as isize).collect::<Vec<_>>())
    };
    let (batch, rows, cols, depth) = (size(&a, &both), size(&a, &left), size(&b, &right), size(&a, &inner));
    let a_rows =
        ordered(&a, [&both, &left, &inner, &right, &ones])?.reshape([batch, rows, depth].as_slice())?;
    let b_rows =
        ordered(&b, [&both, &inner, &right, &left, &ones])?.reshape([batch, depth, cols].as_slice())?;
    let product = a_rows.bmm(&b_rows)?;
    let order = [&both[..], &left, &right, &inner, &ones].concat();
    let shape: Vec<usize> = order
        .iter()
        .map(|&dim| match () {
            () if inner.contains(&dim) => 1,
            () => a.shape()[dim].max(b.shape()[dim]) * usize::from(a.shape()[dim] * b.shape()[dim] > 0),
        })
        .collect();
    let back: Vec<isize> =
        (0..a.rank()).map(|dim| order.iter().position(|&at| at == dim).unwrap_or(dim) as isize).collect();
    product.reshape(shape.as_slice())?.permute(&back)
}

impl Tensor {
    /// A sum of products in Einstein notation, like `torch.einsum`: `"ij,jk->ik"` is a matrix product, `"ii->i"` a
    /// diagonal, `"...ij->...ji"` a transpose. Without `->`, the result has the subscripts that occur once, sorted.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Tensor};
    /// let (a, b) = (Tensor::ones(&[2, 3, 4], &Device::cpu())?, Tensor::ones(&[2, 5, 4], &Device::cpu())?);
    /// let scores = Tensor::einsum("bqd,bkd->bqk", &[&a, &b])?;
    /// assert_eq!((scores.shape(), scores.to_vec::<f32>()?[0]), (&[2, 3, 5][..], 4.0));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the equation is invalid (the error names the subscript), the number of operands is wrong, sizes differ, or
    /// memory runs out.
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[impl AsRef<Tensor>]) -> Result<Tensor> {
        let _entry = Entry::here();
        let operands = &borrowed(operands)[..];
        let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (terms, named) = match equation.split_once("->") {
            Some((terms, named)) => (terms, Some(named)),
            None => (equation.as_str(), None),
        };
        let terms: Vec<&str> = terms.split(',').collect();
        if terms.len() != operands.len() {
            let (terms, count) = (terms.len(), operands.len());
            return Err(wrong(format!("`{equation}` has {terms} operands, but {count} tensors are given")));
        }
        let parsed =
            terms.iter().zip(operands).enumerate().map(|(i, (term, tensor))| operand(term, i, tensor));
        let operands: Vec<(Tensor, Vec<Label>)> = parsed.collect::<Result<_>>()?;
        let mut all = result(named, &operands, &terms)?;
        let kept = all.len();
        let others = operands.iter().flat_map(|(_, labels)| labels.iter().copied());
        for label in others.collect::<Vec<_>>() {
            if !all.contains(&label) {
                all.push(label);
            }
        }
        let tensors: Vec<Tensor> = operands.iter().map(|x| spread(x, &all)).collect::<Result<_>>()?;
        check_sizes(&tensors, &all)?;
        let Some((first, rest)) = tensors.split_first() else { return Err(wrong("no operands".to_owned())) };
        let mut product = first.clone();
        for (i, other) in rest.iter().enumerate() {
            // A dimension is summed as soon as no later operand has it.
            let later = |dim: &usize| rest[i + 1..].iter().any(|x| x.shape()[*dim] != 1);
            let summed: Vec<usize> = (kept..all.len()).filter(|dim| !later(dim)).collect();
            product = contract(&product, other, &summed)?;
        }
        let left: Vec<isize> =
            (kept..all.len()).filter(|&dim| product.shape()[dim] != 1).map(|dim| dim as isize).collect();
        let product = if left.is_empty() { product } else { product.sum_keepdim(&left)? };
        let gone: Vec<isize> = (kept..all.len()).map(|dim| dim as isize).collect();
        product.squeeze_dims(&gone)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |equation: &'static str, shapes: &[&[usize]]| {
        Case::new(equation, shapes, move |ins| Ok(smallvec![Tensor::einsum(equation, ins)?]))
    };
    let product = |ins: &[Vec<f64>]| {
        let at = |i: usize| (0..3).map(|j| ins[0][i / 4 * 3 + j] * ins[1][j * 4 + i % 4]).sum();
        vec![(0..8).map(at).collect()]
    };
    vec![
        case("ij,jk->ik", &[&[2, 3], &[3, 4]]).expect(product),
        case("bhqd,bhkd->bhqk", &[&[2, 1, 3, 2], &[2, 1, 2, 2]]),
        case("ii", &[&[3, 3]]).expect(|ins| vec![vec![ins[0][0] + ins[0][4] + ins[0][8]]]),
        case("i,j,k->kji", &[&[2], &[3], &[2]]),
        case("...ij,...j->i...", &[&[2, 3, 4], &[1, 4]]),
    ]
}
