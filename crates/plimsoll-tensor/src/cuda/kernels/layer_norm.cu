
// A block works on a row. Defined before: A, the type that is computed in; T, that of the elements; PASS: 0 forward, 1 the
// gradient of the input, 2 that of the weight.

#if PASS == 0
extern "C" __global__ void kernel(T* out, A* means, A* rstds, const T* x, const T* weight, const T* bias, i64 cols, double eps) {
    const T* row = x + (i64)blockIdx.x * cols;
    T* to = out + (i64)blockIdx.x * cols;
    A sum = 0;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += load<A>(row + i);
    A mean = block_sum(sum) / (A)cols;
    A squares = 0;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A centred = load<A>(row + i) - mean;
        squares += centred * centred;
    }
    A rstd = 1 / sqrt(block_sum(squares) / (A)cols + (A)eps);
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A value = (load<A>(row + i) - mean) * rstd;
        if (weight) value *= load<A>(weight + i);
        if (bias) value += load<A>(bias + i);
        store(to + i, value);
    }
    if (threadIdx.x == 0) { means[blockIdx.x] = mean; rstds[blockIdx.x] = rstd; }
}
#elif PASS == 1
extern "C" __global__ void kernel(T* out, const T* grad, const T* x, const A* means, const A* rstds, const T* weight, i64 cols) {
    i64 begin = (i64)blockIdx.x * cols;
    A mean = means[blockIdx.x], rstd = rstds[blockIdx.x], sum = 0, along = 0;
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
}
#else
// Rows are cut into parts, whose sums a second launch adds up; TO is the type of a part's sum.
extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, const T* grad, const T* x, const A* means, const A* rstds, i64 rows, i64 cols, i64 part) {
    __shared__ A parts[8][33];
    int lane = threadIdx.x & 31, first = threadIdx.x >> 5;
    i64 col = (i64)blockIdx.x * 32 + lane;
    i64 begin = (i64)blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
    A sum = 0;
    if (col < cols) {
        for (i64 row = begin + first; row < end; row += 8) {
            i64 at = row * cols + col;
            sum += load<A>(grad + at) * (load<A>(x + at) - means[row]) * rstds[row];
        }
    }
    parts[first][lane] = sum;
    __syncthreads();
    if (first != 0 || col >= cols) return;
    for (int i = 1; i < 8; i++) sum += parts[i][lane];
    store(out + (i64)blockIdx.y * cols + col, sum);
}
#endif
