// The sum of parts, element by element, as a balanced tree over the parts: the order of ordered_sum.rs in plimsoll-kernels.
//
// Defined before:
//   T      the type of the elements
//   A      the type in which they are added
//   O      the type of the sum
//   WIDTH  the number of neighbouring elements that a thread adds, which are aligned as a unit
//   PARTS  the number of parts, if the code is unrolled for it; else 0

// Where a part begins. One of them, number own_at, may be elsewhere.
#define PART(p) ((p) == own_at ? own : x + ((p) - ((p) > own_at)) * n)

#if PARTS
// The largest power of two below N.
template <int N, int HALF = 1, bool FITS = (2 * HALF < N)> struct Left { static constexpr int value = Left<N, 2 * HALF>::value; };
template <int N, int HALF> struct Left<N, HALF, false> { static constexpr int value = HALF; };

template <int N> struct Tree {
    static constexpr int LEFT = Left<N>::value;
    static __device__ A sum(const A* x) { return Tree<LEFT>::sum(x) + Tree<N - LEFT>::sum(x + LEFT); }
};
template <> struct Tree<1> {
    static __device__ A sum(const A* x) { return x[0]; }
};
#endif

extern "C" __global__ void __launch_bounds__(256) kernel(O* out, const T* x, const T* own, i64 n, i64 parts, i64 own_at, double scale) {
    i64 i = ((i64)blockIdx.x * 256 + threadIdx.x) * WIDTH;
    if (i >= n) return;
    Pack<O, WIDTH> sums;
#if PARTS
    Pack<T, WIDTH> terms[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) terms[part] = *(const Pack<T, WIDTH>*)(PART(part) + i);
#pragma unroll
    for (int at = 0; at < WIDTH; at++) {
        A wide[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++) wide[part] = load<A>(&terms[part].v[at]);
        store(&sums.v[at], Tree<PARTS>::sum(wide) * (A)scale);
    }
#else
    for (int at = 0; at < WIDTH; at++) {
        A nodes[32];
        int depth = 0;
        for (i64 part = 0; part < parts; part++) {
            nodes[depth++] = load<A>(PART(part) + i + at);
            // The number of complete subtrees that end here is the number of trailing zero bits in the number of parts
            // so far.
            for (i64 rest = part + 1; !(rest & 1); rest >>= 1) {
                depth--;
                nodes[depth - 1] += nodes[depth];
            }
        }
        while (depth > 1) {
            depth--;
            nodes[depth - 1] += nodes[depth];
        }
        store(&sums.v[at], nodes[0] * (A)scale);
    }
#endif
    *(Pack<O, WIDTH>*)(out + i) = sums;
}
