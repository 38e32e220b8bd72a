// The sum of parts, element by element, as a balanced tree over the parts: the order of ordered_sum.rs in plimsoll-kernels.
//
// Defined before:
//   T  the type of the elements
//   A  the type in which they are added

extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* x, i64 n, i64 parts, double scale) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    A nodes[32];
    int depth = 0;
    for (i64 part = 0; part < parts; part++) {
        nodes[depth++] = load<A>(x + part * n + i);
        // As many complete subtrees end here as the number of parts so far has zeros at its end.
        for (i64 rest = part + 1; !(rest & 1); rest >>= 1) {
            depth--;
            nodes[depth - 1] += nodes[depth];
        }
    }
    while (depth > 1) {
        depth--;
        nodes[depth - 1] += nodes[depth];
    }
    store(out + i, nodes[0] * (A)scale);
}
