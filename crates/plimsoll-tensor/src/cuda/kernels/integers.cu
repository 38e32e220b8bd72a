
// Random whole numbers, two words each. Defined before: T; SHUFFLE, whether they are those below the length in random order.

INLINE u64 word(const Key& key, u64 stream, u64 pair) {
    u32 x[16];
    chacha(key, pair >> 3, stream, x);
    int at = (int)(pair & 7) * 2;
    u64 word = 0;
#pragma unroll
    for (int i = 0; i < 16; i += 2) if (i == at) word = (u64)x[i + 1] << 32 | x[i];
    return word;
}

extern "C" __global__ void __launch_bounds__(256) kernel(T* out, i64 n, Key key, u64 stream, i64 low, u64 range) {
#if SHUFFLE
    for (i64 i = threadIdx.x; i < n; i += 256) store(out + i, i);
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (i64 i = n - 1, drawn = 0; i > 0; i--, drawn++) {
        i64 at = (i64)__umul64hi(word(key, stream, (u64)drawn), (u64)(i + 1));
        T kept = out[i];
        out[i] = out[at];
        out[at] = kept;
    }
#else
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < n) store(out + i, low + (i64)__umul64hi(word(key, stream, (u64)i), range));
#endif
}
