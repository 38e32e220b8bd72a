//! AdamW with moments in 8 bits, with the arithmetic of `AdamW8bit` in bitsandbytes, in the order of its GPU kernel: the weight
//! decay comes after the update, and a gradient that is not finite clears the moments of its element.

use smallvec::{SmallVec, smallvec};

use super::super::convert::Compute;
use super::super::parallel::{Pieces, for_each_cut};
use super::super::simd::vectorize;
use super::eight_bit::{BLOCK, QuantizationMap, signed_code};
use super::rounding::Rounding;
use crate::dtype::DType;
use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece3};

/// Blocks of a piece of work.
const BLOCKS: usize = 16;

/// One step of AdamW with moments in 8 bits, as `bitsandbytes.optim.AdamW8bit` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW8bitStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decay of the parameter itself.
    pub weight_decay: f64,
    /// Parameters with fewer elements have moments in 32 bits.
    pub min_8bit_size: usize,
}

impl AdamW8bitStep {
    /// Whether the moments of a parameter of this shape are in 8 bits.
    pub fn is_8bit(&self, shape: &[usize]) -> bool {
        shape.iter().product::<usize>() >= self.min_8bit_size
    }

    /// The fractions that the codes of the first and of the second moment stand for.
    pub fn maps() -> [&'static [f32]; 2] {
        [QuantizationMap::signed(), QuantizationMap::unsigned()].map(|map| map.values.as_slice())
    }

    /// The shapes of the state: both moments and, if they are in 8 bits, the largest size in each block of both.
    pub(super) fn state_shapes(&self, shape: &[usize]) -> SmallVec<[SmallVec<[usize; 4]>; 3]> {
        let moment: SmallVec<[usize; 4]> = SmallVec::from_slice(shape);
        if !self.is_8bit(shape) {
            return smallvec![moment.clone(), moment];
        }
        let blocks: SmallVec<[usize; 4]> = smallvec![shape.iter().product::<usize>().div_ceil(BLOCK)];
        smallvec![moment.clone(), moment, blocks.clone(), blocks]
    }

    /// The numbers of a step, counted from 1: the step size, which is negative; eps times the second bias correction; the factor
    /// of the weight decay; beta1, 1 - beta1, beta2, 1 - beta2.
    pub fn numbers(&self, step: u64) -> [f64; 7] {
        let correction1 = 1.0 - self.beta1.powf(step as f64);
        let correction2 = (1.0 - self.beta2.powf(step as f64)).sqrt();
        let keep = 1.0 - self.lr * self.weight_decay;
        let size = -self.lr * correction2 / correction1;
        [size, self.eps * correction2, keep, self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2]
    }
}

/// The rule for one element.
#[derive(Clone, Copy)]
struct Element<T> {
    size: T,
    eps: T,
    keep: T,
    beta1: T,
    fresh1: T,
    beta2: T,
    fresh2: T,
}

impl<T: Float> Element<T> {
    fn new(options: &AdamW8bitStep, step: u64) -> Element<T> {
        let [size, eps, keep, beta1, fresh1, beta2, fresh2] = options.numbers(step).map(T::of);
        Element { size, eps, keep, beta1, fresh1, beta2, fresh2 }
    }

    /// The moments with a gradient taken in.
    #[inline(always)]
    fn moments(self, g: T, mean: T, square: T) -> (T, T) {
        (mean * self.beta1 + self.fresh1 * g, square * self.beta2 + self.fresh2 * g * g)
    }

    /// The parameter after a step with these moments.
    #[inline(always)]
    fn moved(self, p: T, mean: T, square: T) -> T {
        (p + self.size * (mean / (square.sqrt() + self.eps))) * self.keep
    }
}

/// One step of a parameter whose moments are floats.
pub(super) fn small_step<T: Float>(
    options: &AdamW8bitStep,
    step: u64,
    (param, grad): (&mut [T], &[T]),
    mean: &mut [T],
    square: &mut [T],
) {
    assert_eq!(param.len(), grad.len(), "adamw8bit: parameter and gradient differ in length");
    let rule = Element::<T>::new(options, step);
    for_each_piece3((param, mean, square), PIECE / 2, |at, param, mean, square| {
        let grad = &grad[at..];
        vectorize(
            #[inline(always)]
            || {
                for (((p, mean), square), &g) in param.iter_mut().zip(mean).zip(square).zip(grad) {
                    (*mean, *square) = rule.moments(g, *mean, *square);
                    *p = rule.moved(*p, *mean, *square);
                }
            },
        );
    });
}

