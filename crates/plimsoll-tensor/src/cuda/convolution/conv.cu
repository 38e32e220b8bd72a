
// Convolution in up to three dimensions, with groups and dilation, of tensors in any layout. One thread (for the weight's
// gradient, one block) computes each output element.
//
// Macros defined before this text:
//   A     the accumulator type
//   T     the type of the elements
//   PASS  0 forward
//         1 the gradient of the input, or the transposed convolution
//         2 the gradient of the weight

struct Shape {
    i64 batch, groups, in, out;
    i64 input[3], output[3], kernel[3], stride[3], padding[3], dilation[3];
    // The strides of images, filters and results along batch (or output channel), channel, depth, height, width.
    i64 x[5], w[5], y[5];
};

// The indices of the i-th element of [first, second, d, h, w].
struct At { i64 first, second; int d, h, w; };
INLINE At split(i64 i, i64 second, const i64* size) {
    At at;
    at.w = (int)(i % size[2]); i /= size[2];
    at.h = (int)(i % size[1]); i /= size[1];
    at.d = (int)(i % size[0]); i /= size[0];
    at.second = i % second; at.first = i / second;
    return at;
}
INLINE i64 seen(const Shape& s, int dim, int window, int tap) {
    i64 at = window * s.stride[dim] + tap * s.dilation[dim] - s.padding[dim];
    return at < s.input[dim] ? at : -1;
}
// The window in which an element is at this tap; -1 if there is none.
INLINE int window(const Shape& s, int dim, int at, int tap) {
    int from = at + (int)s.padding[dim] - tap * (int)s.dilation[dim], stride = (int)s.stride[dim];
    return from < 0 || from % stride || from / stride >= s.output[dim] ? -1 : from / stride;
}

#if PASS == 0
extern "C" __global__ void __launch_bounds__(256) kernel(T* y, const T* x, const T* w, const T* bias, i64 count, Shape s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    At at = split(i, s.out, s.output);
    i64 in = s.in / s.groups, group = at.second / (s.out / s.groups);
    A sum = bias ? load<A>(bias + at.second) : (A)0;
    const T* image = x + at.first * s.x[0] + group * in * s.x[1];
    const T* filter = w + at.second * s.w[0];
    for (int kd = 0; kd < s.kernel[0]; kd++) {
        i64 d = seen(s, 0, at.d, kd);
        if (d < 0) continue;
        for (int kh = 0; kh < s.kernel[1]; kh++) {
            i64 h = seen(s, 1, at.h, kh);
            if (h < 0) continue;
            for (int kw = 0; kw < s.kernel[2]; kw++) {
                i64 v = seen(s, 2, at.w, kw);
                if (v < 0) continue;
                const T* from = image + d * s.x[2] + h * s.x[3] + v * s.x[4];
                const T* taps = filter + kd * s.w[2] + kh * s.w[3] + kw * s.w[4];
                for (i64 c = 0; c < in; c++) sum += load<A>(from + c * s.x[1]) * load<A>(taps + c * s.w[1]);
            }
        }
    }
    store(y + at.first * s.y[0] + at.second * s.y[1] + at.d * s.y[2] + at.h * s.y[3] + at.w * s.y[4], sum);
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(256) kernel(T* x, const T* y, const T* w, const T* bias, i64 count, Shape s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    At at = split(i, s.in, s.input);
    i64 in = s.in / s.groups, out = s.out / s.groups, group = at.second / in;
    A sum = bias ? load<A>(bias + at.second) : (A)0;
    const T* results = y + at.first * s.y[0] + group * out * s.y[1];
    const T* filters = w + group * out * s.w[0] + (at.second - group * in) * s.w[1];
    for (int kd = 0; kd < s.kernel[0]; kd++) {
        int d = window(s, 0, at.d, kd);
        if (d < 0) continue;
        for (int kh = 0; kh < s.kernel[1]; kh++) {
            int h = window(s, 1, at.h, kh);
            if (h < 0) continue;
            for (int kw = 0; kw < s.kernel[2]; kw++) {
                int v = window(s, 2, at.w, kw);
                if (v < 0) continue;
                const T* from = results + d * s.y[2] + h * s.y[3] + v * s.y[4];
                const T* taps = filters + kd * s.w[2] + kh * s.w[3] + kw * s.w[4];
                for (i64 o = 0; o < out; o++) sum += load<A>(from + o * s.y[1]) * load<A>(taps + o * s.w[0]);
            }
        }
    }
    store(x + at.first * s.x[0] + at.second * s.x[1] + at.d * s.x[2] + at.h * s.x[3] + at.w * s.x[4], sum);
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* w, const T* y, const T* x, Shape s) {
    i64 in = s.in / s.groups;
    At tap = split(blockIdx.x, in, s.kernel);
    i64 channel = tap.first / (s.out / s.groups) * in + tap.second;
    const T* results = y + tap.first * s.y[1];
    const T* images = x + channel * s.x[1];
    A sum = 0;
    for (i64 i = threadIdx.x; i < s.batch * s.output[0] * s.output[1] * s.output[2]; i += 256) {
        At at = split(i, 1, s.output);
        i64 d = seen(s, 0, at.d, tap.d), h = seen(s, 1, at.h, tap.h), v = seen(s, 2, at.w, tap.w);
        if (d < 0 || h < 0 || v < 0) continue;
        sum += load<A>(results + at.first * s.y[0] + at.d * s.y[2] + at.h * s.y[3] + at.w * s.y[4])
            * load<A>(images + at.first * s.x[0] + d * s.x[2] + h * s.x[3] + v * s.x[4]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(w + tap.first * s.w[0] + tap.second * s.w[1] + tap.d * s.w[2] + tap.h * s.w[3] + tap.w * s.w[4], sum);
}
#endif
