
// Cross entropy of a projection against classes.
//
// Macros defined before this text:
//   A        the compute type
//   T        the type of logits
//   PASS     0 the divisor of a mean
//            1 the losses of some rows, and their gradients if needed
//            2 the total loss
//            3 the gradient of the bias
//   KEEP     whether a block keeps its row of logits in shared memory or reads it again
//   THREADS  threads of a block

#if PASS == 0
// Computes the divisor of a mean (the sum of the weights of the target classes), with one block.
extern "C" __global__ void __launch_bounds__(512) kernel(A* total, const i64* target, const T* weight, i64 rows, i64 classes, i64 ignored, Faults faults) {
    A sum = 0;
    for (i64 first = threadIdx.x; first < rows; first += 512 * 8) {
        i64 to[8];
#pragma unroll
        for (int u = 0; u < 8; u++) to[u] = first + u * 512 < rows ? target[first + u * 512] : ignored;
#pragma unroll
        for (int u = 0; u < 8; u++) {
            if (to[u] == ignored) continue;
            if (to[u] < 0 || to[u] >= classes) { report(faults, to[u], first + u * 512, classes); continue; }
            sum += weight ? load<A>(weight + to[u]) : (A)1;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
#elif PASS == 1
// Computes the losses of some rows and, if needed, overwrites their logits with the gradients. One block
// handles each row. Rows begin at multiples of 16 bytes, and a thread reads 16 bytes at a time.
#define VEC (16 / (int)sizeof(T))
#define AHEAD 4
// e to the power of x - off. For 16-bit floats, this takes one multiplication and one power-of-2 instruction.
INLINE float power(float x, float off) {
    if (sizeof(T) != 2) return exp(x - off);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, 1.44269504f, -1.44269504f * off)));
    return y;
}
INLINE double power(double x, double off) { return exp(x - off); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) kernel(
    T* logits, A* losses, const i64* target, const A* total, const T* weight, i64 classes, i64 stride, i64 ignored, double smoothing,
    i64 mean, i64 wanted
) {
    T* row = logits + (i64)blockIdx.x * stride;
    i64 to = target[blockIdx.x];
    if (to == ignored || to < 0 || to >= classes) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        if (wanted) for (i64 i = threadIdx.x; i < classes; i += blockDim.x) store(row + i, (A)0);
        return;
    }
    typedef Pack<T, VEC> Some;
#if KEEP
    extern __shared__ __align__(16) unsigned char kept_bytes[];
    Some* kept = (Some*)kept_bytes;
#else
    const Some* kept = (const Some*)row;
#endif
    int packs = (int)((classes + VEC - 1) / VEC);
    A largest = -(A)INFINITE, sum = 0;
    for (int first = threadIdx.x; first < packs; first += blockDim.x * AHEAD) {
        Some x[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) if (first + u * (int)blockDim.x < packs) x[u] = ((const Some*)row)[first + u * blockDim.x];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            i64 begin = (i64)(first + u * (int)blockDim.x) * VEC;
            if (begin >= classes) break;
#if KEEP
            kept[first + u * blockDim.x] = x[u];
#endif
            A v[VEC], top = largest;
#pragma unroll
            for (int k = 0; k < VEC; k++) v[k] = value<A>(x[u].v[k]);
            if (begin + VEC > classes)
#pragma unroll
                for (int k = 0; k < VEC; k++) if (begin + k >= classes) v[k] = -(A)INFINITE;
#pragma unroll
            for (int k = 0; k < VEC; k++) top = Larger::of(top, v[k]);
            if (top == -(A)INFINITE) continue;
            if (largest != -(A)INFINITE) sum *= power(largest, top);
            largest = top;
#pragma unroll
            for (int k = 0; k < VEC; k++) sum += power(v[k], top);
        }
    }
    A all = block_max(largest);
    sum = block_sum(largest == -(A)INFINITE ? (A)0 : sum * power(largest, all));
    A logarithm = log(sum) + all;
    // The coefficients of the target and of every class, and their sum.
    A own = weight ? load<A>(weight + to) * (A)(1 - smoothing) : (A)(1 - smoothing), level = own, base = 0;
    A spread = (A)(smoothing / (double)classes);
    if (smoothing != 0) {
        A weights = 0;
        for (i64 i = threadIdx.x; i < classes; i += blockDim.x) {
            A w = weight ? load<A>(weight + i) : (A)1;
            weights += w;
            base += w * (logarithm - load<A>(row + i));
        }
        level += spread * block_sum(weights);
        base = spread * block_sum(base);
    }
    A of_target = load<A>(row + to);
    if (threadIdx.x == 0) losses[blockIdx.x] = base + own * (logarithm - of_target);
    if (!wanted) return;
    A scale = mean ? 1 / *total : (A)1, factor = level * scale;
    __syncthreads();
    for (int first = threadIdx.x; first < packs; first += blockDim.x * AHEAD) {
        Some x[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) if (first + u * (int)blockDim.x < packs) x[u] = kept[first + u * blockDim.x];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            i64 begin = (i64)(first + u * (int)blockDim.x) * VEC;
            if (begin >= classes) break;
            A y[VEC];
#pragma unroll
            for (int k = 0; k < VEC; k++) y[k] = power(value<A>(x[u].v[k]), logarithm) * factor;
            if (smoothing != 0)
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    y[k] -= spread * scale * (weight && begin + k < classes ? load<A>(weight + begin + k) : (A)1);
#pragma unroll
            for (int k = 0; k < VEC; k++) x[u].v[k] = Into<T>::of(y[k]);
            ((Some*)row)[first + u * blockDim.x] = x[u];
        }
    }
    // Adds the target's part, once all threads have written.
    __syncthreads();
    if (threadIdx.x != 0) return;
    A y = power(of_target, logarithm) * factor - own * scale;
    if (smoothing != 0) y -= spread * scale * (weight ? load<A>(weight + to) : (A)1);
    store(row + to, y);
}
#elif PASS == 3
// The gradient of the bias: adds the column sums of some rows' gradients to the previous values.
extern "C" __global__ void __launch_bounds__(1024) kernel(T* out, const T* grads, i64 rows, i64 classes, i64 stride, i64 keep) {
    __shared__ A parts[32][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 c = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (c < classes) for (i64 row = first; row < rows; row += 32) sum += load<A>(grads + row * stride + c);
    parts[first][lane] = sum;
    __syncthreads();
    if (first != 0 || c >= classes) return;
    for (int i = 1; i < 32; i++) sum += parts[i][lane];
    store(out + c, keep ? load<A>(out + c) + sum : sum);
}
#else
// The total loss over all rows, computed by one block.
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const A* losses, const A* total, i64 rows, i64 mean) {
    A sum = 0;
#pragma unroll 8
    for (i64 row = threadIdx.x; row < rows; row += 512) sum += losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, mean ? sum / *total : sum);
}
#endif
