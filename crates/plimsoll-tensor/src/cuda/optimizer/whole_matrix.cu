
// Steps that use the complete matrix: Adafactor (passes 0 to 6) and Muon (7 to 12).
//
// Macros defined before this text:
//   P, G, S  the types of parameter, gradient and state
//   PASS     0 running means of the squares of rows
//            1 running means of the squares of columns
//            2 running means of the squares of single elements
//            3 the RMS of the parameter
//            4 the mean over each matrix's rows
//            5 the RMS of the update
//            6 the update
//            7 the momentum
//            8 the norm of the matrix
//            9 the matrix divided by its norm
//            10 the matrix rounded
//            11 the weighted sum of two products
//            12 the parameter

INLINE float rounded(float x) { return widen(Into<bf16>::of(x)); }
INLINE float lerped(float a, float b, float weight) {
    return fabsf(weight) < 0.5f ? a + weight * (b - a) : b - (b - a) * (1.0f - weight);
}
struct Sizes { i64 batch, height, width; };
struct Numbers { double v[8]; };

// The divisor of an element's gradient.
INLINE float scale(const S* rows, const S* columns, const float* means, const Sizes& s, i64 i, float eps) {
    float estimate;
    if (columns) {
        i64 row = i / s.width, matrix = row / s.height;
        estimate = load<float>(rows + row) * load<float>(columns + matrix * s.width + i % s.width) / means[matrix];
    } else estimate = load<float>(rows + i);
    float least = eps * eps;
    return 1.0f / sqrtf(estimate > least ? estimate : least);
}

extern "C" __global__ void __launch_bounds__(512) kernel(P* p, const G* g, S* first, S* second, float* means, double* sums, float* x, float* y, Sizes s, Numbers numbers) {
    const double* v = numbers.v;
    i64 n = s.batch * s.height * s.width, i = (i64)blockIdx.x * 512 + threadIdx.x;
    (void)i; (void)n; (void)v;
#if PASS == 0
    // v: weight. One block per row.
    double sum = 0;
    for (i64 c = threadIdx.x; c < s.width; c += 512) { double d = load<float>(g + blockIdx.x * s.width + c); sum += d * d; }
    sum = block_sum(sum) / (double)s.width;
    if (threadIdx.x == 0) { float old = load<float>(first + blockIdx.x); store(first + blockIdx.x, old + (float)v[0] * ((float)sum - old)); }
#elif PASS == 1
    if (i >= s.batch * s.width) return;
    float weight = (float)v[0], share = weight / (float)s.height, column = load<float>(second + i) * (1.0f - weight);
    const G* from = g + i / s.width * s.height * s.width + i % s.width;
    for (i64 r = 0; r < s.height; r++) { float d = load<float>(from + r * s.width); column += share * d * d; }
    store(second + i, column);
#elif PASS == 2
    if (i >= n) return;
    float d = load<float>(g + i), old = load<float>(first + i);
    store(first + i, old + (float)v[0] * (d * d - old));
#elif PASS == 3
    double sum = 0;
    for (i64 k = threadIdx.x; k < n; k += 512) { double d = load<float>(p + k); sum += d * d; }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[0] = sum;
#elif PASS == 4
    // v: eps. One block per matrix.
    double sum = 0;
    for (i64 r = threadIdx.x; r < s.height; r += 512) sum += (double)load<float>(first + blockIdx.x * s.height + r);
    sum = block_sum(sum);
    float mean = (float)(sum / (double)s.height), least = (float)v[0];
    if (threadIdx.x == 0) means[blockIdx.x] = mean > least ? mean : least;
#elif PASS == 5
    double sum = 0;
    for (i64 k = threadIdx.x; k < n; k += 512) {
        double d = scale(first, second, means, s, k, (float)v[0]) * load<float>(g + k);
        sum += d * d;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[1] = sum;
#elif PASS == 6
    // v: eps, keep, eps2, rate, d, sign.
    if (i >= n) return;
    double root = sqrt((double)n), size = sqrt(sums[0]) / root, alpha = (size > v[2] ? size : v[2]) * v[3];
    double clip = sqrt(sums[1]) / (root * v[4]);
    float move = (float)(v[5] * alpha / (clip > 1.0 ? clip : 1.0));
    store(p + i, (float)v[1] * load<float>(p + i) - move * scale(first, second, means, s, i, (float)v[0]) * load<float>(g + i));
#elif PASS == 7
    // v: momentum, 1 - momentum, whether Nesterov, whether tall.
    if (i >= n) return;
    float grad = load<float>(g + i), buffer = lerped(load<float>(first + i), grad, (float)v[1]);
    store(first + i, buffer);
    i64 to = v[3] != 0 ? i % s.width * s.height + i / s.width : i;
    x[to] = rounded(v[2] != 0 ? lerped(grad, buffer, (float)v[0]) : buffer);
#elif PASS == 8
    // v: eps.
    double sum = 0;
    for (i64 k = threadIdx.x; k < n; k += 512) sum += (double)x[k] * (double)x[k];
    sum = block_sum(sum);
    float norm = (float)sqrt(sum), least = (float)v[0];
    if (threadIdx.x == 0) means[0] = rounded(norm > least ? norm : least);
#elif PASS == 9
    if (i < n) x[i] = rounded(x[i] / means[0]);
#elif PASS == 10
    if (i < n) x[i] = rounded(x[i]);
#elif PASS == 11
    // v: factors of x and of y.
    if (i < n) y[i] = rounded((float)v[0] * x[i] + (float)v[1] * y[i]);
#else
    // v: keep, rate, whether tall.
    if (i >= n) return;
    i64 from = v[2] != 0 ? i % s.width * s.height + i / s.width : i;
    store(p + i, (float)v[0] * load<float>(p + i) - (float)v[1] * x[from]);
#endif
}
