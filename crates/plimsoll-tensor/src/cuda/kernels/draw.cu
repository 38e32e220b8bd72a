
// Random values from ChaCha8: a thread makes the 16 words of a block. Defined before: T; NORMAL; WIDE, whether T has 64 bits.

struct Key { u32 words[8]; };

#define QUARTER(a, b, c, d) \
    a += b; d ^= a; d = d << 16 | d >> 16; c += d; b ^= c; b = b << 12 | b >> 20; \
    a += b; d ^= a; d = d << 8 | d >> 24; c += d; b ^= c; b = b << 7 | b >> 25;

INLINE void chacha(const Key& key, u64 counter, u64 stream, u32* x) {
    u32 start[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u,
        key.words[0], key.words[1], key.words[2], key.words[3], key.words[4], key.words[5], key.words[6], key.words[7],
        (u32)counter, (u32)(counter >> 32), (u32)stream, (u32)(stream >> 32)};
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = start[i];
#pragma unroll
    for (int round = 0; round < 4; round++) {
        QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
    }
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] += start[i];
}

extern "C" __global__ void __launch_bounds__(256) kernel(T* out, i64 n, Key key, u64 stream, double first, double second, double largest) {
    i64 block = (i64)blockIdx.x * 256 + threadIdx.x;
    const int each = !NORMAL && WIDE ? 8 : 16;
    if (block * each >= n) return;
    u32 x[16];
    chacha(key, (u64)block, stream, x);
#pragma unroll
    for (int i = 0; i < each; i++) {
        i64 at = block * each + i;
        if (at >= n) return;
#if NORMAL
        // Box and Muller's transform of a pair of words, in 64 bits.
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
