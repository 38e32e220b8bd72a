
// The sum of a loss over pairs of an input and a target.
//
// Macros defined before this text:
//   C           the compute type
//   T           the type of the elements
//   PASS        0 partial sums, 1 their total
//   EXPRESSION  in pass 0: the loss of a pair a, b, which may use the numbers p0 to p7

#if PASS == 0
struct Numbers { double v[8]; };
extern "C" __global__ void __launch_bounds__(512) kernel(double* parts, const T* x, const T* target, i64 n, Numbers numbers) {
    const C p0 = C(numbers.v[0]), p1 = C(numbers.v[1]), p2 = C(numbers.v[2]), p3 = C(numbers.v[3]);
    const C p4 = C(numbers.v[4]), p5 = C(numbers.v[5]), p6 = C(numbers.v[6]), p7 = C(numbers.v[7]);
    (void)p0; (void)p1; (void)p2; (void)p3; (void)p4; (void)p5; (void)p6; (void)p7;
    double sum = 0;
    for (i64 i = (i64)blockIdx.x * 512 + threadIdx.x; i < n; i += (i64)gridDim.x * 512) {
        C a = load<C>(x + i), b = load<C>(target + i);
        sum += (double)C(EXPRESSION);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const double* parts, i64 count, double weight) {
    double sum = 0;
    for (i64 i = threadIdx.x; i < count; i += 512) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, (C)(sum * weight));
}
#endif
