
// A block works on a row. Defined before: A, the type that is computed in; T, that of the elements; PASS: 0 forward, 1 the
// gradient of the input, 2 that of the weight; VEC and EACH: a thread keeps EACH times VEC elements of the row in registers, or reads them
// again where EACH is 0.

#if PASS < 2
#if EACH
typedef Pack<T, VEC> Some;
// A thread's elements of a row: the packs threadIdx.x, threadIdx.x + blockDim.x, …; 0 from the row's end on.
INLINE void read(A (&to)[EACH][VEC], const T* row, i64 cols, A absent) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        i64 at = (i64)(e * blockDim.x + threadIdx.x) * VEC;
        Some x;
        if (at < cols) x = *(const Some*)(row + at);
#pragma unroll
        for (int k = 0; k < VEC; k++) to[e][k] = at < cols ? value<A>(x.v[k]) : absent;
    }
}
#define EVERY(BODY) \
    _Pragma("unroll") for (int e = 0; e < EACH; e++) { \
        i64 at = (i64)(e * blockDim.x + threadIdx.x) * VEC; \
        if (at < cols) { _Pragma("unroll") for (int k = 0; k < VEC; k++) { BODY } } \
    }
#define WRITE(ROW, VALUE) \
    _Pragma("unroll") for (int e = 0; e < EACH; e++) { \
        i64 at = (i64)(e * blockDim.x + threadIdx.x) * VEC; \
        Some result; \
        _Pragma("unroll") for (int k = 0; k < VEC; k++) result.v[k] = Into<T>::of(VALUE); \
        if (at < cols) *(Some*)((ROW) + at) = result; \
    }
#endif

#if PASS == 0
extern "C" __global__ void kernel(T* out, A* means, A* rstds, const T* x, const T* weight, const T* bias, i64 cols, double eps) {
    const T* row = x + (i64)blockIdx.x * cols;
    T* to = out + (i64)blockIdx.x * cols;
    A sum = 0, squares = 0;
#if EACH
    A v[EACH][VEC], w[EACH][VEC], b[EACH][VEC];
    read(v, row, cols, 0);
    EVERY(sum += v[e][k];)
#else
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += load<A>(row + i);
#endif
    A mean = block_sum(sum) / (A)cols;
#if EACH
    EVERY(A centred = v[e][k] - mean; squares += centred * centred;)
#else
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A centred = load<A>(row + i) - mean;
        squares += centred * centred;
    }
#endif
    A rstd = 1 / sqrt(block_sum(squares) / (A)cols + (A)eps);
#if EACH
    read(w, weight ? weight : row, cols, 0);
    read(b, bias ? bias : row, cols, 0);
    WRITE(to, (v[e][k] - mean) * rstd * (weight ? w[e][k] : (A)1) + (bias ? b[e][k] : (A)0))
#else
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A value = (load<A>(row + i) - mean) * rstd;
        if (weight) value *= load<A>(weight + i);
        if (bias) value += load<A>(bias + i);
        store(to + i, value);
    }
#endif
    if (threadIdx.x == 0) { means[blockIdx.x] = mean; rstds[blockIdx.x] = rstd; }
}
#else
extern "C" __global__ void kernel(T* out, const T* grad, const T* x, const A* means, const A* rstds, const T* weight, i64 cols) {
    i64 begin = (i64)blockIdx.x * cols;
    A mean = means[blockIdx.x], rstd = rstds[blockIdx.x], sum = 0, along = 0;
#if EACH
    A g[EACH][VEC], v[EACH][VEC], w[EACH][VEC];
    read(g, grad + begin, cols, 0);
    read(v, x + begin, cols, 0);
    read(w, weight ? weight : x + begin, cols, 0);
    EVERY(
        if (weight) g[e][k] *= w[e][k];
        v[e][k] = (v[e][k] - mean) * rstd;
        sum += g[e][k];
        along += g[e][k] * v[e][k];
    )
    sum = block_sum(sum) / (A)cols;
    along = block_sum(along) / (A)cols;
    WRITE(out + begin, (g[e][k] - sum - v[e][k] * along) * rstd)
#else
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
        sum += g;
        along += g * (load<A>(x + begin + i) - mean) * rstd;
    }
    sum = block_sum(sum) / (A)cols;
    along = block_sum(along) / (A)cols;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
        store(out + begin + i, (g - sum - (load<A>(x + begin + i) - mean) * rstd * along) * rstd);
    }
#endif
}
#endif
#else
// Rows are cut into parts, whose sums a second launch adds up; TO is the type of a part's sum.
extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, const T* grad, const T* x, const A* means, const A* rstds, i64 rows, i64 cols, i64 part) {
    __shared__ A parts[8][32 * VEC + 1];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 begins = (i64)blockIdx.x * 32 * VEC, col = begins + lane * VEC;
    i64 begin = (i64)blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
    A sums[VEC] = {};
    if (col < cols) {
#pragma unroll 2
        for (i64 row = begin + first; row < end; row += 8) {
            i64 at = row * cols + col;
            Pack<T, VEC> g = *(const Pack<T, VEC>*)(grad + at), v = *(const Pack<T, VEC>*)(x + at);
            A mean = means[row], rstd = rstds[row];
#pragma unroll
            for (int k = 0; k < VEC; k++) sums[k] += value<A>(g.v[k]) * (value<A>(v.v[k]) - mean) * rstd;
        }
    }
#pragma unroll
    for (int k = 0; k < VEC; k++) parts[first][lane * VEC + k] = sums[k];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * VEC && begins + c < cols; c += 256) {
        A sum = parts[0][c];
        for (int i = 1; i < 8; i++) sum += parts[i][c];
        store(out + (i64)blockIdx.y * cols + begins + c, sum);
    }
}
#endif
