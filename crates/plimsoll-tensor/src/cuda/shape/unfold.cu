
// The gradient of overlapping windows: an element sums over the windows that contain it, in their
// order.
//
// Macros defined before this text:
//   A     the accumulator type
//   T     the type of the elements
//   RANK  dimensions
//   DIM   the dimension of the windows

struct Space { i64 size[RANK], step[RANK], inside, window, move, count; };
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* grad, i64 n, Space s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    i64 rest = number, at = 0, along = 0;
#pragma unroll
    for (int d = RANK - 1; d >= 0; d--) {
        i64 i = rest % s.size[d];
        rest /= s.size[d];
        if (d == DIM) along = i; else at += i * s.step[d];
    }
    i64 first = along < s.window ? 0 : (along - s.window) / s.move + 1;
    A sum = 0;
    for (i64 w = first; w < s.count && w * s.move <= along; w++) sum += load<A>(grad + at + w * s.step[DIM] + (along - w * s.move) * s.inside);
    store(to + number, sum);
}
