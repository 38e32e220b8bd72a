
// Rows by their root mean square, or by mean and deviation, perhaps of a sum that is written too. Defined before: A, the type that is
// computed in; T; MEAN; PASS: 0 forward, 1 the gradient, 2 that of the scale.
#if PASS == 0
extern "C" __global__ void kernel(T* out, A* rstds, A* means, T* sum, const T* x, const T* residual, const T* weight, const T* bias, i64 cols, double eps) {
    i64 begin = (i64)blockIdx.x * cols;
    A total = 0, squares = 0, mean = 0;
    const T* row = x + begin;
    if (residual) {
        for (i64 i = threadIdx.x; i < cols; i += blockDim.x) store(sum + begin + i, load<A>(x + begin + i) + load<A>(residual + begin + i));
        row = sum + begin;
    }
#if MEAN
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) total += load<A>(row + i);
    mean = block_sum(total) / (A)cols;
#endif
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) { A off = load<A>(row + i) - mean; squares += off * off; }
    A rstd = 1 / sqrt(block_sum(squares) / (A)cols + (A)eps);
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A v = (load<A>(row + i) - mean) * rstd;
        if (weight) v *= load<A>(weight + i);
        if (bias) v += load<A>(bias + i);
        store(out + begin + i, v);
    }
    (void)total;
    if (threadIdx.x == 0) { rstds[blockIdx.x] = rstd; if (MEAN) means[blockIdx.x] = mean; }
}
#elif PASS == 1
extern "C" __global__ void kernel(T* out, const T* grad, const T* x, const A* rstds, const A* means, const T* along, const T* weight, i64 cols) {
    i64 begin = (i64)blockIdx.x * cols;
    A rstd = rstds[blockIdx.x], mean = MEAN ? means[blockIdx.x] : (A)0, level = 0, slope = 0;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
        level += g;
        slope += g * (load<A>(x + begin + i) - mean) * rstd;
    }
    level = MEAN ? block_sum(level) / (A)cols : (A)0;
    slope = block_sum(slope) / (A)cols;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A g = load<A>(grad + begin + i) * (weight ? load<A>(weight + i) : (A)1);
        A v = (g - level - (load<A>(x + begin + i) - mean) * rstd * slope) * rstd;
        store(out + begin + i, along ? v + load<A>(along + begin + i) : v);
    }
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* grad, const T* x, const A* rstds, const A* means, i64 rows, i64 cols) {
    __shared__ A parts[8][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 col = (i64)blockIdx.x * 32 + lane;
    A sum = 0;
    if (col < cols)
        for (i64 row = first; row < rows; row += 8)
            sum += load<A>(grad + row * cols + col) * (load<A>(x + row * cols + col) - (MEAN ? means[row] : (A)0)) * rstds[row];
    parts[first][lane] = sum;
    __syncthreads();
    if (first != 0 || col >= cols) return;
    for (int i = 1; i < 8; i++) sum += parts[i][lane];
    store(out + col, sum);
}
#endif
