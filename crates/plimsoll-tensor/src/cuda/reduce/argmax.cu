
// The index of the largest element along one dimension; for equal elements, the first. NaN counts
// as the largest.
//
// Macros defined before this text:
//   A  the type for comparisons
//   T  the type of the elements

struct Space { i64 count, step; i64 size[KEPT], kept_step[KEPT]; };

extern "C" __global__ void __launch_bounds__(256) kernel(i64* out, const T* x, i64 results, Space space) {
    i64 result = (i64)blockIdx.x * 256 + threadIdx.x;
    if (result >= results) return;
    const T* from = x + place<KEPT>(result, space.size, space.kept_step);
    A largest = load<A>(from);
    i64 at = 0;
    for (i64 i = 1; i < space.count && largest == largest; i++) {
        A next = load<A>(from + i * space.step);
        if (next > largest || next != next) { largest = next; at = i; }
    }
    out[result] = at;
}
