
// The factors of dropout for rows of scores.
extern "C" __global__ void __launch_bounds__(256) kernel(float* out, i64 n, i64 keys, u64 stream, u64 seed, u32 threshold, float factor) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    u64 element = (u64)(i / keys * ((keys + 63) / 64) * 64 + i % keys);
    out[i] = random_word(element, stream, seed) >= threshold ? factor : 0.0f;
}
