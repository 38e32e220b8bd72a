
// The gradient of a small weight, from images and gradients of results in any layout. It is a product of [out, positions] and
// [positions, taps]. A block handles PLACES positions and keeps its parts of both factors in shared memory. Every thread sums
// EACH elements of the weight.
//
// Macros defined before this text:
//   A             the accumulator type
//   T             the type of the elements
//   OUT           output channels
//   TAPS          channels of a filter times the size of its window
//   PLACES, EACH  positions per block, elements per thread
//   PASS          0 the partial sums of the blocks, 1 their total, in a fixed order

#if PASS == 0
struct Shape {
    i64 places;
    i64 input[3], output[3], kernel[3], stride[3], padding[3], dilation[3];
    // The strides of images and results along image, channel, depth, height, width.
    i64 x[5], y[5];
};
extern "C" __global__ void __launch_bounds__(256) kernel(A* parts, const T* y, const T* x, Shape s) {
    __shared__ A results[PLACES][OUT + 1];
    __shared__ A taps[PLACES][TAPS + 1];
    i64 first = (i64)blockIdx.x * PLACES;
    int window = (int)(s.kernel[0] * s.kernel[1] * s.kernel[2]);
    for (int i = threadIdx.x; i < PLACES * (OUT + TAPS); i += 256) {
        int p = i / (OUT + TAPS), n = i % (OUT + TAPS);
        i64 at = first + p;
        A v = 0;
        if (at < s.places) {
            int w = (int)(at % s.output[2]); at /= s.output[2];
            int h = (int)(at % s.output[1]); at /= s.output[1];
            int d = (int)(at % s.output[0]); at /= s.output[0];
            if (n < OUT) {
                v = load<A>(y + at * s.y[0] + n * s.y[1] + d * s.y[2] + h * s.y[3] + w * s.y[4]);
            } else {
                int tap = n - OUT, channel = tap / window;
                tap -= channel * window;
                int kw = tap % (int)s.kernel[2], kh = tap / (int)s.kernel[2] % (int)s.kernel[1], kd = tap / (int)(s.kernel[2] * s.kernel[1]);
                i64 id = d * s.stride[0] + kd * s.dilation[0] - s.padding[0];
                i64 ih = h * s.stride[1] + kh * s.dilation[1] - s.padding[1];
                i64 iw = w * s.stride[2] + kw * s.dilation[2] - s.padding[2];
                if (id >= 0 && ih >= 0 && iw >= 0 && id < s.input[0] && ih < s.input[1] && iw < s.input[2])
                    v = load<A>(x + at * s.x[0] + channel * s.x[1] + id * s.x[2] + ih * s.x[3] + iw * s.x[4]);
            }
        }
        if (n < OUT) results[p][n] = v; else taps[p][n - OUT] = v;
    }
    __syncthreads();
    A sums[EACH] = {};
    for (int p = 0; p < PLACES; p++)
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int element = e * 256 + (int)threadIdx.x;
            if (element < OUT * TAPS) sums[e] += results[p][element / TAPS] * taps[p][element % TAPS];
        }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int element = e * 256 + (int)threadIdx.x;
        if (element < OUT * TAPS) parts[(i64)blockIdx.x * (OUT * TAPS) + element] = sums[e];
    }
}
#else
// A warp sums each element. The weight's strides are along filter, channel, depth, height and width.
struct Weight { i64 kernel[3], w[5]; };
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const A* parts, i64 blocks, Weight s) {
    int element = (int)(blockIdx.x * 8 + (threadIdx.x >> 5)), lane = (int)threadIdx.x & 31;
    if (element >= OUT * TAPS) return;
    A sum = 0;
    for (i64 block = lane; block < blocks; block += 32) sum += parts[block * (OUT * TAPS) + element];
    sum = across<Plus>(sum);
    int tap = element % TAPS, window = (int)(s.kernel[0] * s.kernel[1] * s.kernel[2]), channel = tap / window;
    tap -= channel * window;
    int kw = tap % (int)s.kernel[2], kh = tap / (int)s.kernel[2] % (int)s.kernel[1], kd = tap / (int)(s.kernel[2] * s.kernel[1]);
    if (lane == 0) store(out + element / TAPS * s.w[0] + channel * s.w[1] + kd * s.w[2] + kh * s.w[3] + kw * s.w[4], sum);
}
#endif
