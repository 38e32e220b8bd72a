
// Random values from ChaCha8: a thread computes the 16 words of a block.
//
// Macros defined before this text:
//   T                    the type of the values
//   NORMAL, EXPONENTIAL  the distribution, if it is not uniform
//   WIDE                 whether T has 64 bits

extern "C" __global__ void __launch_bounds__(256) kernel(T* out, i64 n, Key key, u64 stream, double first, double second, double largest) {
    i64 block = (i64)blockIdx.x * 256 + threadIdx.x;
    const int each = !NORMAL && !EXPONENTIAL && WIDE ? 8 : 16;
    if (block * each >= n) return;
    u32 x[16];
    chacha(key, (u64)block, stream, x);
#pragma unroll
    for (int i = 0; i < each; i++) {
        i64 at = block * each + i;
        if (at >= n) return;
#if EXPONENTIAL
        store(out + at, -log(((double)x[i] + 1.0) / 4294967296.0) / first);
#elif NORMAL
        // The Box-Muller transform of a pair of words, in 64 bits.
        double u = ((double)x[i & ~1] + 1.0) / 4294967296.0;
        double angle = 6.283185307179586 * ((double)x[i | 1] / 4294967296.0);
        double radius = sqrt(-2.0 * log(u));
        double z = radius * (i & 1 ? sin(angle) : cos(angle));
#if WIDE
        store(out + at, __dadd_rn(first, __dmul_rn(second, z)));
#else
        store(out + at, __fadd_rn((float)first, __fmul_rn((float)second, (float)z)));
#endif
#elif WIDE
        u64 word = (u64)x[2 * i + 1] << 32 | x[2 * i];
        double value = __dadd_rn(first, __dmul_rn(second - first, (double)(word >> 11) * (1.0 / 9007199254740992.0)));
        store(out + at, value < second ? value : largest);
#else
        float low = (float)first, high = (float)second;
        float value = __fadd_rn(low, __fmul_rn(high - low, (float)(x[i] >> 8) * (1.0f / 16777216.0f)));
        store(out + at, value < high ? value : (float)largest);
#endif
    }
}
