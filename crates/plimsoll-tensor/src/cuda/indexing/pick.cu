
// Slices by index. An index out of range is reported, and 0 is used instead.
//
// Macros defined before this text:
//   W     a word of the element size
//   I     the type of the index
//   RANK  dimensions of the output

struct Space { i64 size[RANK], from[RANK], index[RANK]; };

extern "C" __global__ void __launch_bounds__(256) kernel(W* out, const W* x, const I* index, i64 n, i64 count, i64 step, Space space, Faults faults) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        i64 row = place<RANK>(i, space.size, space.index);
        i64 at = load<i64>(index + row);
        if (at < 0 || at >= count) { report(faults, at, row, count); at = 0; }
        if (count > 0) out[i] = x[place<RANK>(i, space.size, space.from) + at * step];
    }
}
