
// Sorts the positions of an index by group of values, keeping the order within each group. `starts` has the beginning of each
// group in `list`. A group consists of the values with the same last eight bits; a block works on one group.
//
// Macros defined before this text:
//   I  the type of the index

extern "C" __global__ void __launch_bounds__(1024) kernel(i32* starts, i32* list, const I* index, i64 count) {
    __shared__ i32 counts[32];
    int group = (int)blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    i64 lower = 0;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < count; i += 1024) lower += (int)(load<i64>(index + i) & 255) < group;
    i32 next = (i32)block_sum(lower);
    if (threadIdx.x == 0) {
        starts[group] = next;
        if (group == 255) starts[256] = (i32)count;
    }
    bool is_of_group[8];
    for (i64 begin = 0; begin < count; begin += 1024) {
        // Issues eight reads before it waits for the first.
        int turn = (int)(begin >> 10) & 7;
        if (turn == 0)
#pragma unroll
            for (int u = 0; u < 8; u++) {
                i64 at = begin + u * 1024 + threadIdx.x;
                is_of_group[u] = at < count && (int)(load<i64>(index + at) & 255) == group;
            }
        i64 i = begin + threadIdx.x;
        bool is_in = false;
#pragma unroll
        for (int u = 0; u < 8; u++) if (u == turn) is_in = is_of_group[u];
        u32 mask = __ballot_sync(0xffffffffu, is_in);
        __syncthreads();
        if (lane == 0) counts[warp] = __popc(mask);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < 32; w++) { if (w < warp) before += counts[w]; all += counts[w]; }
        if (is_in) list[next + before + __popc(mask & ((1u << lane) - 1u))] = (i32)i;
        next += all;
    }
}
