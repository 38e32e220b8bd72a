
// Sums. Defined before: A, the type that is added in; T and TO, of the elements and the results; KEPT and REDUCED, how many
// dimensions stay and go; COLUMNS, whether neighbouring threads have neighbouring results or neighbouring terms.
// A sum may be cut into parts, which a second launch adds up: always in the same order.

struct Space {
    i64 results, terms, part;
    i64 kept[KEPT], kept_step[KEPT], reduced[REDUCED], reduced_step[REDUCED];
};

extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, const T* x, double scale, Space space) {
    i64 begin = (i64)blockIdx.y * space.part;
    i64 end = begin + space.part < space.terms ? begin + space.part : space.terms;
    A sum = 0;
#if COLUMNS
    __shared__ A parts[8][33];
    int lane = threadIdx.x & 31, row = threadIdx.x >> 5;
    i64 result = (i64)blockIdx.x * 32 + lane;
    if (result < space.results) {
        const T* from = x + place<KEPT>(result, space.kept, space.kept_step);
        for (i64 i = begin + row; i < end; i += 8) sum += load<A>(from + place<REDUCED>(i, space.reduced, space.reduced_step));
    }
    parts[row][lane] = sum;
    __syncthreads();
    if (row != 0 || result >= space.results) return;
    for (int i = 1; i < 8; i++) sum += parts[i][lane];
#else
    i64 result = blockIdx.x;
    const T* from = x + place<KEPT>(result, space.kept, space.kept_step);
    for (i64 i = begin + threadIdx.x; i < end; i += 256) sum += load<A>(from + place<REDUCED>(i, space.reduced, space.reduced_step));
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
#endif
    if (scale != 1.0) sum = As<A>::of(sum * As<A>::of(scale));
    store(out + (i64)blockIdx.y * space.results + result, sum);
}
