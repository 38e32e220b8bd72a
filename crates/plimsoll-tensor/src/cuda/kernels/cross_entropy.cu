
// Cross entropy of a projection against classes. Defined before: A, the type that is computed in; T, that of logits; PASS.

#if PASS == 0
// What a mean divides by, and what weighs the target's classes: one block.
extern "C" __global__ void __launch_bounds__(512) kernel(A* total, const i64* target, const T* weight, i64 rows, i64 classes, i64 ignored, Faults faults) {
    A sum = 0;
    for (i64 row = threadIdx.x; row < rows; row += 512) {
        i64 to = target[row];
        if (to == ignored) continue;
        if (to < 0 || to >= classes) { report(faults, to, row, classes); continue; }
        sum += weight ? load<A>(weight + to) : (A)1;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
#elif PASS == 1
// The losses of some rows, and in the place of their logits the gradients where they are wanted. A block a row.
extern "C" __global__ void __launch_bounds__(512) kernel(T* logits, A* losses, const i64* target, const A* total, const T* weight, i64 classes, i64 ignored, double smoothing, i64 mean, i64 wanted) {
    T* row = logits + (i64)blockIdx.x * classes;
    i64 to = target[blockIdx.x];
    if (to == ignored || to < 0 || to >= classes) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        if (wanted) for (i64 i = threadIdx.x; i < classes; i += blockDim.x) store(row + i, (A)0);
        return;
    }
    A largest = -(A)INFINITE, sum = 0;
    for (i64 i = threadIdx.x; i < classes; i += blockDim.x) {
        A x = load<A>(row + i);
        if (x > largest) { sum = sum * exp(largest - x) + 1; largest = x; }
        else sum += exp(x - largest);
    }
    A all = block_max(largest);
    sum = block_sum(largest == -(A)INFINITE ? (A)0 : sum * exp(largest - all));
    A logarithm = log(sum) + all;
    // The coefficients of the target, and of every class; their sum.
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
    if (threadIdx.x == 0) losses[blockIdx.x] = base + own * (logarithm - load<A>(row + to));
    if (!wanted) return;
    A scale = mean ? 1 / *total : (A)1;
    __syncthreads();
    for (i64 i = threadIdx.x; i < classes; i += blockDim.x) {
        A y = exp(load<A>(row + i) - logarithm) * level - (i == to ? own : (A)0);
        if (smoothing != 0) y -= spread * (weight ? load<A>(weight + i) : (A)1);
        store(row + i, y * scale);
    }
}
#elif PASS == 3
// The gradient of the bias: sums of the columns of some rows' gradients, to which what was there is added.
extern "C" __global__ void __launch_bounds__(1024) kernel(T* out, const T* grads, i64 rows, i64 classes, i64 keep) {
    __shared__ A parts[32][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 c = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (c < classes) for (i64 row = first; row < rows; row += 32) sum += load<A>(grads + row * classes + c);
    parts[first][lane] = sum;
    __syncthreads();
    if (first != 0 || c >= classes) return;
    for (int i = 1; i < 32; i++) sum += parts[i][lane];
    store(out + c, keep ? load<A>(out + c) + sum : sum);
}
#else
// The loss of all rows: one block.
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const A* losses, const A* total, i64 rows, i64 mean) {
    A sum = 0;
    for (i64 row = threadIdx.x; row < rows; row += 512) sum += losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, mean ? sum / *total : sum);
}
#endif
