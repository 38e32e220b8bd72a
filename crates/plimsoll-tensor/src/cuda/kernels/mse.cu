
// Mean squared error. Defined before: A, the type that is computed in; T; PASS: 0 sums of parts, 1 their sum.
#if PASS == 0
extern "C" __global__ void __launch_bounds__(512) kernel(double* parts, const T* x, const T* target, i64 n) {
    double sum = 0;
    for (i64 i = (i64)blockIdx.x * 512 + threadIdx.x; i < n; i += (i64)gridDim.x * 512) {
        A off = load<A>(x + i) - load<A>(target + i);
        sum += (double)(off * off);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const double* parts, i64 count, double weight) {
    double sum = 0;
    for (i64 i = threadIdx.x; i < count; i += 512) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, (A)(sum * weight));
}
#endif
