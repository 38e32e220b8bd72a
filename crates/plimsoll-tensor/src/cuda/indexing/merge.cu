
// Sorting by merging runs: one pass of a stable sort of rows.
//
// Macros defined before this text:
//   K           the type for comparisons
//   T           the type of the elements
//   DESCENDING  whether the largest come first
//   PASS        0 copies the rows and numbers their positions, 1 merges pairs of runs

// Whether a comes before b; NaN counts as the largest.
INLINE bool before(K a, K b) {
    bool less = a < b || (a == a && b != b), more = a > b || (a != a && b == b);
    return DESCENDING ? more : less;
}

#if PASS == 0
struct Space { i64 kept[KEPT], step[KEPT]; };
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, i64* places, const T* x, i64 rows, i64 length, i64 along, Space s) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * length) return;
    i64 row = i / length, at = i - row * length;
    to[i] = x[place<KEPT>(row, s.kept, s.step) + at * along];
    places[i] = at;
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* to, i64* to_places, const T* from, const i64* places, i64 rows, i64 length, i64 run) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * length) return;
    i64 row = i / length, at = i - row * length;
    const T* line = from + row * length;
    i64 pair = at / (2 * run) * (2 * run), middle = pair + run < length ? pair + run : length;
    i64 end = pair + 2 * run < length ? pair + 2 * run : length;
    bool is_first = at < middle;
    K own = load<K>(line + at);
    // Counts the elements of the other run that come before it; of equal elements, those of the
    // first run.
    i64 low = is_first ? middle : pair, high = is_first ? end : middle, begin = low;
    while (low < high) {
        i64 half = (low + high) >> 1;
        K other = load<K>(line + half);
        bool comes_before = is_first ? before(other, own) : !before(own, other);
        if (comes_before) low = half + 1; else high = half;
    }
    i64 to_at = row * length + pair + (at - (is_first ? pair : middle)) + (low - begin);
    to[to_at] = line[at];
    to_places[to_at] = places[i];
}
#endif
