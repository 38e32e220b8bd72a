
// Cross entropy against classes. Defined before: A, the type that is computed in; T, that of logits; PASS.

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
extern "C" __global__ void __launch_bounds__(512) kernel(T* logits, A* losses, const i64* target, const A* total, i64 classes, i64 ignored, i64 mean, i64 wanted) {
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
    if (threadIdx.x == 0) losses[blockIdx.x] = logarithm - load<A>(row + to);
    if (!wanted) return;
    A scale = mean ? 1 / *total : (A)1;
    __syncthreads();
    for (i64 i = threadIdx.x; i < classes; i += blockDim.x) {
        A p = exp(load<A>(row + i) - logarithm);
        store(row + i, (p - (i == to ? (A)1 : (A)0)) * scale);
    }
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
