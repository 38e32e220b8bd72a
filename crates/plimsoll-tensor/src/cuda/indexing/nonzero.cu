
// The positions at which a mask is set. One block counts in the mask's order.
//
// Macros defined before this text:
//   RANK  dimensions

struct Space { i64 size[RANK]; };
extern "C" __global__ void __launch_bounds__(1024) kernel(i64* out, const u8* mask, i64 n, i64 most, Space s) {
    __shared__ i64 counts[32];
    i64 before = 0;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (i64 begin = 0; begin < n; begin += 1024) {
        i64 i = begin + threadIdx.x;
        bool is_set = i < n && mask[i] != 0;
        u32 set = __ballot_sync(0xffffffffu, is_set);
        __syncthreads();
        if (lane == 0) counts[warp] = __popc(set);
        __syncthreads();
        i64 at = before + __popc(set & ((1u << lane) - 1u)), all = 0;
        for (int w = 0; w < 32; w++) { if (w < warp) at += counts[w]; all += counts[w]; }
        before += all;
        if (!is_set || at >= most) continue;
        i64 rest = i;
        for (int d = RANK - 1; d >= 0; d--) { out[at * RANK + d] = rest % s.size[d]; rest /= s.size[d]; }
    }
}
