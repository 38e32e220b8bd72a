//! Distances between all pairs from two sets of vectors (the `p`-norm of the difference), without storing the differences.

use crate::number::Float;
use crate::parallel::for_each_piece;

/// The sizes of two sets: `rows` and `columns` vectors with `width` elements.
#[derive(Clone, Copy, Debug)]
pub struct Sets {
    pub rows: usize,
    pub columns: usize,
    pub width: usize,
}

/// `out[b][i][j] = |x[b][i] - y[b][j]|_p`.
pub fn distances<T: Float>(sets: Sets, p: f64, (x, y): (&[T], &[T]), out: &mut [T]) {
    let Sets { rows, columns, width } = sets;
    for_each_piece(out, columns.max(1), |start, piece| {
        for (i, row) in piece.chunks_mut(columns.max(1)).enumerate() {
            let row_of = start / columns.max(1) + i;
            let a = &x[row_of * width..][..width];
            let others = &y[row_of / rows * columns * width..];
            for (j, out) in row.iter_mut().enumerate() {
                *out = T::of(norm(p, a, &others[j * width..][..width]));
            }
        }
    });
}

fn norm<T: Float>(p: f64, a: &[T], b: &[T]) -> f64 {
    let differences = a.iter().zip(b).map(|(&a, &b)| (a.wide() - b.wide()).abs());
    match p {
        0.0 => differences.filter(|&d| d != 0.0).count() as f64,
        1.0 => differences.sum(),
        2.0 => differences.map(|d| d * d).sum::<f64>().sqrt(),
        f64::INFINITY => differences.fold(0.0, |max: f64, d| if d > max || d.is_nan() { d } else { max }),
        p => differences.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p),
    }
}

/// `out[b][i] = Σ_j grad[b][i][j] · d/dx |x[b][i] - y[b][j]|_p`. `by` returns the position of pair `(i, j)` in `grad` and
/// `distance`, so that the function works for both sides. `stored` rounds a difference in the same way as the stored distances:
/// the largest difference is found by comparing it with the distance.
pub fn distances_backward<T: Float>(
    sets: Sets,
    p: f64,
    (x, y): (&[T], &[T]),
    (grad, distance): (&[T], &[T]),
    by: impl Fn(usize, usize) -> usize + Sync,
    stored: impl Fn(f64) -> f64 + Sync,
    out: &mut [T],
) {
    let Sets { rows, columns, width } = sets;
    for_each_piece(out, width.max(1), |start, piece| {
        for (i, out) in piece.chunks_mut(width.max(1)).enumerate() {
            let row = start / width.max(1) + i;
            let (a, batch) = (&x[row * width..][..width], row / rows);
            for (k, out) in out.iter_mut().enumerate() {
                let mut sum = 0.0;
                for j in 0..columns {
                    let at = batch * rows * columns + by(row % rows, j);
                    // Computed in the type of the elements, since it may equal the distance.
                    let d = (a[k] - y[(batch * columns + j) * width + k]).wide();
                    let d = if p == f64::INFINITY { stored(d) } else { d };
                    sum += grad[at].wide() * slope(p, d, distance[at].wide());
                }
                *out = T::of(sum);
            }
        }
    });
}

/// The derivative of the distance with respect to one difference.
fn slope(p: f64, d: f64, distance: f64) -> f64 {
    let sign = if d == 0.0 { 0.0 } else { d.signum() };
    match p {
        0.0 => 0.0,
        1.0 => sign,
        f64::INFINITY if d.abs() == distance => sign,
        f64::INFINITY => 0.0,
        _ if distance == 0.0 => 0.0,
        2.0 => d / distance,
        _ if d == 0.0 => 0.0,
        p => sign * (d.abs() / distance).powf(p - 1.0),
    }
}
