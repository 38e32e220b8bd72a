
// Zeros, to which each slice is added at its index, in the order of the slices: no result depends on which thread is first. The
// first slice of an index adds up all of its index. Defined before: A, the type that is added in; T, that of the elements; I, that of
// the index; RANK, dimensions of a slice.

struct Space { i64 size[RANK], from[RANK], to[RANK]; };

extern "C" __global__ void __launch_bounds__(256) kernel(
    T* out, const T* slices, const I* index, i64 count, i64 width, i64 rows, i64 from_step, i64 to_step, i64 skipped, Space space, Faults faults
) {
    __shared__ i32 matches[256];
    __shared__ i32 counts[8];
    __shared__ i32 is_later;
    i64 own = blockIdx.x;
    i64 row = load<i64>(index + own);
    if (row < 0 || row >= rows) {
        if (threadIdx.x == 0) report(faults, row, own, rows);
        return;
    }
    if (row == skipped) return;
    if (threadIdx.x == 0) is_later = 0;
    __syncthreads();
    for (i64 i = threadIdx.x; i < own; i += 256) {
        if (load<i64>(index + i) == row) is_later = 1;
        if (is_later) break;
    }
    __syncthreads();
    if (is_later) return;
    for (i64 first = 0; first < width; first += 256 * 4) {
        A sums[4] = {0, 0, 0, 0};
        for (i64 begin = own; begin < count; begin += 256) {
            i64 i = begin + threadIdx.x;
            bool is_same = i < count && load<i64>(index + i) == row;
            u32 mask = __ballot_sync(0xffffffffu, is_same);
            int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
            __syncthreads();
            if (lane == 0) counts[warp] = __popc(mask);
            __syncthreads();
            int before = 0, all = 0;
            for (int w = 0; w < 8; w++) { if (w < warp) before += counts[w]; all += counts[w]; }
            if (is_same) matches[before + __popc(mask & ((1u << lane) - 1u))] = (i32)(i - begin);
            __syncthreads();
            for (int m = 0; m < all; m++) {
                const T* from = slices + (begin + matches[m]) * from_step;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    i64 col = first + k * 256 + threadIdx.x;
                    if (col < width) sums[k] += load<A>(from + place<RANK>(col, space.size, space.from));
                }
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i64 col = first + k * 256 + threadIdx.x;
            if (col < width) store(out + row * to_step + place<RANK>(col, space.size, space.to), sums[k]);
        }
    }
}
