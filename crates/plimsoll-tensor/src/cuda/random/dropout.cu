
// Dropout: multiplies an element by a factor or sets it to 0, and optionally adds a residual. The choice of elements depends only
// on their indices and the stream.
//
// Macros defined before this text:
//   A  the compute type
//   T  the type of the elements

extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* x, const T* residual, i64 n, u64 stream, u64 seed, u32 threshold, float factor) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        A value = random_word((u64)i, stream, seed) >= threshold ? load<A>(x + i) * (A)factor : (A)0;
        if (residual) {
            T rounded;
            store(&rounded, value);
            value = load<A>(&rounded) + load<A>(residual + i);
        }
        store(out + i, value);
    }
}
