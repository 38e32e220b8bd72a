
// Softmax of rows. One block handles each row.
//
// Macros defined before this text:
//   A         the compute type
//   T         the type of the elements
//   LOG       whether to compute its logarithm
//   BACKWARD  whether this is the gradient

#if !BACKWARD
extern "C" __global__ void kernel(T* out, const T* x, i64 cols) {
    const T* row = x + (i64)blockIdx.x * cols;
    T* to = out + (i64)blockIdx.x * cols;
    A largest = -(A)INFINITE;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) largest = Larger::of(largest, load<A>(row + i));
    largest = block_max(largest);
    A sum = 0;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += exp(load<A>(row + i) - largest);
    sum = block_sum(sum);
    A logarithm = log(sum), factor = 1 / sum;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A value = load<A>(row + i) - largest;
        store(to + i, LOG ? value - logarithm : exp(value) * factor);
        (void)logarithm; (void)factor;
    }
}
#else
// Computes the derivative from the gradient and the output.
extern "C" __global__ void kernel(T* out, const T* grad, const T* y, i64 cols) {
    i64 begin = (i64)blockIdx.x * cols;
    A sum = 0;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += load<A>(grad + begin + i) * (LOG ? (A)1 : load<A>(y + begin + i));
    sum = block_sum(sum);
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
        A g = load<A>(grad + begin + i), v = load<A>(y + begin + i);
        store(out + begin + i, LOG ? g - exp(v) * sum : (g - sum) * v);
    }
}
#endif
