//! The three passes of a convolution in `f64` and `i64`: plain loops, for checks and for whole numbers. Those in `f32` are in
//! the files beside this one.

use super::conv::Conv2dShape;
use super::number::Number;
use super::parallel::for_each_piece;

/// The input position that tap `(ky, kx)` of an output's window sees, if it is inside the image.
#[inline(always)]
fn seen(s: &Conv2dShape, [y, x]: [usize; 2], [ky, kx]: [usize; 2]) -> Option<usize> {
    let row = (y * s.stride[0] + ky).checked_sub(s.padding[0]).filter(|&row| row < s.in_h)?;
    let col = (x * s.stride[1] + kx).checked_sub(s.padding[1]).filter(|&col| col < s.in_w)?;
    Some(row * s.in_w + col)
}

/// Calls `body(output position, input position)` for each pair that tap `(ky, kx)` connects in one plane.
fn for_each_pair(s: &Conv2dShape, tap: [usize; 2], mut body: impl FnMut(usize, usize)) {
    for y in 0..s.out_h() {
        for x in 0..s.out_w() {
            if let Some(input) = seen(s, [y, x], tap) {
                body(y * s.out_w() + x, input);
            }
        }
    }
}

fn taps(s: &Conv2dShape) -> impl Iterator<Item = [usize; 2]> + use<> {
    let (h, w) = (s.kernel_h, s.kernel_w);
    (0..h * w).map(move |tap| [tap / w, tap % w])
}

/// `x, w[, bias] -> out`.
pub(crate) fn conv2d<T: Number>(s: &Conv2dShape, x: &[T], w: &[T], bias: Option<&[T]>, out: &mut [T]) {
    let (in_plane, out_plane) = (s.in_h * s.in_w, s.out_h() * s.out_w());
    for_each_piece(out, out_plane.max(1), |start, plane| {
        let (n, o) = (start / out_plane / s.out_channels, start / out_plane % s.out_channels);
        plane.fill(bias.map_or(T::default(), |bias| bias[o]));
        for c in 0..s.in_channels {
            let x = &x[(n * s.in_channels + c) * in_plane..][..in_plane];
            let w = &w[(o * s.in_channels + c) * s.kernel_h * s.kernel_w..];
            for (tap, &w) in taps(s).zip(w) {
                for_each_pair(s, tap, |to, from| plane[to] = x[from].times_plus(w, plane[to]));
            }
        }
    });
}

/// `grad, w -> grad of x`.
pub(crate) fn conv2d_backward_input<T: Number>(s: &Conv2dShape, grad: &[T], w: &[T], out: &mut [T]) {
    let (in_plane, out_plane) = (s.in_h * s.in_w, s.out_h() * s.out_w());
    for_each_piece(out, in_plane.max(1), |start, plane| {
        let (n, c) = (start / in_plane / s.in_channels, start / in_plane % s.in_channels);
        plane.fill(T::default());
        for o in 0..s.out_channels {
            let grad = &grad[(n * s.out_channels + o) * out_plane..][..out_plane];
            let w = &w[(o * s.in_channels + c) * s.kernel_h * s.kernel_w..];
            for (tap, &w) in taps(s).zip(w) {
                for_each_pair(s, tap, |from, to| plane[to] = grad[from].times_plus(w, plane[to]));
            }
        }
    });
}

/// `x, grad -> grad of w`.
pub(crate) fn conv2d_backward_weight<T: Number>(s: &Conv2dShape, x: &[T], grad: &[T], out: &mut [T]) {
    let (in_plane, out_plane) = (s.in_h * s.in_w, s.out_h() * s.out_w());
    let window = s.kernel_h * s.kernel_w;
    for_each_piece(out, window, |start, piece| {
        let (o, c) = (start / window / s.in_channels, start / window % s.in_channels);
        for (tap, out) in taps(s).zip(piece) {
            let mut sum = T::default();
            for n in 0..s.batch {
                let x = &x[(n * s.in_channels + c) * in_plane..][..in_plane];
                let grad = &grad[(n * s.out_channels + o) * out_plane..][..out_plane];
                for_each_pair(s, tap, |from, to| sum = x[to].times_plus(grad[from], sum));
            }
            *out = sum;
        }
    });
}
