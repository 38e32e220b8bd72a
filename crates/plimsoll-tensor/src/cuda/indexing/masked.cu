
// Moves the elements that a mask selects, in the order of the mask. Groups of `most` elements are
// `step` apart.
//
// Macros defined before this text:
//   W     the word of an element
//   RANK  dimensions
//   PASS  0 the number of set elements in each part of the mask
//         1 packs the elements where it is set
//         2 unpacks them into zeros

struct Space { i64 size[RANK], mask[RANK], x[RANK]; };
extern "C" __global__ void __launch_bounds__(1024) kernel(W* packed, W* x, i64* counts, const u8* mask, i64 n, i64 part, i64 most, i64 step, Space s) {
    i64 begin = (i64)blockIdx.x * part, end = begin + part < n ? begin + part : n;
#if PASS == 0
    i64 count = 0;
    for (i64 i = begin + threadIdx.x; i < end; i += 1024) count += mask[place<RANK>(i, s.size, s.mask)] != 0;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
#else
    __shared__ i64 set_of[32];
    // The number of set elements in the parts before this one.
    i64 before = block_sum(threadIdx.x < blockIdx.x ? counts[threadIdx.x] : (i64)0);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (i64 first = begin; first < end; first += 1024) {
        i64 i = first + threadIdx.x;
        bool is_set = i < end && mask[place<RANK>(i, s.size, s.mask)] != 0;
        u32 set = __ballot_sync(0xffffffffu, is_set);
        __syncthreads();
        if (lane == 0) set_of[warp] = __popc(set);
        __syncthreads();
        i64 at = before + __popc(set & ((1u << lane) - 1u)), all = 0;
        for (int w = 0; w < 32; w++) { if (w < warp) at += set_of[w]; all += set_of[w]; }
        before += all;
        bool moves = is_set && at < most;
#if PASS == 1
        if (moves) packed[at * step] = x[place<RANK>(i, s.size, s.x)];
#else
        if (i < end) x[place<RANK>(i, s.size, s.x)] = moves ? packed[at * step] : (W)0;
#endif
    }
#endif
}