/// The codes of a moment, and the largest size in each block.
pub type Quantized<'a> = (&'a mut [u8], &'a mut [f32]);

/// One step of a parameter of any floating-point type of up to 32 bits, with moments in 8 bits. Blocks are of its elements in
/// memory order.
pub fn adamw_8bit_step(
    options: &AdamW8bitStep,
    step: u64,
    (param, dtype): (&mut [u8], DType),
    (grad, grad_dtype): (&[u8], DType),
    [first, second]: [Quantized<'_>; 2],
    rounding: Option<Rounding>,
) {
    const LEN: usize = BLOCKS * BLOCK;
    let (rule, size, grad_size) = (Element::<f32>::new(options, step), dtype.size(), grad_dtype.size());
    let len = first.0.len();
    assert_eq!([param.len() / size, grad.len() / grad_size], [len; 2], "adamw8bit: the lengths differ");
    let (load, load_grad, store) = (f32::load(dtype), f32::load(grad_dtype), f32::store(dtype));
    let codes = [first.0, second.0].map(|codes| Pieces::of(codes, LEN));
    let sizes = [first.1, second.1].map(|sizes| Pieces::of(sizes, BLOCKS));
    let cut = (Pieces::of(param, LEN * size), codes, sizes);
    for_each_cut(len.div_ceil(LEN), cut, |chunk, (param, [mean, square], [mean_sizes, square_sizes])| {
        let both = mean.chunks_mut(BLOCK).zip(square.chunks_mut(BLOCK));
        let sizes = mean_sizes.iter_mut().zip(square_sizes);
        for (nth, ((mean, square), (mean_size, square_size))) in both.zip(sizes).enumerate() {
            let (n, at) = (mean.len(), nth * BLOCK);
            let (mut p, mut g) = ([0.0; BLOCK], [0.0; BLOCK]);
            load(param, at, 1, &mut p[..n]);
            load_grad(grad, chunk * LEN + at, 1, &mut g[..n]);
            block_step(rule, (&mut p[..n], &g[..n]), (mean, mean_size), (square, square_size));
            let to = &mut param[at * size..][..n * size];
            match rounding.filter(|_| dtype == DType::BF16) {
                Some(rounding) => rounding.store(0, chunk * LEN + at, &p[..n], to),
                None => store(&p[..n], to),
            }
        }
    });
}

/// One step of a block of at most [`BLOCK`] elements.
fn block_step(
    rule: Element<f32>,
    (param, grad): (&mut [f32], &[f32]),
    (mean, mean_size): (&mut [u8], &mut f32),
    (square, square_size): (&mut [u8], &mut f32),
) {
    let (signed, unsigned) = (QuantizationMap::signed(), QuantizationMap::unsigned());
    let (mut means, mut squares) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    vectorize(
        #[inline(always)]
        || {
            let (mut largest, mut largest_square) = (0.0f32, 0.0f32);
            let codes = mean.iter().zip(square.iter());
            let values = means.iter_mut().zip(&mut squares);
            for (((p, &g), (&m, &s)), (m_value, s_value)) in param.iter_mut().zip(grad).zip(codes).zip(values)
            {
                if g.is_finite() {
                    let old = (
                        signed.values[usize::from(m)] * *mean_size,
                        unsigned.values[usize::from(s)] * *square_size,
                    );
                    (*m_value, *s_value) = rule.moments(g, old.0, old.1);
                    *p = rule.moved(*p, *m_value, *s_value);
                }
                largest = largest.max(m_value.abs());
                largest_square = largest_square.max(*s_value);
            }
            (*mean_size, *square_size) = (largest, largest_square);
            let values = means.iter().zip(&squares);
            for ((m, s), (&m_value, &s_value)) in mean.iter_mut().zip(square).zip(values) {
                *m = signed_code(signed, m_value / largest, m_value);
                *s = unsigned.code(s_value / largest_square);
            }
        },
    );
}
