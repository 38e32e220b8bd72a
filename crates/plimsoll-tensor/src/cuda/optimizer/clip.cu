
// The norm of many gradients, and operations that change all of them.
//
// Macros defined before this text:
//   A      the compute type
//   T      the type of the elements
//   ORDER  0 sum of absolute values, 1 of squares, 2 of powers, 3 the largest
//   PASS   0 partial norms of a tensor
//          1 the total norm and the factor
//          2 multiply by the factor
//          3 clamp to a range
//          4 multiply by a factor and look for non-finite values
//          5 whether there were any

INLINE double joined(double a, double b) {
#if ORDER == 3
    return a != a ? a : b > a || b != b ? b : a;
#else
    return a + b;
#endif
}
// Combines the partial results of a block's threads in a fixed order.
INLINE double together(double x) {
    __shared__ double all[256];
    all[threadIdx.x] = x;
    for (int half = 128; half > 0; half >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < half) all[threadIdx.x] = joined(all[threadIdx.x], all[threadIdx.x + half]);
    }
    __syncthreads();
    return all[0];
}

#if PASS == 0
extern "C" __global__ void __launch_bounds__(256) kernel(double* parts, const T* x, i64 n, double order) {
    double sum = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        double v = fabs((double)load<A>(x + i));
        sum = joined(sum, ORDER == 1 ? v * v : ORDER == 2 ? pow(v, order) : v);
    }
    sum = together(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(256) kernel(float* out, double* parts, i64 count, double order, double most) {
    double sum = 0;
    for (i64 i = threadIdx.x; i < count; i += 256) sum = joined(sum, parts[i]);
    sum = together(sum);
    if (threadIdx.x != 0) return;
    double norm = ORDER == 1 ? sqrt(sum) : ORDER == 2 ? pow(sum, 1.0 / order) : sum;
    *out = (float)norm;
    parts[count] = most / (norm + 1e-6);
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(256) kernel(T* x, const double* factor, i64 n) {
    double f = *factor;
    // NaN spreads to every gradient. A norm within the limit changes nothing.
    if (f >= 1.0) return;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) store(x + i, load<A>(x + i) * (A)f);
}
#elif PASS == 3
extern "C" __global__ void __launch_bounds__(256) kernel(T* x, double bound, i64 n) {
    A high = (A)bound, low = -high;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        A v = load<A>(x + i);
        store(x + i, v < low ? low : v > high ? high : v);
    }
}
#elif PASS == 4
extern "C" __global__ void __launch_bounds__(256) kernel(double* parts, T* x, i64 n, double factor) {
    double found = 0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        A v = load<A>(x + i);
        if (!(v - v == 0)) found = 1;
        store(x + i, v * (A)factor);
    }
    found = together(found);
    if (threadIdx.x == 0) parts[blockIdx.x] = found;
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(float* out, const double* parts, i64 count) {
    double found = 0;
    for (i64 i = threadIdx.x; i < count; i += 256) found += parts[i];
    found = together(found);
    if (threadIdx.x == 0) *out = found > 0 ? 1.0f : 0.0f;
}
#endif
