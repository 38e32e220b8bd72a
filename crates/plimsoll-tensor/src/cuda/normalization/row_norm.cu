
// Normalizes rows by mean and standard deviation or by root mean square, optionally after adding a residual, whose sum is also
// written.
//
// Macros defined before this text:
//   A          the compute type
//   T          the type of the elements
//   MEAN       whether rows are normalized by mean and deviation
//   ADD        whether a residual is added before, or another gradient after
//   PASS       0 forward
//              1 the gradient of the input
//              2 partial sums of the gradients of weight and bias
//              3 the totals of these sums
//   SUMS       of how many sums pass 1 computes parts: 0, these 2, or 3 with the sum of the rows that it writes
//   VEC, EACH  a thread keeps EACH times VEC elements of a row in registers, or reads them again if EACH is 0
//   BLOCKS     the minimum number of blocks per multiprocessor
//   WARPS      rows that a block handles at a time, one per warp, or 0 for one row per block
//   THREADS    threads of a block

#if WARPS
#define LANE ((int)threadIdx.x & 31)
#define SPAN 32
#define ROW ((i64)blockIdx.x * WARPS + (threadIdx.x >> 5))
#define STEP ((i64)gridDim.x * WARPS)
INLINE A row_sum(A x) { return across<Plus>(x); }
INLINE void row_sums(A& x, A& y) { x = across<Plus>(x); y = across<Plus>(y); }
#else
#define LANE ((int)threadIdx.x)
#define SPAN ((int)blockDim.x)
#define ROW ((i64)blockIdx.x)
#define STEP ((i64)gridDim.x)
INLINE A row_sum(A x) { return block_sum(x); }
// Computes two sums at once, which halves the number of barriers.
INLINE void row_sums(A& x, A& y) {
    __shared__ A parts[2][32];
    x = across<Plus>(x);
    y = across<Plus>(y);
    int lane = (int)threadIdx.x & 31;
    __syncthreads();
    if (lane == 0) { parts[0][threadIdx.x >> 5] = x; parts[1][threadIdx.x >> 5] = y; }
    __syncthreads();
    bool is_there = lane < (int)blockDim.x >> 5;
    x = across<Plus>(is_there ? parts[0][lane] : (A)0);
    y = across<Plus>(is_there ? parts[1][lane] : (A)0);
}
#endif

#if PASS < 2
#if EACH
typedef Pack<T, VEC> Some;
// A thread's elements of a row: the packs LANE, LANE + SPAN, …. Beyond the row's end they keep their old value or are 0.
INLINE void read_packs(Some (&to)[EACH], const T* row, i64 cols) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        i64 at = (i64)(e * SPAN + LANE) * VEC;
        if (at < cols) to[e] = *(const Some*)(row + at);
    }
}
INLINE void unpack(A (&to)[EACH][VEC], const Some (&from)[EACH]) {
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int k = 0; k < VEC; k++) to[e][k] = value<A>(from[e].v[k]);
}
INLINE void read(A (&to)[EACH][VEC], const T* row, i64 cols) {
    Some some[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        i64 at = (i64)(e * SPAN + LANE) * VEC;
        if (at < cols) some[e] = *(const Some*)(row + at);
#pragma unroll
        for (int k = 0; k < VEC; k++) to[e][k] = at < cols ? value<A>(some[e].v[k]) : (A)0;
    }
}
#define EVERY(BODY) \
    _Pragma("unroll") for (int e = 0; e < EACH; e++) { \
        i64 at = (i64)(e * SPAN + LANE) * VEC; \
        if (at < cols) { _Pragma("unroll") for (int k = 0; k < VEC; k++) { BODY } } \
    }
#define WRITE(TO, ROW, VALUE) \
    _Pragma("unroll") for (int e = 0; e < EACH; e++) { \
        i64 at = (i64)(e * SPAN + LANE) * VEC; \
        Pack<TO, VEC> result; \
        _Pragma("unroll") for (int k = 0; k < VEC; k++) result.v[k] = Into<TO>::of(VALUE); \
        if (at < cols) *(Pack<TO, VEC>*)((ROW) + at) = result; \
    }
#endif
#endif

