
// Adds each slice to zeros at its index, in the order of the slices, so that results do not depend on the order of threads. The
// thread of the first slice with an index adds all slices with that index; with a `list` it searches only the slices of their
// group.
//
// Macros defined before this text:
//   A        the accumulator type
//   T        the type of the elements
//   I        the type of the index
//   RANK     dimensions of a slice
//   AT_ONCE  slices that are read before they are added

struct Space { i64 size[RANK], from[RANK], to[RANK]; };

extern "C" __global__ void __launch_bounds__(256) kernel(
    T* out, const T* slices, const I* index, const i32* starts, const i32* list, i64 count, i64 width, i64 rows, i64 from_step, i64 to_step, i64 skipped, Space space, Faults faults
) {
    __shared__ i32 matches[256];
    __shared__ i32 counts[8];
    i64 own = blockIdx.x;
    i64 row = load<i64>(index + own);
    if (row < 0 || row >= rows) {
        if (threadIdx.x == 0) report(faults, row, own, rows);
        return;
    }
    if (row == skipped) return;
    i64 group = row & 255, first_of_group = list ? starts[group] : 0, end = list ? starts[group + 1] : count;
    bool is_later = false;
    for (i64 k = first_of_group + threadIdx.x; k < end; k += 256) {
        i64 i = list ? list[k] : k;
        if (i >= own) break;
        is_later = load<i64>(index + i) == row;
        if (is_later) break;
    }
    if (__syncthreads_or(is_later)) return;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (i64 first = 0; first < width; first += 256 * 4) {
        A sums[4] = {0, 0, 0, 0};
        i64 from[4];
        bool is_inside[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i64 col = first + k * 256 + threadIdx.x;
            is_inside[k] = col < width;
            from[k] = is_inside[k] ? place<RANK>(col, space.size, space.from) : 0;
        }
        for (i64 begin = first_of_group; begin < end; begin += 256) {
            i64 k = begin + threadIdx.x, i = k < end ? (list ? list[k] : k) : 0;
            bool is_same = k < end && load<i64>(index + i) == row;
            u32 mask = __ballot_sync(0xffffffffu, is_same);
            __syncthreads();
            if (lane == 0) counts[warp] = __popc(mask);
            __syncthreads();
            int before = 0, all = 0;
            for (int w = 0; w < 8; w++) { if (w < warp) before += counts[w]; all += counts[w]; }
            if (is_same) matches[before + __popc(mask & ((1u << lane) - 1u))] = (i32)i;
            __syncthreads();
            for (int m = 0; m < all; m += AT_ONCE) {
                A some[AT_ONCE][4];
#pragma unroll
                for (int s = 0; s < AT_ONCE; s++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        some[s][k] = m + s < all && is_inside[k] ? load<A>(slices + matches[m + s] * from_step + from[k]) : (A)0;
#pragma unroll
                for (int s = 0; s < AT_ONCE; s++)
#pragma unroll
                    for (int k = 0; k < 4; k++) if (m + s < all) sums[k] += some[s][k];
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i64 col = first + k * 256 + threadIdx.x;
            if (is_inside[k]) store(out + row * to_step + place<RANK>(col, space.size, space.to), sums[k]);
        }
    }
}
