
// Copies elements to other positions, independently for each dimension. For each dimension there are the sizes of input and
// output, the input's stride, the number of elements before the first one, and the kind: 0 a constant outside, 1 reversed, 2
// circular, 3 reflected, 4 the nearest element.
//
// Macros defined before this text:
//   W     a word of the element size
//   RANK  dimensions

struct Space { i64 size[RANK], out[RANK], step[RANK], before[RANK], kind[RANK]; };

extern "C" __global__ void __launch_bounds__(256) kernel(W* to, const W* from, i64 n, u64 outside, Space s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    i64 rest = number, at = 0;
    bool inside = true;
#pragma unroll
    for (int d = RANK - 1; d >= 0; d--) {
        i64 o = rest % s.out[d];
        rest /= s.out[d];
        i64 i = o - s.before[d], last = s.size[d] - 1;
        if (s.kind[d] == 0) inside = inside && i >= 0 && i <= last;
        else if (s.kind[d] == 1) i = last - i;
        else if (s.kind[d] == 2) { i %= s.size[d]; if (i < 0) i += s.size[d]; }
        else if (s.kind[d] == 3) { if (i < 0) i = -i; if (i > last) i = 2 * last - i; }
        else i = clamped(i, 0, last);
        at += i * s.step[d];
    }
    to[number] = inside ? from[at] : (W)outside;
}
