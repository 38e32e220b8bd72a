
// Writes or adds elements at an index, in the order of the index. One thread handles each line along the dimension, so results do
// not depend on the order of threads.
//
// Macros defined before this text:
//   A       the accumulator type
//   T, S    the types of the output and the source
//   I       the type of the index
//   RANK    dimensions of the lines
//   CHANGE  0 replace
//           1 add
//           2 set to a value
//           3 take the larger
//           4 take the smaller
//           5 multiply

struct Space { i64 size[RANK], out[RANK], index[RANK], src[RANK]; };

extern "C" __global__ void __launch_bounds__(256) kernel(
    T* out, const I* index, const S* src, i64 lines, i64 count, i64 rows, i64 out_step, i64 index_step, i64 src_step, double value, Space s, Faults faults
) {
    i64 line = (i64)blockIdx.x * 256 + threadIdx.x;
    if (line >= lines) return;
    T* to = out + place<RANK>(line, s.size, s.out);
    const I* at = index + place<RANK>(line, s.size, s.index);
    const S* from = src + place<RANK>(line, s.size, s.src);
    for (i64 i = 0; i < count; i++) {
        i64 row = load<i64>(at + i * index_step);
        if (row < 0 || row >= rows) { report(faults, row, i, rows); continue; }
#if CHANGE == 0
        to[row * out_step] = from[i * src_step];
#elif CHANGE == 1
        store(to + row * out_step, load<A>(to + row * out_step) + load<A>(from + i * src_step));
#elif CHANGE == 2
        store(to + row * out_step, value);
#elif CHANGE == 5
        store(to + row * out_step, load<A>(to + row * out_step) * load<A>(from + i * src_step));
#else
        A x = load<A>(from + i * src_step), y = load<A>(to + row * out_step);
        // NaN wins.
        if ((CHANGE == 3 ? x > y : x < y) || x != x) store(to + row * out_step, x);
#endif
    }
}
