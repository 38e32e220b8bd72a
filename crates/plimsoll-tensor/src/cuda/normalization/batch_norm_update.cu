
// Moves running statistics towards a batch's statistics. One block; a negative `share` means one over the number
// of batches.
//
// Macros defined before this text:
//   A  the compute type
//   R  the type of the running statistics
//   V  the type of the batch statistics

extern "C" __global__ void __launch_bounds__(256) kernel(R* mean, R* variance, i64* batches, const V* of_mean, const V* of_variance, double share, double correction, i64 channels) {
    i64 count = batches ? *batches + 1 : 1;
    __syncthreads();
    if (batches && threadIdx.x == 0) *batches = count;
    A part = (A)(share < 0 ? 1.0 / (double)(count > 1 ? count : 1) : share);
    for (i64 i = threadIdx.x; i < channels; i += 256) {
        store(mean + i, (1 - part) * load<A>(mean + i) + part * load<A>(of_mean + i));
        store(variance + i, (1 - part) * load<A>(variance + i) + part * (load<A>(of_variance + i) * (A)correction));
    }
}
