
// Finds the positions of values in sorted rows, with one thread for each value.
//
// Macros defined before this text:
//   A      the type for comparisons
//   T      the type of the elements
//   RIGHT  whether the position is after equal elements

// Whether an element of a row comes before a value; NaN counts as the largest.
INLINE bool before(A x, A v) { return RIGHT ? x <= v || v != v : x < v || (v != v && x == x); }

extern "C" __global__ void __launch_bounds__(256) kernel(i64* out, const T* sorted, const T* values, i64 n, i64 length, i64 per_row, i64 shared) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const T* row = sorted + (shared ? 0 : i / per_row * length);
    A v = load<A>(values + i);
    i64 low = 0, high = length;
    while (low < high) {
        i64 half = (low + high) >> 1;
        if (before(load<A>(row + half), v)) low = half + 1; else high = half;
    }
    out[i] = low;
}
