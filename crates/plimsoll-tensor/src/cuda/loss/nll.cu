
// The negative log likelihood, computed by one block, and its gradient, with one thread for each
// element.
//
// Macros defined before this text:
//   A         the compute type
//   T         the type of the elements
//   TARGET    the type of the classes
//   MEAN      whether the sum is divided by the number of rows that are not ignored
//   BACKWARD  whether this is the gradient

const i64 IGNORED = -100;

#if !BACKWARD
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const T* x, const TARGET* target, i64 rows, i64 cols, Faults faults) {
    A sum = 0, counted = 0;
    for (i64 row = threadIdx.x; row < rows; row += 512) {
        i64 to = load<i64>(target + row);
        if (to == IGNORED) continue;
        if (to < 0 || to >= cols) { report(faults, to, row, cols); continue; }
        sum -= load<A>(x + row * cols + to);
        counted += 1;
    }
    sum = block_sum(sum);
#if MEAN
    sum /= block_sum(counted);
#endif
    if (threadIdx.x == 0) store(out, sum);
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* grad, const TARGET* target, i64 rows, i64 cols, Faults faults) {
    A value = -load<A>(grad);
#if MEAN
    A counted = 0;
    for (i64 row = threadIdx.x; row < rows; row += 256) counted += load<i64>(target + row) != IGNORED;
    value /= block_sum(counted);
#endif
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < rows * cols; i += (i64)gridDim.x * 256) {
        i64 row = i / cols, to = load<i64>(target + row);
        if (i - row * cols == 0 && to != IGNORED && (to < 0 || to >= cols)) report(faults, to, row, cols);
        store(out + i, i - row * cols == to ? value : (A)0);
    }
}
#endif
