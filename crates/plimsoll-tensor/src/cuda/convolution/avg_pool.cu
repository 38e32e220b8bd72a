
// Average pooling over the windows of `windows.cu`.
//
// Macros defined before this text:
//   A         the accumulator type
//   T         the type of the elements
//   DIVISOR   0 the elements inside the image, 1 those inside the padded image, 2 a number
//   BACKWARD  whether this is the gradient

struct Window { int first, end; };
INLINE Window seen(const Axis& a, int o) {
    Window w;
    if (a.adaptive) {
        w.first = adaptive_first(a, o);
        w.end = adaptive_end(a, o);
    } else {
        i64 from = o * a.stride - a.padding, end = from + a.kernel;
        w.first = (int)(from < 0 ? 0 : from);
        w.end = (int)(end > a.size ? a.size : end);
        if (w.end < w.first) w.end = w.first;
    }
    return w;
}
INLINE i64 length(const Axis& a, int o) {
#if DIVISOR == 1
    if (!a.adaptive) {
        i64 left = a.size + 2 * a.padding - o * a.stride;
        return left < a.kernel ? (left < 0 ? 0 : left) : a.kernel;
    }
#endif
    Window w = seen(a, o);
    return w.end - w.first;
}
// The first output whose window may contain an element.
INLINE int first_of(const Axis& a, int i) {
    i64 o = a.adaptive ? i * a.out / a.size - 1 : (i + a.padding - a.kernel) / a.stride;
    return (int)(o < 0 ? 0 : o);
}
INLINE i64 divisor(const Shape& s, i64 fixed, int z, int y, int x) {
#if DIVISOR == 2
    return fixed;
#else
    (void)fixed;
    i64 n = length(s.axis[0], z) * length(s.axis[1], y) * length(s.axis[2], x);
    return n < 1 ? 1 : n;
#endif
}

extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* from, i64 n, i64 fixed, Shape s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    i64 c = number % s.inner, rest = number / s.inner;
    int at[3];
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        i64 size = BACKWARD ? s.axis[d].size : s.axis[d].out;
        at[d] = (int)(rest % size);
        rest /= size;
    }
    A sum = 0;
#if !BACKWARD
    Window wz = seen(s.axis[0], at[0]), wy = seen(s.axis[1], at[1]), wx = seen(s.axis[2], at[2]);
    for (int z = wz.first; z < wz.end; z++)
        for (int y = wy.first; y < wy.end; y++)
            for (int x = wx.first; x < wx.end; x++)
                sum += load<A>(from + (((rest * s.axis[0].size + z) * s.axis[1].size + y) * s.axis[2].size + x) * s.inner + c);
    sum = sum / (A)divisor(s, fixed, at[0], at[1], at[2]);
#else
    for (int z = first_of(s.axis[0], at[0]); z < s.axis[0].out; z++) {
        Window wz = seen(s.axis[0], z);
        if (wz.first > at[0]) break;
        if (wz.end <= at[0]) continue;
        for (int y = first_of(s.axis[1], at[1]); y < s.axis[1].out; y++) {
            Window wy = seen(s.axis[1], y);
            if (wy.first > at[1]) break;
            if (wy.end <= at[1]) continue;
            for (int x = first_of(s.axis[2], at[2]); x < s.axis[2].out; x++) {
                Window wx = seen(s.axis[2], x);
                if (wx.first > at[2]) break;
                if (wx.end <= at[2]) continue;
                A g = load<A>(from + (((rest * s.axis[0].out + z) * s.axis[1].out + y) * s.axis[2].out + x) * s.inner + c);
                sum += g / (A)divisor(s, fixed, z, y, x);
            }
        }
    }
#endif
    store(to + number, sum);
}
