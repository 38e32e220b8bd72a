
// The backward pass of an activation function. Its gradient overwrites the output's gradient, and the recomputed values
// overwrite the input. Also computes the sum over the gradient's rows.
//
// Macros defined before this text:
//   A         the compute type
//   T         the type of the elements
//   PASS      0 gradients, values and partial sums, 1 the total of the partial sums
//   VALUE     the function of b
//   GRADIENT  the input's gradient, from a (the output's gradient) and b
//   SUMS      whether partial sums are computed
//   VEC       elements of a row per thread
//   THREADS   threads of a block
//   QUICK     whether functions need only 16-bit precision

#if PASS == 0
#if QUICK
#define tanh quick_tanh
#define erf quick_erf
#define exp __expf
#endif
#define C(X) ((A)(X))
extern "C" __global__ void __launch_bounds__(THREADS, 1536 / THREADS) kernel(T* grads, T* inputs, A* sums, i64 rows, i64 cols, i64 part) {
    typedef Pack<T, VEC> Some;
    i64 col = ((i64)blockIdx.x * THREADS + threadIdx.x) * VEC;
    i64 begin = (i64)blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
    if (col >= cols) return;
    A sum[VEC] = {};
    for (i64 row = begin; row < end; row++) {
        Some* to_g = (Some*)(grads + row * cols + col);
        Some* to_x = (Some*)(inputs + row * cols + col);
        Some g = *to_g, x = *to_x;
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            A a = value<A>(g.v[k]), b = value<A>(x.v[k]);
            A gradient = GRADIENT, again = VALUE;
            if (SUMS) sum[k] += gradient;
            g.v[k] = Into<T>::of(gradient);
            x.v[k] = Into<T>::of(again);
        }
        *to_g = g;
        *to_x = x;
    }
#if SUMS
#pragma unroll
    for (int k = 0; k < VEC; k++) sums[(i64)blockIdx.y * cols + col + k] = sum[k];
#endif
}
#else
// A block handles 32 columns.
extern "C" __global__ void __launch_bounds__(1024) kernel(T* out, const A* sums, i64 parts, i64 cols) {
    __shared__ A all[32][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 col = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (col < cols)
#pragma unroll 8
        for (i64 part = first; part < parts; part += 32) sum += sums[part * cols + col];
    all[first][lane] = sum;
    __syncthreads();
    if (first != 0 || col >= cols) return;
    for (int i = 1; i < 32; i++) sum += all[i][lane];
    store(out + col, sum);
}
#endif
