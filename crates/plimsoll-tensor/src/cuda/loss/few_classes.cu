
// Matrix products for the last few classes of a projection.
//
// Macros defined before this text:
//   A     the compute type
//   T     the type of the elements
//   PASS  0 logits
//         1 the gradient of the input and partial sums of the weight's gradient
//         2 the gradient of the weight from the partial sums
//   FEW   the number of classes
//   VEC   elements of a row that a thread reads at once

typedef Pack<T, VEC> Some;
#if PASS == 0
// Computes logits, with one warp for each row. `w` and `bias` begin at the first of these classes.
extern "C" __global__ void __launch_bounds__(256) kernel(T* logits, const T* x, const T* w, const T* bias, i64 rows, i64 dim, i64 stride) {
    i64 row = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    A sums[FEW] = {};
#pragma unroll 4
    for (i64 i = lane * VEC; i < dim; i += 32 * VEC) {
        Some v = *(const Some*)(x + row * dim + i);
#pragma unroll
        for (int c = 0; c < FEW; c++) {
            Some of = *(const Some*)(w + c * dim + i);
#pragma unroll
            for (int k = 0; k < VEC; k++) sums[c] += value<A>(v.v[k]) * value<A>(of.v[k]);
        }
    }
#pragma unroll
    for (int c = 0; c < FEW; c++) {
        A sum = across<Plus>(sums[c]);
        if (lane == 0) store(logits + row * stride + c, bias ? sum + load<A>(bias + c) : sum);
    }
}
#elif PASS == 1
// From the gradients of their logits, computes their share of the gradient of x if `out` is not null, and partial sums of their
// weight's gradient if `sums` is not null. A block handles 32 times VEC columns of `part` rows.
extern "C" __global__ void __launch_bounds__(256) kernel(
    T* out, A* sums, const T* grads, const T* x, const T* w, i64 rows, i64 dim, i64 stride, i64 part
) {
    __shared__ A all[8][32 * VEC + 1];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 begins = (i64)blockIdx.x * 32 * VEC, col = begins + lane * VEC;
    i64 begin = (i64)blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
    Some of[FEW];
    A mine[FEW][VEC] = {};
    if (col < dim) {
#pragma unroll
        for (int c = 0; c < FEW; c++) of[c] = *(const Some*)(w + c * dim + col);
#pragma unroll 4
        for (i64 row = begin + warp; row < end; row += 8) {
            Some v, to;
            if (sums) v = *(const Some*)(x + row * dim + col);
            A along[VEC] = {};
#pragma unroll
            for (int c = 0; c < FEW; c++) {
                A g = load<A>(grads + row * stride + c);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    along[k] += g * value<A>(of[c].v[k]);
                    if (sums) mine[c][k] += g * value<A>(v.v[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < VEC; k++) to.v[k] = Into<T>::of(along[k]);
            if (out) *(Some*)(out + row * dim + col) = to;
        }
    }
    if (!sums) return;
    for (int c = 0; c < FEW; c++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            A x = mine[0][k];
#pragma unroll
            for (int other = 1; other < FEW; other++) if (c == other) x = mine[other][k];
            all[warp][lane * VEC + k] = x;
        }
        __syncthreads();
        for (int at = threadIdx.x; at < 32 * VEC; at += 256) {
            if (begins + at >= dim) continue;
            A sum = all[0][at];
            for (int i = 1; i < 8; i++) sum += all[i][at];
            sums[((i64)blockIdx.y * FEW + c) * dim + begins + at] = sum;
        }
    }
}
#else
// Adds these partial sums; a block handles 32 of them.
extern "C" __global__ void __launch_bounds__(1024) kernel(T* out, const A* sums, i64 parts, i64 count) {
    __shared__ A all[32][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 c = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (c < count)
#pragma unroll 4
        for (i64 part = first; part < parts; part += 32) sum += sums[part * count + c];
    all[first][lane] = sum;
    __syncthreads();
    if (first != 0 || c >= count) return;
    for (int i = 1; i < 32; i++) sum += all[i][lane];
    store(out + c, sum);
}
#endif
