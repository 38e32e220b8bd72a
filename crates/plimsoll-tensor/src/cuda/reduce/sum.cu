
// Sums. A sum may be split into parts, which a second launch adds, always in the same order.
//
// Macros defined before this text:
//   A              the accumulator type
//   T, TO          the types of the elements and the results
//   KEPT, REDUCED  the numbers of kept and reduced dimensions
//   COLUMNS        whether neighbouring threads handle neighbouring results (else neighbouring terms)
//   VEC            with COLUMNS, the number of results per thread, whose terms are adjacent

struct Space {
    i64 results, terms, part;
    i64 kept[KEPT], kept_step[KEPT], reduced[REDUCED], reduced_step[REDUCED];
};

extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, const T* x, double scale, Space space) {
    i64 begin = (i64)blockIdx.y * space.part;
    i64 end = begin + space.part < space.terms ? begin + space.part : space.terms;
#if COLUMNS
    __shared__ A parts[8][32 * VEC + 1];
    int lane = threadIdx.x & 31, row = threadIdx.x >> 5;
    i64 first = (i64)blockIdx.x * 32 * VEC, result = first + lane * VEC;
    A sums[VEC] = {};
    if (result < space.results) {
        const T* from = x + place<KEPT>(result, space.kept, space.kept_step);
#pragma unroll 4
        for (i64 i = begin + row; i < end; i += 8) {
            Pack<T, VEC> terms = *(const Pack<T, VEC>*)(from + place<REDUCED>(i, space.reduced, space.reduced_step));
#pragma unroll
            for (int k = 0; k < VEC; k++) sums[k] += value<A>(terms.v[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < VEC; k++) parts[row][lane * VEC + k] = sums[k];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * VEC && first + c < space.results; c += 256) {
        A sum = parts[0][c];
        for (int i = 1; i < 8; i++) sum += parts[i][c];
        if (scale != 1.0) sum = As<A>::of(sum * As<A>::of(scale));
        store(out + (i64)blockIdx.y * space.results + first + c, sum);
    }
#else
    A sum = 0;
    i64 result = blockIdx.x;
    const T* from = x + place<KEPT>(result, space.kept, space.kept_step);
    for (i64 i = begin + threadIdx.x; i < end; i += 256) sum += load<A>(from + place<REDUCED>(i, space.reduced, space.reduced_step));
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    if (scale != 1.0) sum = As<A>::of(sum * As<A>::of(scale));
    store(out + (i64)blockIdx.y * space.results + result, sum);
#endif
}
