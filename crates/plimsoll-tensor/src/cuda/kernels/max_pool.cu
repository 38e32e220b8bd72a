
// Max pooling of images of up to three dimensions, `inner` channels side by side. Defined before: A, the type that is compared in; T,
// that of the elements; I, that of places in a window; BACKWARD.

struct Axis { i64 size, out, kernel, stride, padding, dilation; };
struct Shape { i64 outer, inner; Axis z, y, x; };

#if !BACKWARD
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, I* index, const T* from, Shape s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= s.outer * s.z.out * s.y.out * s.x.out * s.inner) return;
    i64 c = i % s.inner, rest = i / s.inner;
    i64 ox = rest % s.x.out; rest /= s.x.out;
    i64 oy = rest % s.y.out; rest /= s.y.out;
    i64 oz = rest % s.z.out;
    const T* image = from + rest / s.z.out * s.z.size * s.y.size * s.x.size * s.inner + c;
    bool is_first = true;
    T best; i64 at = 0; A largest = 0;
    for (i64 kz = 0; kz < s.z.kernel; kz++) {
        i64 iz = oz * s.z.stride - s.z.padding + kz * s.z.dilation;
        if (iz < 0 || iz >= s.z.size) continue;
        for (i64 ky = 0; ky < s.y.kernel; ky++) {
            i64 iy = oy * s.y.stride - s.y.padding + ky * s.y.dilation;
            if (iy < 0 || iy >= s.y.size) continue;
            for (i64 kx = 0; kx < s.x.kernel; kx++) {
                i64 ix = ox * s.x.stride - s.x.padding + kx * s.x.dilation;
                if (ix < 0 || ix >= s.x.size) continue;
                T element = image[((iz * s.y.size + iy) * s.x.size + ix) * s.inner];
                A v = value<A>(element);
                // The first of equals; what is not a number is the largest.
                if (is_first || v > largest || v != v) {
                    best = element; largest = v; is_first = false;
                    at = (kz * s.y.kernel + ky) * s.x.kernel + kx;
                }
            }
        }
    }
    to[i] = best;
    index[i] = (I)at;
}
#else
// The output whose window has a place as its tap; -1 where there is none.
INLINE i64 window(const Axis& a, i64 at, i64 tap) {
    i64 from = at + a.padding - tap * a.dilation;
    return from < 0 || from % a.stride || from / a.stride >= a.out ? -1 : from / a.stride;
}
// An element adds up the windows in which it was the largest.
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* grad, const I* index, Shape s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= s.outer * s.z.size * s.y.size * s.x.size * s.inner) return;
    i64 c = i % s.inner, rest = i / s.inner;
    i64 ix = rest % s.x.size; rest /= s.x.size;
    i64 iy = rest % s.y.size; rest /= s.y.size;
    i64 iz = rest % s.z.size;
    i64 image = rest / s.z.size * s.z.out * s.y.out * s.x.out * s.inner + c;
    A sum = 0;
    for (i64 kz = 0; kz < s.z.kernel; kz++) {
        i64 oz = window(s.z, iz, kz);
        if (oz < 0) continue;
        for (i64 ky = 0; ky < s.y.kernel; ky++) {
            i64 oy = window(s.y, iy, ky);
            if (oy < 0) continue;
            for (i64 kx = 0; kx < s.x.kernel; kx++) {
                i64 ox = window(s.x, ix, kx);
                if (ox < 0) continue;
                i64 at = image + ((oz * s.y.out + oy) * s.x.out + ox) * s.inner;
                if (index[at] == (I)((kz * s.y.kernel + ky) * s.x.kernel + kx)) sum += load<A>(grad + at);
            }
        }
    }
    store(to + i, sum);
}
#endif
