
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// 16-bit floats and booleans, stored as their bits. All arithmetic is in float, double or i64.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct boolean { u8 value; };

#define INLINE __device__ __forceinline__
#define INFINITE __int_as_float(0x7f800000)

INLINE float widen(float x) { return x; }
INLINE double widen(double x) { return x; }
INLINE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
INLINE float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
INLINE i64 widen(i64 x) { return x; }
INLINE i64 widen(i32 x) { return x; }
INLINE i64 widen(i16 x) { return x; }
INLINE i64 widen(u8 x) { return x; }
INLINE u16 widen(u16 x) { return x; }
INLINE u32 widen(u32 x) { return x; }
INLINE u64 widen(u64 x) { return x; }
INLINE i64 widen(boolean x) { return x.value != 0; }

// Converts to an integer: rounds towards zero and clamps to the range; NaN becomes 0.
template <class F> INLINE i64 whole(F x) {
    if (x != x) return 0;
    if (x >= (F)9223372036854775808.0) return 0x7fffffffffffffffLL;
    if (x <= (F)-9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
    return (i64)x;
}
// The remainder of division that rounds towards 0.
INLINE float modulo(float a, float b) { return fmodf(a, b); }
INLINE double modulo(double a, double b) { return fmod(a, b); }
INLINE i64 modulo(i64 a, i64 b) { return b == 0 ? 0 : a % b; }
// Math functions for integers. Negative powers are exact for 1 and -1, and 0 for every other number.
INLINE i64 floor(i64 x) { return x; }
INLINE i64 ceil(i64 x) { return x; }
INLINE i64 rint(i64 x) { return x; }
INLINE i64 trunc(i64 x) { return x; }
INLINE i64 pow(i64 base, i64 exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    u64 result = 1, factor = (u64)base;
    for (; exponent > 0; exponent >>= 1, factor *= factor)
        if (exponent & 1) result *= factor;
    return (i64)result;
}
INLINE i64 clamped(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

// Converts a value to the compute type.
template <class A> struct As;
template <> struct As<float> { template <class V> INLINE static float of(V x) { return (float)x; } };
template <> struct As<double> { template <class V> INLINE static double of(V x) { return (double)x; } };
template <> struct As<i64> {
    INLINE static i64 of(float x) { return whole(x); }
    INLINE static i64 of(double x) { return whole(x); }
    INLINE static i64 of(i64 x) { return x; }
};
template <> struct As<u8> { INLINE static u8 of(i64 x) { return (u8)x; } };
template <> struct As<u16> { INLINE static u16 of(u16 x) { return x; } };
template <> struct As<u32> { INLINE static u32 of(u32 x) { return x; } };
template <> struct As<u64> { INLINE static u64 of(u64 x) { return x; } };

template <class A, class T> INLINE A load(const T* p) { return As<A>::of(widen(*p)); }
template <class A, class T> INLINE A value(T x) { return As<A>::of(widen(x)); }

// Converts a value to the element type, rounding once.
template <class T> struct Into;
template <> struct Into<float> { template <class V> INLINE static float of(V x) { return (float)x; } };
template <> struct Into<double> { template <class V> INLINE static double of(V x) { return (double)x; } };
template <> struct Into<bf16> {
    template <class V> INLINE static bf16 of(V v) {
        bf16 out;
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"((float)v));
#else
        u32 bits = __float_as_uint((float)v);
        if ((bits & 0x7fffffffu) > 0x7f800000u) out.bits = (u16)((bits >> 16) | 0x40u);
        else out.bits = (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
        return out;
    }
};
template <> struct Into<f16> {
    template <class V> INLINE static f16 of(V v) {
        f16 out;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"((float)v));
        return out;
    }
};
template <> struct Into<i64> {
    INLINE static i64 of(float x) { return whole(x); }
    INLINE static i64 of(double x) { return whole(x); }
    INLINE static i64 of(i64 x) { return x; }
};
template <> struct Into<i32> {
    INLINE static i32 of(float x) { return (i32)clamped(whole(x), -2147483648LL, 2147483647LL); }
    INLINE static i32 of(double x) { return (i32)clamped(whole(x), -2147483648LL, 2147483647LL); }
    INLINE static i32 of(i64 x) { return (i32)x; }
};
template <> struct Into<i16> {
    INLINE static i16 of(float x) { return (i16)clamped(whole(x), -32768, 32767); }
    INLINE static i16 of(double x) { return (i16)clamped(whole(x), -32768, 32767); }
    INLINE static i16 of(i64 x) { return (i16)x; }
};
template <> struct Into<u8> {
    // The lowest byte of the integer, as in PyTorch.
    INLINE static u8 of(float x) { return (u8)whole(x); }
    INLINE static u8 of(double x) { return (u8)whole(x); }
    INLINE static u8 of(i64 x) { return (u8)x; }
    INLINE static u8 of(u8 x) { return x; }
};
template <> struct Into<u16> { INLINE static u16 of(u16 x) { return x; } };
template <> struct Into<u32> { INLINE static u32 of(u32 x) { return x; } };
template <> struct Into<u64> { INLINE static u64 of(u64 x) { return x; } };
template <> struct Into<boolean> {
    template <class V> INLINE static boolean of(V x) { boolean out; out.value = x != 0; return out; }
};
template <class T, class A> INLINE void store(T* p, A v) { *p = Into<T>::of(v); }

// Elements that are read and written at once.
template <class T, int N> struct __align__(sizeof(T) * N) Pack { T v[N]; };

// Fast functions for 16-bit results, which need no more precision: accurate to a few units in the last place of a float, the
// error function to 2e-7.
INLINE float quick_tanh(float x) { return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f); }
INLINE float quick_erf(float x) {
    // Abramowitz and Stegun, 7.1.26.
    float size = fabsf(x), t = __fdividef(1.0f, fmaf(0.3275911f, size, 1.0f));
    float sum = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f) * t;
    return copysignf(1.0f - sum * __expf(-(x * x)), x);
}

// Kernels report errors here; only the first is kept.
struct Faults { u32* flag; volatile u64* host; u64 id; };
INLINE void report(const Faults& faults, i64 value, i64 row, i64 limit) {
    if (atomicExch(faults.flag, 1u) != 0) return;
    faults.host[1] = faults.id;
    faults.host[2] = (u64)value;
    faults.host[3] = (u64)row;
    faults.host[4] = (u64)limit;
    __threadfence_system();
    faults.host[0] = 1;
}

// Reduces one value per thread over the block; every thread gets the result. The order is always the same.
struct Plus { template <class A> INLINE static A of(A a, A b) { return a + b; } };
struct Larger { template <class A> INLINE static A of(A a, A b) { return a > b ? a : (b != b ? b : (a != a ? a : b)); } };
template <class F, class A> INLINE A across(A x) {
    for (int step = 16; step > 0; step >>= 1) x = F::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
template <class F, class A> INLINE A over_block(A x, A nothing) {
    __shared__ A parts[32];
    x = across<F>(x);
    int warps = (int)blockDim.x >> 5;
    if (warps == 1) return x;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < warps ? parts[threadIdx.x & 31] : nothing;
    return across<F>(x);
}
template <class A> INLINE A block_sum(A x) { return over_block<Plus>(x, (A)0); }
template <class A> INLINE A block_max(A x) { return over_block<Larger>(x, (A)-INFINITE); }

// Four random words from a counter and a key: Philox 4x32-10.
INLINE void philox(u64 counter, u64 stream, u64 seed, u32* out) {
    u32 x0 = (u32)counter, x1 = (u32)(counter >> 32), x2 = (u32)stream, x3 = (u32)(stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        u32 ah = __umulhi(x0, 0xD2511F53u), al = x0 * 0xD2511F53u;
        u32 bh = __umulhi(x2, 0xCD9E8D57u), bl = x2 * 0xCD9E8D57u;
        x0 = bh ^ x1 ^ k0; x1 = bl; x2 = ah ^ x3 ^ k1; x3 = al;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[0] = x0; out[1] = x1; out[2] = x2; out[3] = x3;
}
// The random word of an element. Each group of 64 elements uses 16 counters.
INLINE u32 random_word(u64 element, u64 stream, u64 seed) {
    u64 group = element >> 6;
    u32 at = (u32)element & 63u;
    u32 words[4];
    philox(group * 16 + (at & 15u), stream, seed, words);
    u32 lane = at >> 4;
    return lane == 0 ? words[0] : lane == 1 ? words[1] : lane == 2 ? words[2] : words[3];
}

// The offset of the i-th element of a space.
template <int RANK> INLINE i64 place(i64 i, const i64* size, const i64* step) {
    i64 at = 0;
#pragma unroll
    for (int d = RANK - 1; d > 0; d--) {
        i64 rest = i / size[d];
        at += (i - rest * size[d]) * step[d];
        i = rest;
    }
    return at + i * step[0];
}
