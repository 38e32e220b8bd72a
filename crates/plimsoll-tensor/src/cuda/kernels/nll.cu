
// The negative log-likelihood, by one block; its gradient, an element a thread. Defined before: A, the type that is computed in;
// T, that of the elements; TARGET, that of the classes; BACKWARD.

#if !BACKWARD
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const T* x, const TARGET* target, i64 rows, i64 cols, double scale, Faults faults) {
    A sum = 0;
    for (i64 row = threadIdx.x; row < rows; row += 512) {
        i64 to = load<i64>(target + row);
        if (to < 0 || to >= cols) { report(faults, to, row, cols); continue; }
        sum -= load<A>(x + row * cols + to);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, sum * (A)scale);
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* grad, const TARGET* target, i64 rows, i64 cols, double scale, Faults faults) {
    A value = -load<A>(grad) * (A)scale;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < rows * cols; i += (i64)gridDim.x * 256) {
        i64 row = i / cols, to = load<i64>(target + row);
        if (i - row * cols == 0 && (to < 0 || to >= cols)) report(faults, to, row, cols);
        store(out + i, i - row * cols == to ? value : (A)0);
    }
}
#endif
