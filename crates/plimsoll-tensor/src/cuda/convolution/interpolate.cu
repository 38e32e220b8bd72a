
// Resampling of images of up to three dimensions, with `inner` adjacent channels.
//
// Macros defined before this text:
//   A         the type of positions and sums
//   T         the type of the elements
//   BYTES     whether elements are bytes, which are rounded after each dimension
//   MODE      0 nearest, 1 nearest center, 2 linear, 3 linear with aligned corner centers
//   BACKWARD  whether this is the gradient

struct Axis { i64 size, out; double ratio; };
struct Shape { i64 outer, inner; Axis axis[3]; };
struct Place { int near, far; A share; };

INLINE Place found(const Axis& a, int o) {
    int last = (int)a.size - 1;
    if (a.size == a.out && a.ratio == 1.0) return {o, o, 0};
#if MODE <= 1
    float at = MODE == 0 ? floorf(__fmul_rn((float)o, (float)a.ratio)) : floorf(__fmul_rn((float)o + 0.5f, (float)a.ratio));
    int near = (int)at < last ? (int)at : last;
    return {near, near, 0};
#else
    A ratio = (A)a.ratio, at = MODE == 3 ? (A)o * ratio : ((A)o + (A)0.5) * ratio - (A)0.5;
    if (at < 0) at = 0;
    int near = (int)at < last ? (int)at : last;
    A share = at - (A)near;
    return {near, near + 1 < last ? near + 1 : last, share > 1 ? (A)1 : share};
#endif
}

#if BYTES
INLINE A rounded(A x) { return (A)(int)(x + (A)0.5); }
#else
INLINE A rounded(A x) { return x; }
#endif

// The weight of an input element in an output element along a dimension.
INLINE A share_of(const Place& p, int at) { return (p.near == at ? 1 - p.share : (A)0) + (p.far == at ? p.share : (A)0); }

extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* from, i64 n, Shape s) {
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
#if !BACKWARD
    Place z = found(s.axis[0], at[0]), y = found(s.axis[1], at[1]), x = found(s.axis[2], at[2]);
    const T* image = from + rest * s.axis[0].size * s.axis[1].size * s.axis[2].size * s.inner + c;
#if MODE <= 1
    to[number] = image[((z.near * s.axis[1].size + y.near) * s.axis[2].size + x.near) * s.inner];
#else
    A sum = 0;
    for (int k = 0; k < 4; k++) {
        A share = (k & 2 ? z.share : 1 - z.share) * (k & 1 ? y.share : 1 - y.share);
        // A row with weight 0 may contain NaN.
        if (share == 0) continue;
        i64 row = ((k & 2 ? z.far : z.near) * s.axis[1].size + (k & 1 ? y.far : y.near)) * s.axis[2].size;
        A near = load<A>(image + (row + x.near) * s.inner);
        A blend = x.share == 0 ? near : near * (1 - x.share) + load<A>(image + (row + x.far) * s.inner) * x.share;
        sum += share * rounded(blend);
    }
#if BYTES
    to[number] = Into<T>::of((A)(int)(sum + (A)0.5));
#else
    store(to + number, sum);
#endif
#endif
#else
    // The outputs along each dimension that may depend on this element.
    int first[3], end[3];
#pragma unroll
    for (int d = 0; d < 3; d++) {
        const Axis& a = s.axis[d];
        if (a.ratio > 0) {
            double low = ((double)at[d] - 1.5) / a.ratio - 2, high = ((double)at[d] + 1.5) / a.ratio + 2;
            first[d] = low < 0 ? 0 : (int)low;
            end[d] = high >= (double)a.out ? (int)a.out : (int)high + 1;
            // Positions past the last element count as the last element.
            if (at[d] == (int)a.size - 1) end[d] = (int)a.out;
        } else {
            first[d] = 0;
            end[d] = (int)a.out;
        }
        if (end[d] > (int)a.out) end[d] = (int)a.out;
    }
    A sum = 0;
    for (int oz = first[0]; oz < end[0]; oz++) {
        A of_z = share_of(found(s.axis[0], oz), at[0]);
        if (of_z == 0) continue;
        for (int oy = first[1]; oy < end[1]; oy++) {
            A of_y = share_of(found(s.axis[1], oy), at[1]);
            if (of_y == 0) continue;
            for (int ox = first[2]; ox < end[2]; ox++) {
                A of_x = share_of(found(s.axis[2], ox), at[2]);
                if (of_x == 0) continue;
                i64 o = (((rest * s.axis[0].out + oz) * s.axis[1].out + oy) * s.axis[2].out + ox) * s.inner + c;
                sum += load<A>(from + o) * (of_z * of_y * of_x);
            }
        }
    }
    store(to + number, sum);
#endif
}
