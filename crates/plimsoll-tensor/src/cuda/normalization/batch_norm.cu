
// Batch normalization.
//
// Macros defined before this text:
//   A        the compute type
//   T        the type of images
//   W, B, S  the types of weight, bias and given statistics
//   LAST     whether the layout is channels-last
//   VEC      channels per thread
//   LANES    threads that share a row
//   RELU     0 none
//            1 recomputed from the input
//            2 read from the output
//            3 recomputed from the input and the residual
//   PASS     0 partial sums of the elements, relative to the first one
//            1 the statistics from them
//            2 given statistics
//            3 the output
//            4 partial sums of the gradient
//            5 the gradients of weight and bias from them
//            6 the gradient of the input

#define ROWS (256 / LANES)

// `rows` is the number of elements of a channel, `part` the number of elements in a part. Unless LAST, `inner` elements of a
// channel are contiguous.
struct Size { i64 channels, rows, part, inner; };

// The index of the row-th element of a channel.
INLINE i64 place(const Size& s, i64 channel, i64 row) {
#if LAST
    return row * s.channels + channel;
#else
    return (row / s.inner * s.channels + channel) * s.inner + row % s.inner;
#endif
}

struct Affine { A mul, add; };
INLINE Affine affine(const A* means, const A* rstds, const W* weight, const B* bias, i64 channel) {
    Affine a;
    a.mul = rstds[channel] * (weight ? load<A>(weight + channel) : (A)1);
    a.add = (bias ? load<A>(bias + channel) : (A)0) - means[channel] * a.mul;
    return a;
}

// Sums two numbers of each channel over a block; `sums` has the thread's own.
INLINE void add_up(A* partial, const Size& s, A (&sums)[2][VEC]) {
#if LAST
    __shared__ A all[2][ROWS][LANES * VEC];
    int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        all[0][row][lane * VEC + k] = sums[0][k];
        all[1][row][lane * VEC + k] = sums[1][k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * LANES * VEC; i += 256) {
        int which = i / (LANES * VEC), column = i % (LANES * VEC);
        i64 channel = (i64)blockIdx.x * LANES * VEC + column;
        if (channel >= s.channels) continue;
        A sum = 0;
#pragma unroll 8
        for (int r = 0; r < ROWS; r++) sum += all[which][r][column];
        partial[((i64)blockIdx.y * 2 + which) * s.channels + channel] = sum;
    }
#else
    A first = block_sum(sums[0][0]);
    A second = block_sum(sums[1][0]);
    if (threadIdx.x != 0) return;
    partial[((i64)blockIdx.y * 2) * s.channels + blockIdx.x] = first;
    partial[((i64)blockIdx.y * 2 + 1) * s.channels + blockIdx.x] = second;
#endif
}

// The channels and rows that a thread handles.
#if LAST
#define CHANNEL (((i64)blockIdx.x * LANES + threadIdx.x % LANES) * VEC)
#define FIRST_ROW (threadIdx.x / LANES)
#define ROW_STEP ROWS
#else
#define CHANNEL ((i64)blockIdx.x)
#define FIRST_ROW (threadIdx.x)
#define ROW_STEP 256
#endif
typedef Pack<T, VEC> Some;

// A block of 32 channels by 32 parts adds the sums of all parts, always in the same order. The threads of the first row get the
// results.
INLINE bool totals(const A* partial, const Size& s, i64 parts, double (&total)[2], i64& channel) {
    __shared__ double all[2][32][33];
    int lane = threadIdx.x & 31, row = threadIdx.x >> 5;
    channel = (i64)blockIdx.x * 32 + lane;
    double a = 0, b = 0;
    if (channel < s.channels) {
#pragma unroll 4
        for (i64 part = row; part < parts; part += 32) {
            a += partial[part * 2 * s.channels + channel];
            b += partial[(part * 2 + 1) * s.channels + channel];
        }
    }
    all[0][row][lane] = a;
    all[1][row][lane] = b;
    __syncthreads();
    if (row != 0 || channel >= s.channels) return false;
    for (int r = 1; r < 32; r++) { a += all[0][r][lane]; b += all[1][r][lane]; }
    total[0] = a;
    total[1] = b;
    return true;
}

