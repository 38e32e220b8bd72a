
// Random integers, two words each.
//
// Macros defined before this text:
//   T        the type of the numbers
//   SHUFFLE  whether to shuffle the integers below the length

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
