
// Max pooling over the windows of `windows.cu`. A thread handles V channels at once.
//
// Macros defined before this text:
//   A     the type for comparisons
//   T     the type of the elements
//   I     the type of positions in a window
//   V     channels per thread
//   PASS  0 forward
//         1 the gradient
//         2 the elements at given positions
//         3 the positions in the image

// The position of a window's tap; -1 outside the image or past the end of an adaptive window.
INLINE int tapped(const Axis& a, int o, int tap) {
    if (a.adaptive) {
        int at = adaptive_first(a, o) + tap;
        return at < adaptive_end(a, o) ? at : -1;
    }
    int at = o * (int)a.stride - (int)a.padding + tap * (int)a.dilation;
    return at < (int)a.size ? at : -1;
}
// The tap of a window at a position; -1 if there is none.
INLINE int tap_at(const Axis& a, int o, int at) {
    if (a.adaptive) {
        int first = adaptive_first(a, o);
        return at < first || at >= adaptive_end(a, o) ? -1 : at - first;
    }
    int from = at + (int)a.padding - o * (int)a.stride, dilation = (int)a.dilation;
    if (from < 0) return -1;
    int tap = dilation == 1 ? from : from / dilation;
    return tap >= (int)a.kernel || tap * dilation != from ? -1 : tap;
}
// The outputs whose windows may contain a position.
INLINE int first_of(const Axis& a, int at) {
    if (a.adaptive) { int o = (int)(at * a.out / a.size) - 1; return o < 0 ? 0 : o; }
    int from = at + (int)a.padding - ((int)a.kernel - 1) * (int)a.dilation;
    return from <= 0 ? 0 : (from + (int)a.stride - 1) / (int)a.stride;
}
INLINE int last_of(const Axis& a, int at) {
    int o = a.adaptive ? (int)((at + 1) * a.out / a.size) + 1 : (at + (int)a.padding) / (int)a.stride;
    return o < (int)a.out ? o : (int)a.out - 1;
}

#if PASS == 1
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* from, const I* index, i64 n, Shape s) {
#elif PASS == 0
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, I* index, const T* from, i64 n, Shape s) {
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* from, const I* index, i64 n, Shape s) {
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const I* index, i64 n, Shape s) {
#endif
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    // Most images have few enough elements for 32-bit indices.
    bool small = n < 0xffffffffLL;
    i64 rest = small ? (u32)number / (u32)(s.inner / V) : number / (s.inner / V);
    i64 c = (number - rest * (s.inner / V)) * V;
    int at[3];
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        u32 size = (u32)(PASS == 1 ? s.axis[d].size : s.axis[d].out);
        i64 above = small ? (u32)rest / size : rest / size;
        at[d] = (int)(rest - above * size);
        rest = above;
    }
    i64 rows = s.axis[1].size, cols = s.axis[2].size;
    (void)c;
#if PASS == 0
    bool is_first = true;
    int best[V];
    A largest[V];
#pragma unroll
    for (int k = 0; k < V; k++) { best[k] = 0; largest[k] = 0; }
    for (int z = 0; z < s.axis[0].kernel; z++) {
        int iz = tapped(s.axis[0], at[0], z);
        if (iz < 0) continue;
        for (int y = 0; y < s.axis[1].kernel; y++) {
            int iy = tapped(s.axis[1], at[1], y);
            if (iy < 0) continue;
            for (int x = 0; x < s.axis[2].kernel; x++) {
                int ix = tapped(s.axis[2], at[2], x);
                if (ix < 0) continue;
                int tap = (z * (int)s.axis[1].kernel + y) * (int)s.axis[2].kernel + x;
                auto elements = *(const Pack<T, V>*)(from + (((rest * s.axis[0].size + iz) * rows + iy) * cols + ix) * s.inner + c);
#pragma unroll
                for (int k = 0; k < V; k++) {
                    A v = value<A>(elements.v[k]);
                    // The first of equal elements; NaN counts as the largest.
                    if (is_first || v > largest[k] || v != v) { largest[k] = v; best[k] = tap; }
                }
                is_first = false;
            }
        }
    }
    Pack<T, V> values;
    Pack<I, V> taps;
#pragma unroll
    for (int k = 0; k < V; k++) { values.v[k] = Into<T>::of(largest[k]); taps.v[k] = (I)best[k]; }
    *(Pack<T, V>*)(to + number * V) = values;
    *(Pack<I, V>*)(index + number * V) = taps;
#elif PASS == 1
    // The gradient of an element is the sum over the windows in which it was the largest.
    A sums[V];
#pragma unroll
    for (int k = 0; k < V; k++) sums[k] = 0;
    for (int z = first_of(s.axis[0], at[0]), ez = last_of(s.axis[0], at[0]); z <= ez; z++) {
        int tz = tap_at(s.axis[0], z, at[0]);
        if (tz < 0) continue;
        for (int y = first_of(s.axis[1], at[1]), ey = last_of(s.axis[1], at[1]); y <= ey; y++) {
            int ty = tap_at(s.axis[1], y, at[1]);
            if (ty < 0) continue;
            for (int x = first_of(s.axis[2], at[2]), ex = last_of(s.axis[2], at[2]); x <= ex; x++) {
                int tx = tap_at(s.axis[2], x, at[2]);
                if (tx < 0) continue;
                i64 o = (((rest * s.axis[0].out + z) * s.axis[1].out + y) * s.axis[2].out + x) * s.inner + c;
                int tap = (tz * (int)s.axis[1].kernel + ty) * (int)s.axis[2].kernel + tx;
                auto taps = *(const Pack<I, V>*)(index + o);
                auto gradients = *(const Pack<T, V>*)(from + o);
#pragma unroll
                for (int k = 0; k < V; k++) if (taps.v[k] == (I)tap) sums[k] += value<A>(gradients.v[k]);
            }
        }
    }
    Pack<T, V> out;
#pragma unroll
    for (int k = 0; k < V; k++) out.v[k] = Into<T>::of(sums[k]);
    *(Pack<T, V>*)(to + number * V) = out;
#else
    int tap = (int)index[number], across = (int)s.axis[2].kernel, down = (int)s.axis[1].kernel;
    int iz = tapped(s.axis[0], at[0], tap / (across * down)), iy = tapped(s.axis[1], at[1], tap / across % down);
    int ix = tapped(s.axis[2], at[2], tap % across);
#if PASS == 3
    to[number] = ((i64)iz * rows + iy) * cols + ix;
#else
    A v = 0;
    if (iz >= 0 && iy >= 0 && ix >= 0) v = load<A>(from + (((rest * s.axis[0].size + iz) * rows + iy) * cols + ix) * s.inner + c);
    store(to + number, v);
#endif
#endif
}
