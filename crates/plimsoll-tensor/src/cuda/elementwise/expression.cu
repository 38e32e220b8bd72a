
// Evaluates an expression for each element.
//
// Macros defined before this text:
//   C             the compute type
//   EXPRESSION    an expression of a, b, c, d, y (the old output), i (the element's index) and the numbers p0 to p7
//   TO, T0 to T3  the types of the output and of the inputs
//   NINS          the number of inputs
//   READS         whether y is read
//   RANK          dimensions, or 0 if all tensors have the same contiguous layout
//   S0 to S3      whether each input is read VEC elements at once (1) or broadcast (0)
//   VEC           elements that a thread reads at once
//   AHEAD         how many such reads it issues before it computes
//   QUICK         whether functions need only 16-bit precision

struct Numbers { double v[8]; };

#if QUICK
#define tanh quick_tanh
#define erf quick_erf
#endif

#if RANK > 0
struct Space { i64 size[RANK]; i64 out[RANK]; i64 in[NINS + 1][RANK]; };
#endif

extern "C" __global__ void __launch_bounds__(256) kernel(
    TO* __restrict__ out, const T0* x0, const T1* x1, const T2* x2, const T3* x3, i64 n, Numbers numbers
#if RANK > 0
    , Space space
#endif
) {
    const C p0 = C(numbers.v[0]), p1 = C(numbers.v[1]), p2 = C(numbers.v[2]), p3 = C(numbers.v[3]);
    const C p4 = C(numbers.v[4]), p5 = C(numbers.v[5]), p6 = C(numbers.v[6]), p7 = C(numbers.v[7]);
    (void)p0; (void)p1; (void)p2; (void)p3; (void)p4; (void)p5; (void)p6; (void)p7;
#if RANK == 0
    i64 step = (i64)gridDim.x * 256 * VEC * AHEAD;
    for (i64 begin = ((i64)blockIdx.x * 256 * AHEAD + threadIdx.x) * VEC; begin < n; begin += step) {
#if NINS > 0 && S0 && VEC > 1
        Pack<T0, VEC> pack0[AHEAD];
#endif
#if NINS > 1 && S1 && VEC > 1
        Pack<T1, VEC> pack1[AHEAD];
#endif
#if NINS > 2 && S2 && VEC > 1
        Pack<T2, VEC> pack2[AHEAD];
#endif
#if NINS > 3 && S3 && VEC > 1
        Pack<T3, VEC> pack3[AHEAD];
#endif
#if READS
        Pack<TO, VEC> old[AHEAD];
#endif
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            i64 first = begin + u * 256 * VEC;
            if (AHEAD > 1 && first >= n) break;
#if NINS > 0 && S0 && VEC > 1
            pack0[u] = *(const Pack<T0, VEC>*)(x0 + first);
#endif
#if NINS > 1 && S1 && VEC > 1
            pack1[u] = *(const Pack<T1, VEC>*)(x1 + first);
#endif
#if NINS > 2 && S2 && VEC > 1
            pack2[u] = *(const Pack<T2, VEC>*)(x2 + first);
#endif
#if NINS > 3 && S3 && VEC > 1
            pack3[u] = *(const Pack<T3, VEC>*)(x3 + first);
#endif
#if READS
            old[u] = *(const Pack<TO, VEC>*)(out + first);
#endif
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            i64 first = begin + u * 256 * VEC;
            if (AHEAD > 1 && first >= n) break;
            Pack<TO, VEC> result;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                i64 i = first + k;
                (void)i;
#if READS
                C y = value<C>(old[u].v[k]);
#endif
#if NINS > 0
#if S0 && VEC > 1
                C a = value<C>(pack0[u].v[k]);
#else
                C a = load<C>(x0 + (S0 ? i : 0));
#endif
                (void)a;
#endif
#if NINS > 1
#if S1 && VEC > 1
                C b = value<C>(pack1[u].v[k]);
#else
                C b = load<C>(x1 + (S1 ? i : 0));
#endif
                (void)b;
#endif
#if NINS > 2
#if S2 && VEC > 1
                C c = value<C>(pack2[u].v[k]);
#else
                C c = load<C>(x2 + (S2 ? i : 0));
#endif
                (void)c;
#endif
#if NINS > 3
#if S3 && VEC > 1
                C d = value<C>(pack3[u].v[k]);
#else
                C d = load<C>(x3 + (S3 ? i : 0));
#endif
                (void)d;
#endif
                result.v[k] = Into<TO>::of(C(EXPRESSION));
            }
            *(Pack<TO, VEC>*)(out + first) = result;
        }
    }
#else
    i64 step = (i64)gridDim.x * 256 * VEC;
    for (i64 first = ((i64)blockIdx.x * 256 + threadIdx.x) * VEC; first < n; first += step) {
        // If an input is contiguous, VEC elements are read at once; otherwise one element is broadcast.
        TO* to = out + place<RANK>(first, space.size, space.out);
#if NINS > 0
        const T0* from0 = x0 + place<RANK>(first, space.size, space.in[0]);
        Pack<T0, S0 ? VEC : 1> pack0 = *(const Pack<T0, S0 ? VEC : 1>*)from0;
#endif
#if NINS > 1
        const T1* from1 = x1 + place<RANK>(first, space.size, space.in[1]);
        Pack<T1, S1 ? VEC : 1> pack1 = *(const Pack<T1, S1 ? VEC : 1>*)from1;
#endif
#if NINS > 2
        const T2* from2 = x2 + place<RANK>(first, space.size, space.in[2]);
        Pack<T2, S2 ? VEC : 1> pack2 = *(const Pack<T2, S2 ? VEC : 1>*)from2;
#endif
#if NINS > 3
        const T3* from3 = x3 + place<RANK>(first, space.size, space.in[3]);
        Pack<T3, S3 ? VEC : 1> pack3 = *(const Pack<T3, S3 ? VEC : 1>*)from3;
#endif
        Pack<TO, VEC> result;
#if READS
        result = *(const Pack<TO, VEC>*)to;
#endif
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            i64 i = first + k;
            (void)i;
#if READS
            C y = value<C>(result.v[k]);
#endif
#if NINS > 0
            C a = value<C>(pack0.v[S0 ? k : 0]);
            (void)a;
#endif
#if NINS > 1
            C b = value<C>(pack1.v[S1 ? k : 0]);
            (void)b;
#endif
#if NINS > 2
            C c = value<C>(pack2.v[S2 ? k : 0]);
            (void)c;
#endif
#if NINS > 3
            C d = value<C>(pack3.v[S3 ? k : 0]);
            (void)d;
#endif
            result.v[k] = Into<TO>::of(C(EXPRESSION));
        }
        *(Pack<TO, VEC>*)to = result;
    }
#endif
}
