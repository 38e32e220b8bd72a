
// The upper or lower triangle of matrices; without an input, a causal mask, which hides later keys
// from a query.
//
// Macros defined before this text:
//   W      a word of the element size
//   RANK   dimensions
//   UPPER  whether the upper triangle is kept

struct Space { i64 size[RANK], step[RANK]; };
extern "C" __global__ void __launch_bounds__(256) kernel(W* out, const W* x, i64 n, i64 diagonal, i64 rows, i64 cols, u64 inside, u64 outside, Space s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    i64 above = i % cols - i / cols % rows;
    bool kept = UPPER ? above >= diagonal : above <= diagonal;
    out[i] = kept ? (x ? x[place<RANK>(i, s.size, s.step)] : (W)inside) : (W)outside;
}
