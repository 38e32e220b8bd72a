
// One step of AdamW with moments in 8 bits, of many parameters in one launch. A block finds its parameter from the index of its
// chunk, and steps 256 elements with a common largest size at a time. The arithmetic is that of bitsandbytes.
//
// Macros defined before this text:
//   P, G                the types of parameters and gradients
//   EIGHT               whether the moments are in 8 bits; otherwise they are floats
//   ROUNDS, R           whether parameters are also written in another type, and that type
//   RANDOM              whether parameters are rounded stochastically
//   MOST                the maximum number of parameters
//   SIGNED, UNSIGNED    the bits of the fractions that the codes of both moments stand for

#define CHUNK 4096

#if EIGHT
typedef u8 Moment;
__device__ const u32 signed_bits[256] = {SIGNED};
__device__ const u32 unsigned_bits[256] = {UNSIGNED};

// The code of the nearest fraction. The search ends at an even code. A value halfway between two codes gets that one.
INLINE int nearest(const float* map, float lower, float x) {
    int pivot = 127, upper_pivot = 255, lower_pivot = 0;
    float upper = 1.0f, value = map[127];
#pragma unroll
    for (int step = 64; step > 0; step >>= 1) {
        if (x > value) { lower_pivot = pivot; lower = value; pivot += step; }
        else { upper_pivot = pivot; upper = value; pivot -= step; }
        value = map[pivot];
    }
    if (x > value) return x > (upper + value) * 0.5f ? upper_pivot : pivot;
    return x < (lower + value) * 0.5f ? lower_pivot : pivot;
}
#else
typedef float Moment;
#endif

// r: the other type of the parameters; with RANDOM, their seeds.
struct Table { i64 count; i64 first[MOST + 1]; i64 length[MOST]; P* p[MOST]; const G* g[MOST]; Moment* m[MOST]; Moment* s[MOST]; float* m_size[MOST]; float* s_size[MOST]; R* r[MOST]; };
// v: step size (negative), eps, decay factor, beta1, 1 - beta1, beta2, 1 - beta2.
struct Numbers { float v[8]; u64 stream; };

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Table table, const __grid_constant__ Numbers numbers) {
    int row = row_of_block(table);
    i64 begin = ((i64)blockIdx.x - table.first[row]) * CHUNK, end = begin + CHUNK;
    if (end > table.length[row]) end = table.length[row];
    P* p = table.p[row];
    const G* g = table.g[row];
    Moment* m = table.m[row];
    Moment* s = table.s[row];
    R* r = table.r[row];
    (void)r;
    const float* v = numbers.v;
#if EIGHT
    __shared__ float map[256], unsigned_map[256];
    map[threadIdx.x] = __uint_as_float(signed_bits[threadIdx.x]);
    unsigned_map[threadIdx.x] = __uint_as_float(unsigned_bits[threadIdx.x]);
    __syncthreads();
#endif
    for (i64 at = begin; at < end; at += 256) {
        i64 i = at + threadIdx.x;
        bool is_in = i < end;
        float grad = is_in ? load<float>(g + i) : 0.0f, x = is_in ? load<float>(p + i) : 0.0f;
        float mean = 0.0f, square = 0.0f;
#if EIGHT
        float* m_size = table.m_size[row] + at / 256;
        float* s_size = table.s_size[row] + at / 256;
        bool is_taken = is_in && fabsf(grad) < INFINITE;
        if (is_taken) {
            mean = map[m[i]] * *m_size;
            square = unsigned_map[s[i]] * *s_size;
        }
#else
        bool is_taken = is_in;
        if (is_in) {
            mean = m[i];
            square = s[i];
        }
#endif
        if (is_taken) {
            mean = mean * v[3] + v[4] * grad;
            square = square * v[5] + v[6] * grad * grad;
            x = (x + v[0] * (mean / (sqrtf(square) + v[1]))) * v[2];
        }
#if EIGHT
        float largest = block_max(fabsf(mean)), largest_square = block_max(square);
        // All threads have read the old sizes: block_max waits for them.
        if (threadIdx.x == 0) {
            *m_size = largest;
            *s_size = largest_square;
        }
        if (is_in) {
            int code = nearest(map, -1.0f, mean / largest);
            // The sign is kept. In a block of zeros this wraps around: all codes mean 0 there.
            if (signbit(map[code]) != signbit(mean)) code += mean > 0.0f ? 1 : -1;
            m[i] = (u8)code;
            s[i] = (u8)nearest(unsigned_map, 0.0f, square / largest_square);
        }
#else
        if (is_in) {
            m[i] = mean;
            s[i] = square;
        }
#endif
        if (!is_in) continue;
#if RANDOM
        put(p + i, x, Bits{(u64)r, numbers.stream}.of(i, 0));
#else
        store(p + i, x);
#endif
#if ROUNDS
        store(r + i, x);
#endif
    }
}
