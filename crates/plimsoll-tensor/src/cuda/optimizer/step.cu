
// One step of many parameters in one launch. A block finds its parameter from the index of its chunk.
//
// Macros defined before this text:
//   P, G, S    the types of parameters, gradients and state
//   ROUNDS, R  whether parameters are also written in a different type, and that type
//   RANDOM     whether parameters and their state are rounded stochastically
//   MOST       the maximum number of parameters
//   RULE       0 SGD, 1 SGD with momentum, 2 Adam

#define CHUNK 4096

// r: the other type of the parameters; with RANDOM, their seeds.
struct Table { i64 count; i64 first[MOST + 1]; i64 length[MOST]; P* p[MOST]; const G* g[MOST]; S* s[MOST]; S* t[MOST]; R* r[MOST]; };
struct Numbers { float v[8]; u64 stream; };

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Table table, const __grid_constant__ Numbers numbers) {
    int row = row_of_block(table);
    i64 begin = ((i64)blockIdx.x - table.first[row]) * CHUNK, end = begin + CHUNK;
    if (end > table.length[row]) end = table.length[row];
    P* p = table.p[row];
    const G* g = table.g[row];
    S* s = table.s[row];
    S* t = table.t[row];
    R* r = table.r[row];
    (void)s; (void)t; (void)r;
    const float* v = numbers.v;
#if RANDOM
    const Bits bits = {(u64)r, numbers.stream};
#define PUT(nth, to, x) put(to, x, bits.of(i, nth))
#else
#define PUT(nth, to, x) store(to, x)
#endif
#pragma unroll 4
    for (i64 i = begin + threadIdx.x; i < end; i += 256) {
        float x = load<float>(p + i), grad = load<float>(g + i);
#if RULE == 0
        // v: rate, decay.
        x -= v[0] * (grad + v[1] * x);
#elif RULE == 1
        // v: rate, decay, momentum, 1 - dampening, whether first, whether Nesterov.
        grad += v[1] * x;
        float buffer = v[4] != 0.0f ? grad : v[2] * load<float>(s + i) + v[3] * grad;
        PUT(1, s + i, buffer);
        x -= v[0] * (v[5] != 0.0f ? grad + v[2] * buffer : buffer);
#else
        // v: step size, L2 penalty, decoupled decay factor, 1 - beta1, beta2, 1 - beta2, root of the second bias correction, eps.
        grad += v[1] * x;
        float mean = load<float>(s + i), square = load<float>(t + i);
        mean += v[3] * (grad - mean);
        square = v[4] * square + v[5] * grad * grad;
        PUT(1, s + i, mean);
        PUT(2, t + i, square);
        x = v[2] * x - v[0] * mean / (sqrtf(square) / v[6] + v[7]);
#endif
        PUT(0, p + i, x);
#if ROUNDS
        store(r + i, x);
#endif
    }
}