#if PASS == 0
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    T* out, A* rstds, A* means, T* sum, const T* x, const T* residual, const T* weight, const T* bias, i64 rows, i64 cols, double eps
) {
    i64 at_row = ROW, begin = at_row * cols;
    if (at_row >= rows) return;
    A squares = 0, mean = 0;
    const T* row = x + begin;
#if EACH
    A v[EACH][VEC];
#if ADD
    A w[EACH][VEC];
#endif
    read(v, row, cols);
#if ADD
    read(w, residual + begin, cols);
#endif
    // Read long before they are needed.
    Some of_weight[EACH], of_bias[EACH];
    if (weight) read_packs(of_weight, weight, cols);
    if (bias) read_packs(of_bias, bias, cols);
#if ADD
    // The sum as stored, after rounding.
    EVERY(v[e][k] = value<A>(Into<T>::of(v[e][k] + w[e][k]));)
    WRITE(T, sum + begin, v[e][k])
#endif
#if MEAN
    A total = 0;
    EVERY(total += v[e][k];)
    mean = row_sum(total) / (A)cols;
#endif
    EVERY(A off = v[e][k] - mean; squares += off * off;)
    A rstd = 1 / sqrt(row_sum(squares) / (A)cols + (A)eps);
    EVERY(
        v[e][k] = (v[e][k] - mean) * rstd;
        if (weight) v[e][k] *= value<A>(of_weight[e].v[k]);
        if (bias) v[e][k] += value<A>(of_bias[e].v[k]);
    )
    WRITE(T, out + begin, v[e][k])
#else
#if ADD
    for (i64 i = LANE; i < cols; i += SPAN) store(sum + begin + i, load<A>(x + begin + i) + load<A>(residual + begin + i));
    row = sum + begin;
#endif
#if MEAN
    A total = 0;
    for (i64 i = LANE; i < cols; i += SPAN) total += load<A>(row + i);
    mean = row_sum(total) / (A)cols;
#endif
    for (i64 i = LANE; i < cols; i += SPAN) { A off = load<A>(row + i) - mean; squares += off * off; }
    A rstd = 1 / sqrt(row_sum(squares) / (A)cols + (A)eps);
    for (i64 i = LANE; i < cols; i += SPAN) {
        A v = (load<A>(row + i) - mean) * rstd;
        if (weight) v *= load<A>(weight + i);
        if (bias) v += load<A>(bias + i);
        store(out + begin + i, v);
    }
#endif
    if (LANE == 0) { rstds[at_row] = rstd; if (MEAN) means[at_row] = mean; }
}
#elif PASS == 1
#if ADD
#define ALONG + value<A>(r[e].v[k])
#else
#define ALONG
#endif
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(
    T* out, A* sums, const T* grad, const T* x, const A* rstds, const A* means, const T* along, const T* weight, i64 rows, i64 cols
) {
#if EACH
    Some w[EACH];
    if (weight) read_packs(w, weight, cols);
#if SUMS
    A to_weight[EACH][VEC] = {}, to_bias[EACH][VEC] = {};
#endif
#if SUMS > 2
    A to_out[EACH][VEC] = {};
#endif
    for (i64 row = ROW; row < rows; row += STEP) {
        i64 begin = row * cols;
        A g[EACH][VEC], v[EACH][VEC];
        A rstd = rstds[row], mean = MEAN ? means[row] : (A)0, level = 0, slope = 0;
        // Issues all reads before it waits for the first.
        Some of_g[EACH] = {}, of_x[EACH] = {};
        read_packs(of_g, grad + begin, cols);
        read_packs(of_x, x + begin, cols);
#if ADD
        // Kept unconverted: it stays in registers until the end.
        Some r[EACH];
        read_packs(r, along + begin, cols);
#endif
        unpack(g, of_g);
        unpack(v, of_x);
        EVERY(v[e][k] = (v[e][k] - mean) * rstd;)
#if SUMS
        EVERY(to_weight[e][k] += g[e][k] * v[e][k]; to_bias[e][k] += g[e][k];)
#endif
        EVERY(
            if (weight) g[e][k] *= value<A>(w[e].v[k]);
            level += g[e][k];
            slope += g[e][k] * v[e][k];
        )
        row_sums(level, slope);
        level = MEAN ? level / (A)cols : (A)0;
        slope /= (A)cols;
        EVERY(g[e][k] = (g[e][k] - level - v[e][k] * slope) * rstd ALONG;)
#if SUMS > 2
        EVERY(to_out[e][k] += g[e][k];)
#endif
        WRITE(T, out + begin, g[e][k])
    }
#if SUMS
    A* part = sums + (i64)blockIdx.x * SUMS * cols;
#if WARPS
    // Adds the rows of a block's warps, one warp after the other.
    __shared__ A all[SUMS][EACH * VEC * 32];
    for (int warp = 0; warp < WARPS; warp++) {
        if ((threadIdx.x >> 5) == warp) {
            EVERY(
                A* of_weight = &all[0][at + k];
                A* of_bias = &all[1][at + k];
                *of_weight = warp ? *of_weight + to_weight[e][k] : to_weight[e][k];
                *of_bias = warp ? *of_bias + to_bias[e][k] : to_bias[e][k];
            )
#if SUMS > 2
            EVERY(A* of_out = &all[2][at + k]; *of_out = warp ? *of_out + to_out[e][k] : to_out[e][k];)
#endif
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < cols; i += WARPS * 32)
#pragma unroll
        for (int s = 0; s < SUMS; s++) part[s * cols + i] = all[s][i];
#else
    EVERY(part[at + k] = to_weight[e][k]; part[cols + at + k] = to_bias[e][k];)
#if SUMS > 2
    EVERY(part[2 * cols + at + k] = to_out[e][k];)
#endif
#endif
#endif
#else
    for (i64 row = ROW; row < rows; row += STEP) {
        i64 begin = row * cols;
        A rstd = rstds[row], mean = MEAN ? means[row] : (A)0, level = 0, slope = 0;
        for (i64 i = LANE; i < cols; i += SPAN) {
            A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
            level += g;
            slope += g * (load<A>(x + begin + i) - mean) * rstd;
        }
        row_sums(level, slope);
        level = MEAN ? level / (A)cols : (A)0;
        slope /= (A)cols;
        for (i64 i = LANE; i < cols; i += SPAN) {
            A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
            A v = (g - level - (load<A>(x + begin + i) - mean) * rstd * slope) * rstd;
            store(out + begin + i, ADD ? v + load<A>(along + begin + i) : v);
        }
    }
#endif
}
#elif PASS == 2
// Rows are split into parts. A block handles 32 times VEC columns of one part.
extern "C" __global__ void __launch_bounds__(256) kernel(A* sums, const T* grad, const T* x, const A* rstds, const A* means, i64 rows, i64 cols, i64 part) {
    __shared__ A all[2][8][32 * VEC + 1];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 begins = (i64)blockIdx.x * 32 * VEC, col = begins + lane * VEC;
    i64 begin = (i64)blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
    A to_weight[VEC] = {}, to_bias[VEC] = {};
    if (col < cols) {
#pragma unroll 2
        for (i64 row = begin + first; row < end; row += 8) {
            i64 at = row * cols + col;
            Pack<T, VEC> g = *(const Pack<T, VEC>*)(grad + at), v = *(const Pack<T, VEC>*)(x + at);
            A rstd = rstds[row], mean = MEAN ? means[row] : (A)0;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                to_weight[k] += value<A>(g.v[k]) * (value<A>(v.v[k]) - mean) * rstd;
                to_bias[k] += value<A>(g.v[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        all[0][first][lane * VEC + k] = to_weight[k];
        all[1][first][lane * VEC + k] = to_bias[k];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 64 * VEC; c += 256) {
        int which = c / (32 * VEC), at = c % (32 * VEC);
        if (begins + at >= cols) continue;
        A sum = all[which][0][at];
        for (int i = 1; i < 8; i++) sum += all[which][i][at];
        sums[((i64)blockIdx.y * SUMS + which) * cols + begins + at] = sum;
    }
}
#else
// Blocks with y = 0 handle columns of the weight's gradient, those with y = 1 of the bias's gradient, and those with y = 2 of the
// sum over the rows of the input's gradient.
extern "C" __global__ void __launch_bounds__(1024) kernel(T* to_weight, T* to_bias, T* to_rows, const A* sums, i64 parts, i64 cols) {
    __shared__ A all[32][33];
    T* out = blockIdx.y == 0 ? to_weight : blockIdx.y == 1 ? to_bias : to_rows;
    if (!out) return;
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 c = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (c < cols)
#pragma unroll 8
        for (i64 part = first; part < parts; part += 32) sum += sums[(part * SUMS + blockIdx.y) * cols + c];
    all[first][lane] = sum;
    __syncthreads();
    if (first != 0 || c >= cols) return;
    for (int i = 1; i < 32; i++) sum += all[i][lane];
    store(out + c, sum);
}
#endif
