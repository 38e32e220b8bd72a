
// ChaCha8: the 16 words of a block of a stream.

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

// The 64-bit word of a stream with this number.
INLINE u64 word(const Key& key, u64 stream, u64 pair) {
    u32 x[16];
    chacha(key, pair >> 3, stream, x);
    int at = (int)(pair & 7) * 2;
    u64 word = 0;
#pragma unroll
    for (int i = 0; i < 16; i += 2) if (i == at) word = (u64)x[i + 1] << 32 | x[i];
    return word;
}
