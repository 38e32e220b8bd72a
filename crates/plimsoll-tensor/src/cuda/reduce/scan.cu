
// Cumulative sums and products along a dimension of [outer, length, inner], with one thread for
// each line.
//
// Macros defined before this text:
//   A      the compute type (64 bits)
//   T, TO  the types of elements and results
//   WORD   the type for additions and products: u64 for integers, which wrap
//   BACK   whether to scan from the last element
//   KIND   0 sum
//          1 product
//          2 the gradient of a product (first the gradient, then the input, then the product)
//          3 a recurrence (g, a): s = g + a s

extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, const T* first, const T* second, const T* third, i64 lines, i64 length, i64 inner) {
    i64 line = (i64)blockIdx.x * 256 + threadIdx.x;
    if (line >= lines) return;
    i64 begin = line / inner * length * inner + line % inner;
    A state = KIND == 1 ? (A)1 : (A)0;
#if KIND == 2
    A weighted = 0;
    i64 zero = -1;
#endif
    for (i64 n = 0; n < length; n++) {
        i64 i = begin + (BACK ? length - 1 - n : n) * inner;
        A x = load<A>(first + i);
#if KIND == 0
        state = (A)((WORD)state + (WORD)x);
        store(out + i, state);
#elif KIND == 1
        state = (A)((WORD)state * (WORD)x);
        store(out + i, state);
#elif KIND == 2
        // As on the host; `plimsoll-tensor/src/ops/scan.rs` explains why.
        A sum = x + state, before = i == begin ? (A)1 : load<A>(third + i - inner), factor = load<A>(second + i);
        if (before != before && zero < 0)
            for (zero = 0; zero < length && load<A>(second + begin + zero * inner) != 0;) zero++;
        bool after = before == 0 || (before != before && (i - begin) / inner > zero);
        weighted = factor == 0 ? (A)0 : weighted + load<A>(third + i) * x;
        state = factor == 0 ? (A)0 : factor * sum;
        bool whole = factor == 0 || (weighted - weighted == 0 && before - before == 0);
        store(out + i, after ? (A)0 : whole ? before * sum : weighted / factor);
#else
        state = x + load<A>(second + i) * state;
        store(out + i, state);
#endif
    }
}
