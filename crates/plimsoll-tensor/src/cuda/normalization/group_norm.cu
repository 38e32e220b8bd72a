
// Group normalization of [batch, channels, inner].
//
// Macros defined before this text:
//   A     the compute type
//   T     the type of the elements
//   LAST  whether the layout is channels-last
//   PASS  0 forward, one block per group
//         1 the gradient of the input, one block per group
//         2 the sums of a channel of an image, one block each
//         3 their sums over images

struct Size { i64 batch, channels, inner, groups; };

// The index of the e-th element of a group, and its channel.
INLINE i64 place(const Size& s, i64 image, i64 group, i64 e, i64& channel) {
    i64 width = s.channels / s.groups;
#if LAST
    channel = group * width + e % width;
    return (image * s.inner + e / width) * s.channels + channel;
#else
    channel = group * width + e / s.inner;
    return (image * s.channels + channel) * s.inner + e % s.inner;
#endif
}

#if PASS == 0
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, A* means, A* rstds, const T* x, const T* weight, const T* bias, double eps, Size s) {
    i64 image = blockIdx.x / s.groups, group = blockIdx.x % s.groups, length = s.channels / s.groups * s.inner, channel;
    A sum = 0, squares = 0;
    for (i64 e = threadIdx.x; e < length; e += 512) sum += load<A>(x + place(s, image, group, e, channel));
    A mean = block_sum(sum) / (A)length;
    for (i64 e = threadIdx.x; e < length; e += 512) {
        A off = load<A>(x + place(s, image, group, e, channel)) - mean;
        squares += off * off;
    }
    A rstd = 1 / sqrt(block_sum(squares) / (A)length + (A)eps);
    for (i64 e = threadIdx.x; e < length; e += 512) {
        i64 at = place(s, image, group, e, channel);
        A v = (load<A>(x + at) - mean) * rstd;
        if (weight) v *= load<A>(weight + channel);
        if (bias) v += load<A>(bias + channel);
        store(out + at, v);
    }
    if (threadIdx.x == 0) { means[blockIdx.x] = mean; rstds[blockIdx.x] = rstd; }
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const T* grad, const T* x, const A* means, const A* rstds, const T* weight, Size s) {
    i64 image = blockIdx.x / s.groups, group = blockIdx.x % s.groups, length = s.channels / s.groups * s.inner, channel;
    A mean = means[blockIdx.x], rstd = rstds[blockIdx.x], level = 0, slope = 0;
    for (i64 e = threadIdx.x; e < length; e += 512) {
        i64 at = place(s, image, group, e, channel);
        A g = load<A>(grad + at) * (weight ? load<A>(weight + channel) : (A)1);
        level += g;
        slope += g * (load<A>(x + at) - mean) * rstd;
    }
    level = block_sum(level) / (A)length;
    slope = block_sum(slope) / (A)length;
    for (i64 e = threadIdx.x; e < length; e += 512) {
        i64 at = place(s, image, group, e, channel);
        A g = load<A>(grad + at) * (weight ? load<A>(weight + channel) : (A)1);
        store(out + at, rstd * (g - level - (load<A>(x + at) - mean) * rstd * slope));
    }
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(256) kernel(A* sums, const T* grad, const T* x, const A* means, const A* rstds, Size s) {
    i64 image = blockIdx.x / s.channels, channel = blockIdx.x % s.channels;
    i64 group = image * s.groups + channel / (s.channels / s.groups);
    A mean = means[group], rstd = rstds[group], level = 0, slope = 0;
    for (i64 j = threadIdx.x; j < s.inner; j += 256) {
        i64 at = LAST ? (image * s.inner + j) * s.channels + channel : (i64)blockIdx.x * s.inner + j;
        A g = load<A>(grad + at);
        level += g;
        slope += g * (load<A>(x + at) - mean) * rstd;
    }
    slope = block_sum(slope);
    level = block_sum(level);
    if (threadIdx.x == 0) { sums[blockIdx.x] = slope; sums[s.batch * s.channels + blockIdx.x] = level; }
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* to_weight, T* to_bias, const A* sums, Size s) {
    i64 channel = (i64)blockIdx.x * 256 + threadIdx.x;
    if (channel >= s.channels) return;
    A slope = 0, level = 0;
    for (i64 image = 0; image < s.batch; image++) {
        slope += sums[image * s.channels + channel];
        level += sums[(s.batch + image) * s.channels + channel];
    }
    store(to_weight + channel, slope);
    store(to_bias + channel, level);
}
#endif
