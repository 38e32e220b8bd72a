
// Finds the first elements of a row in order, one after the other, with one block for each row.
//
// Macros defined before this text:
//   K           the type for comparisons
//   T           the type of the elements
//   DESCENDING  whether the largest come first
//   KEPT        dimensions of rows

struct Space { i64 kept[KEPT], step[KEPT]; };
struct Best { K value; i64 at; };

INLINE bool before(K a, K b) {
    bool less = a < b || (a == a && b != b), more = a > b || (a != a && b == b);
    return DESCENDING ? more : less;
}
// The first of equal elements.
INLINE bool comes_first(const Best& a, const Best& b) {
    if (a.at < 0 || b.at < 0) return b.at < 0 && a.at >= 0;
    if (before(a.value, b.value)) return true;
    if (before(b.value, a.value)) return false;
    return a.at < b.at;
}

extern "C" __global__ void __launch_bounds__(256) kernel(T* to, i64* places, const T* x, i64 length, i64 along, i64 count, Space s) {
    __shared__ Best all[256];
    const T* row = x + place<KEPT>(blockIdx.x, s.kept, s.step);
    Best last = {(K)0, -1};
    for (i64 n = 0; n < count; n++) {
        Best best = {(K)0, -1};
        for (i64 i = threadIdx.x; i < length; i += 256) {
            Best here = {load<K>(row + i * along), i};
            if ((last.at < 0 || comes_first(last, here)) && comes_first(here, best)) best = here;
        }
        all[threadIdx.x] = best;
        for (int half = 128; half > 0; half >>= 1) {
            __syncthreads();
            if ((int)threadIdx.x < half && comes_first(all[threadIdx.x + half], all[threadIdx.x])) all[threadIdx.x] = all[threadIdx.x + half];
        }
        __syncthreads();
        last = all[0];
        __syncthreads();
        if (threadIdx.x == 0 && last.at >= 0) {
            to[(i64)blockIdx.x * count + n] = row[last.at * along];
            places[(i64)blockIdx.x * count + n] = last.at;
        }
    }
}
