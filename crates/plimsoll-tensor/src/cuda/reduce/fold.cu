
// Reductions of one tensor with one or two results.
//
// Macros defined before this text:
//   A                   the compute type
//   T                   the type of the elements
//   TO, MORE            the types of the first and the second result
//   KEPT, REDUCED       the numbers of kept and reduced dimensions
//   WIDE                whether a block (else a thread) computes a result
//   KIND                0 variance
//                       1 standard deviation
//                       2 number of nonzero elements
//                       3 sum of absolute values
//                       4 root of the sum of squares
//                       5 root of the sum of powers
//                       6 extreme with the number of equal elements
//                       7 extreme with its first index
//                       8 the first index alone
//                       9 logarithm of a sum of exponentials
//                       10 product of floats, with the product without one zero
//                       11 product of integers
//                       12 whether none is 0
//   LARGEST, MAGNITUDE  for extremes: largest or smallest, by absolute value or not

struct Space {
    i64 results, terms;
    i64 kept[KEPT], kept_step[KEPT], reduced[REDUCED], reduced_step[REDUCED];
};

INLINE bool replaces(A x, A best) { return (LARGEST ? x > best : x < best) || (x != x && best == best); }

#if KIND <= 1
struct State { A count, mean, squares; };
INLINE State nothing() { return {0, 0, 0}; }
INLINE State one(A x, i64) { return {1, x, 0}; }
INLINE State join(const State& a, const State& b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    A count = a.count + b.count, off = b.mean - a.mean;
    return {count, a.mean + off * (b.count / count), a.squares + b.squares + off * off * (a.count * (b.count / count))};
}
INLINE void finish(TO* out, MORE*, const State& s, double correction) {
    A divisor = s.count - (A)correction;
    A variance = s.squares / (divisor > 0 ? divisor : (A)0);
    store(out, KIND == 1 ? (A)sqrt(variance) : variance);
}
#elif KIND <= 5 || KIND == 12
struct State { double sum; };
INLINE State nothing() { return {0}; }
INLINE State one(A x, i64, double p) {
    double v = fabs((double)x);
    return {KIND == 2 || KIND == 12 ? (double)(v != 0) : KIND == 3 ? v : KIND == 4 ? v * v : pow(v, p)};
}
INLINE State join(const State& a, const State& b) { return {a.sum + b.sum}; }
INLINE void finish(TO* out, MORE*, const State& s, double p) {
#if KIND == 2 || KIND == 12
    // Large counts do not fit into A's mantissa.
    store(out, KIND == 12 ? (double)(s.sum == p) : s.sum);
#else
    store(out, (A)(KIND == 4 ? sqrt(s.sum) : KIND == 5 ? pow(s.sum, 1.0 / p) : s.sum));
#endif
}
#elif KIND == 6
struct State { A best; i64 count; };
INLINE State nothing() { return {0, 0}; }
INLINE State one(A x, i64) { return {MAGNITUDE && x < 0 ? -x : x, 1}; }
INLINE State join(const State& a, const State& b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    if (replaces(b.best, a.best)) return b;
    if (replaces(a.best, b.best)) return a;
    return {a.best, a.count + b.count};
}
INLINE void finish(TO* out, MORE* more, const State& s, double) { store(out, s.best); store(more, (double)s.count); }
#elif KIND <= 8
struct State { A best; i64 at; };
INLINE State nothing() { return {0, -1}; }
INLINE State one(A x, i64 at) { return {x, at}; }
INLINE State join(const State& a, const State& b) {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    if (replaces(b.best, a.best)) return b;
    if (replaces(a.best, b.best)) return a;
    return a.at < b.at ? a : b;
}
#if KIND == 7
INLINE void finish(TO* out, MORE* more, const State& s, double) { store(out, s.best); store(more, s.at); }
#else
INLINE void finish(TO* out, MORE*, const State& s, double) { store(out, s.at); }
#endif
#elif KIND == 9
struct State { A most; double sum; };
INLINE State nothing() { return {-(A)INFINITE, 0}; }
INLINE State one(A x, i64) { return {x, 1}; }
INLINE State join(const State& a, const State& b) {
    A most = a.most > b.most || a.most != a.most ? a.most : b.most;
    // Equal infinities have distance 0.
    double of_a = a.most == most ? a.sum : a.sum * exp(a.most - most), of_b = b.most == most ? b.sum : b.sum * exp(b.most - most);
    return {most, of_a + of_b};
}
INLINE void finish(TO* out, MORE*, const State& s, double) {
    store(out, s.most == -(A)INFINITE ? s.most : (A)(s.most + log(s.sum)));
}
#elif KIND == 10
struct State { double product; i64 zeros; };
INLINE State nothing() { return {1, 0}; }
INLINE State one(A x, i64) { return x == 0 ? State{1, 1} : State{(double)x, 0}; }
INLINE State join(const State& a, const State& b) { return {a.product * b.product, a.zeros + b.zeros}; }
INLINE void finish(TO* out, MORE* more, const State& s, double) {
    // Zero times infinity is NaN, as in a plain product.
    A product = (A)s.product, zero = product * 0;
    store(out, s.zeros == 0 ? product : zero);
    store(more, s.zeros <= 1 ? product : zero);
}
#else
struct State { i64 product; };
INLINE State nothing() { return {1}; }
INLINE State one(A x, i64) { return {(i64)x}; }
INLINE State join(const State& a, const State& b) { return {(i64)((u64)a.product * (u64)b.product)}; }
INLINE void finish(TO* out, MORE* more, const State& s, double) { store(out, s.product); store(more, (i64)0); }
#endif

INLINE State at(const T* x, const Space& space, i64 i, double number) {
    A value = load<A>(x + place<REDUCED>(i, space.reduced, space.reduced_step));
#if (KIND >= 2 && KIND <= 5) || KIND == 12
    return one(value, i, number);
#else
    (void)number;
    return one(value, i);
#endif
}

extern "C" __global__ void __launch_bounds__(256) kernel(TO* out, MORE* more, const T* x, double number, Space space) {
#if WIDE
    __shared__ State states[256];
    i64 result = blockIdx.x, first = threadIdx.x, step = 256;
#else
    i64 result = (i64)blockIdx.x * 256 + threadIdx.x, first = 0, step = 1;
    if (result >= space.results) return;
#endif
    const T* from = x + place<KEPT>(result, space.kept, space.kept_step);
    State state = nothing();
    for (i64 i = first; i < space.terms; i += step) state = join(state, at(from, space, i, number));
#if WIDE
    states[threadIdx.x] = state;
    for (int half = 128; half > 0; half >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < half) states[threadIdx.x] = join(states[threadIdx.x], states[threadIdx.x + half]);
    }
    if (threadIdx.x != 0) return;
    state = states[0];
#endif
    finish(out + result, more + result, state, number);
}
