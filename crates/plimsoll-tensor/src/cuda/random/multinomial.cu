
// Draws indices with the given weights. One block handles each row, with separate random words.
//
// Macros defined before this text:
//   T        the type of the weights
//   REPLACE  whether an index may be drawn twice

INLINE double uniform(const Key& key, u64 stream, u64 pair) {
    return (double)(word(key, stream, pair) >> 11) * (1.0 / 9007199254740992.0);
}

extern "C" __global__ void __launch_bounds__(256) kernel(i64* out, const T* weights, u64* scratch, i64 cols, i64 drawn, Key key, u64 stream, Faults faults) {
    const T* row = weights + (i64)blockIdx.x * cols;
    u64* room = scratch + (i64)blockIdx.x * cols;
    i64* to = out + (i64)blockIdx.x * drawn;
    __shared__ u64 all[256];
    __shared__ double total;
    u64 bad = ~0ull, found = 0;
    for (i64 i = threadIdx.x; i < cols; i += 256) {
        double w = load<double>(row + i);
        if (!(w >= 0 && w - w == 0) && (u64)i < bad) bad = (u64)i;
        if (w > 0) found++;
    }
    found = (u64)block_sum((i64)found);
    all[threadIdx.x] = bad;
    __syncthreads();
    for (int i = 0; i < 256; i++) bad = all[i] < bad ? all[i] : bad;
    bool is_few = found < (u64)(REPLACE ? 1 : drawn);
    if (bad != ~0ull || is_few) {
        if (threadIdx.x == 0) report(faults, bad != ~0ull ? (i64)bad : -1, blockIdx.x, bad != ~0ull ? cols : (i64)found);
        for (i64 k = threadIdx.x; k < drawn; k += 256) to[k] = 0;
        return;
    }
#if REPLACE
    double* sums = (double*)room;
    if (threadIdx.x == 0) {
        double sum = 0;
        for (i64 i = 0; i < cols; i++) { sum += load<double>(row + i); sums[i] = sum; }
        total = sum;
    }
    __syncthreads();
    for (i64 k = threadIdx.x; k < drawn; k += 256) {
        double at = uniform(key, stream, (u64)blockIdx.x * drawn + k) * total;
        i64 low = 0, high = cols;
        while (low < high) { i64 half = (low + high) >> 1; if (sums[half] <= at) low = half + 1; else high = half; }
        to[k] = low < cols ? low : cols - 1;
    }
#else
    // The earliest of exponential arrival times with these rates.
    for (i64 i = threadIdx.x; i < cols; i += 256) {
        double w = load<double>(row + i);
        float waited = w > 0 ? (float)(-log(1.0 - uniform(key, stream, (u64)blockIdx.x * cols + i)) / w) : INFINITE;
        room[i] = (u64)__float_as_uint(waited) << 32 | (u64)i;
    }
    __syncthreads();
    u64 last = 0;
    for (i64 k = 0; k < drawn; k++) {
        u64 best = ~0ull;
        for (i64 i = threadIdx.x; i < cols; i += 256) { u64 here = room[i]; if ((k == 0 || here > last) && here < best) best = here; }
        __syncthreads();
        all[threadIdx.x] = best;
        __syncthreads();
        for (int i = 0; i < 256; i++) best = all[i] < best ? all[i] : best;
        last = best;
        if (threadIdx.x == 0) to[k] = (i64)(best & 0xffffffffu);
    }
#endif
    (void)total;
}