#if PASS == 0
extern "C" __global__ void __launch_bounds__(256) kernel(A* partial, const T* x, Size s) {
    i64 channel = CHANNEL, begin = (i64)blockIdx.y * s.part, end = begin + s.part < s.rows ? begin + s.part : s.rows;
    A sums[2][VEC] = {}, level[VEC] = {};
    if (channel < s.channels) {
        Some first = *(const Some*)(x + place(s, channel, 0));
#pragma unroll
        for (int k = 0; k < VEC; k++) level[k] = value<A>(first.v[k]);
#pragma unroll 4
        for (i64 row = begin + FIRST_ROW; row < end; row += ROW_STEP) {
            Some here = *(const Some*)(x + place(s, channel, row));
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                A off = value<A>(here.v[k]) - level[k];
                sums[0][k] += off;
                sums[1][k] += off * off;
            }
        }
    }
    add_up(partial, s, sums);
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(1024) kernel(A* means, A* rstds, A* variances, const A* partial, const T* x, i64 parts, double eps, Size s) {
    double total[2];
    i64 channel;
    if (!totals(partial, s, parts, total, channel)) return;
    double off = total[0] / (double)s.rows, variance = total[1] / (double)s.rows - off * off;
    // Rounding may make the variance negative. NaN stays NaN.
    if (variance < 0) variance = 0;
    means[channel] = (A)(value<A>(x[place(s, channel, 0)]) + off);
    variances[channel] = (A)variance;
    rstds[channel] = (A)(1.0 / sqrt((double)variances[channel] + eps));
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(256) kernel(A* means, A* rstds, A* variances, const S* mean, const S* variance, double eps, i64 channels) {
    i64 channel = (i64)blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    means[channel] = load<A>(mean + channel);
    variances[channel] = load<A>(variance + channel);
    rstds[channel] = (A)(1.0 / sqrt((double)variances[channel] + eps));
}
#elif PASS == 3
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* x, const T* residual, const A* means, const A* rstds, const W* weight, const B* bias, Size s) {
    i64 channel = CHANNEL, begin = (i64)blockIdx.y * s.part, end = begin + s.part < s.rows ? begin + s.part : s.rows;
    if (channel >= s.channels) return;
    Affine scale[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) scale[k] = affine(means, rstds, weight, bias, channel + k);
#pragma unroll 4
    for (i64 row = begin + FIRST_ROW; row < end; row += ROW_STEP) {
        i64 at = place(s, channel, row);
        Some here = *(const Some*)(x + at);
#if RELU == 2
        Some more = *(const Some*)(residual + at);
#endif
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            A y = value<A>(here.v[k]) * scale[k].mul + scale[k].add;
#if RELU == 2
            y += value<A>(more.v[k]);
#endif
#if RELU
            if (y <= 0) y = 0;
#endif
            here.v[k] = Into<T>::of(y);
        }
        *(Some*)(out + at) = here;
    }
}
#elif PASS == 4
extern "C" __global__ void __launch_bounds__(256) kernel(A* partial, T* to_residual, const T* grad, const T* x, const T* out, const A* means, const A* rstds, const W* weight, const B* bias, Size s) {
    i64 channel = CHANNEL, begin = (i64)blockIdx.y * s.part, end = begin + s.part < s.rows ? begin + s.part : s.rows;
    A sums[2][VEC] = {};
    if (channel < s.channels) {
        Affine scale[VEC];
        A mean[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            scale[k] = affine(means, rstds, weight, bias, channel + k);
            mean[k] = means[channel + k];
        }
#pragma unroll 4
        for (i64 row = begin + FIRST_ROW; row < end; row += ROW_STEP) {
            i64 at = place(s, channel, row);
            Some slope = *(const Some*)(grad + at), here = *(const Some*)(x + at);
#if RELU >= 2
            Some made = *(const Some*)(out + at);
#endif
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                A g = value<A>(slope.v[k]), off = value<A>(here.v[k]);
#if RELU == 1
                if (off * scale[k].mul + scale[k].add <= 0) g = 0;
#elif RELU == 2
                if (value<A>(made.v[k]) <= 0) g = 0;
                slope.v[k] = Into<T>::of(g);
#elif RELU == 3
                A y = off * scale[k].mul + scale[k].add;
                y += value<A>(made.v[k]);
                // Values that were rounded to 0 also count as cut off by the ReLU.
                if (value<A>(Into<T>::of(y)) <= 0) g = 0;
                slope.v[k] = Into<T>::of(g);
#endif
                sums[0][k] += g * (off - mean[k]);
                sums[1][k] += g;
            }
#if RELU >= 2
            *(Some*)(to_residual + at) = slope;
#endif
        }
    }
    add_up(partial, s, sums);
}
#elif PASS == 5
extern "C" __global__ void __launch_bounds__(1024) kernel(A* to_weight, A* to_bias, const A* partial, const A* rstds, i64 parts, Size s) {
    double total[2];
    i64 channel;
    if (!totals(partial, s, parts, total, channel)) return;
    to_weight[channel] = (A)(total[0] * (double)rstds[channel]);
    to_bias[channel] = (A)total[1];
}
#else
// BATCH: whether the statistics were those of the input.
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* grad, const T* x, const A* means, const A* rstds, const W* weight, const B* bias, const A* to_weight, const A* to_bias, Size s) {
    i64 channel = CHANNEL, begin = (i64)blockIdx.y * s.part, end = begin + s.part < s.rows ? begin + s.part : s.rows;
    if (channel >= s.channels) return;
    Affine scale[VEC];
    A mean[VEC], level[VEC], slope[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        scale[k] = affine(means, rstds, weight, bias, channel + k);
        mean[k] = means[channel + k];
        A share = BATCH ? scale[k].mul / (A)s.rows : (A)0;
        level[k] = -(share * to_bias[channel + k]);
        slope[k] = -(share * to_weight[channel + k] * rstds[channel + k]);
    }
#pragma unroll 4
    for (i64 row = begin + FIRST_ROW; row < end; row += ROW_STEP) {
        i64 at = place(s, channel, row);
        Some here = *(const Some*)(x + at), g = *(const Some*)(grad + at);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            A v = value<A>(here.v[k]), d = value<A>(g.v[k]);
#if RELU == 1
            if (v * scale[k].mul + scale[k].add <= 0) d = 0;
#endif
            here.v[k] = Into<T>::of(scale[k].mul * d + (level[k] + slope[k] * (v - mean[k])));
        }
        *(Some*)(to + at) = here;
    }
}
#endif
