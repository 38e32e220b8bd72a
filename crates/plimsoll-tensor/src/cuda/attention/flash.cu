
// Attention by tiles with tensor cores, for bf16 and f16: scores never leave the multiprocessor (FlashAttention-2).
//
// Macros defined before this text:
//   HALF          whether elements are f16
//   D             elements per row of a head
//   CAUSAL        whether a query attends only to keys up to its own position
//   PASS          0 forward, 1 the gradient of queries, 2 the gradients of keys and values
//   MT, WARPS, N  a block owns M rows, MT tiles of 16 for each warp, and loops over the other operand's rows, N at a time
//   KEEP          whether a block's own rows stay in registers
//
// Fragments have the layout of mma.m16n8k16: lane 4g + t holds rows g and g + 8, columns 2t and 2t + 1 of an accumulator. Two
// adjacent accumulator tiles already have the layout of a left operand, so probabilities never go through shared memory. Pass 2
// therefore computes transposed scores: its rows are keys. Rows in shared memory are 16 bytes longer than D, so that eight
// consecutive rows have no bank conflicts. Every sum has a fixed order; a separate pass computes the gradients of queries,
// without atomics.

#define M (MT * 16 * WARPS)
#define THREADS (WARPS * 32)
#define ROW (D + 8)
#define LOG2E 1.4426950408889634f

// Strides are the elements from one batch, head and row to the next. `spread`: neighbouring blocks work on different heads, those
// with the most work first.
struct Shape {
    i64 batch, heads, kv_heads, queries, keys, spread;
    i64 q[3], k[3], v[3], o[3], g[3], to[3], to_v[3];
};

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
INLINE void copy_16(u16* to, const u16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0));
}
INLINE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
INLINE void copies_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Copies rows of a matrix to shared memory; rows from `limit` onward are zero.
template <int ROWS> INLINE void fetch(u16* to, const u16* from, i64 stride, i64 first, i64 limit) {
#pragma unroll
    for (int i = 0; i < (ROWS * (D / 8) + THREADS - 1) / THREADS; i++) {
        int c = i * THREADS + (int)threadIdx.x;
        int row = c / (D / 8), col = c % (D / 8) * 8;
        if (ROWS * (D / 8) % THREADS != 0 && row >= ROWS) break;
        bool inside = first + row < limit;
        copy_16(to + row * ROW + col, from + (inside ? first + row : 0) * stride + col, inside);
    }
}

INLINE void four(u32* r, const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}
INLINE void four_transposed(u32* r, const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}
// Loads a left operand: rows from `row` onward, 16 terms from `term` onward.
INLINE void left(u32* a, const u16* tile, int row, int term) {
    int lane = threadIdx.x & 31;
    four(a, tile + (row + (lane & 15)) * ROW + term + (lane >> 4) * 8);
}
// Loads two right operands whose columns are rows of the tile: columns from `col` onward, 16 terms from `term` onward.
INLINE void right(u32* b, const u16* tile, int col, int term) {
    int lane = threadIdx.x & 31;
    four(b, tile + (col + (lane >> 4) * 8 + (lane & 7)) * ROW + term + (lane >> 3 & 1) * 8);
}
// Loads two right operands whose terms are rows of the tile.
INLINE void right_by_terms(u32* b, const u16* tile, int term, int col) {
    int lane = threadIdx.x & 31;
    four_transposed(b, tile + (term + (lane & 15)) * ROW + col + (lane >> 4) * 8);
}

#if HALF
#define SHORT "f16"
#else
#define SHORT "bf16"
#endif
INLINE void multiply(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." SHORT "." SHORT ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE u32 both(float low, float high) {
    u32 out;
    asm("cvt.rn." SHORT "x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
INLINE float power(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#if HALF
typedef f16 E;
#else
typedef bf16 E;
#endif
INLINE float widen(u32 both, int half) { E e; e.bits = (u16)(half ? both >> 16 : both & 0xffffu); return widen(e); }

// The k-th left operand of an accumulator that was converted to 16 bits.
template <int TILES> INLINE void as_left(u32* a, const float (&c)[TILES][4], int k) {
    a[0] = both(c[2 * k][0], c[2 * k][1]);
    a[1] = both(c[2 * k][2], c[2 * k][3]);
    a[2] = both(c[2 * k + 1][0], c[2 * k + 1][1]);
    a[3] = both(c[2 * k + 1][2], c[2 * k + 1][3]);
}

// scores[rows][columns] += own · otherᵀ over D terms. `kept` has the operands of the block's own rows if KEEP is set; otherwise
// they are read again.
INLINE void rows_by_rows(float (&c)[MT][N / 8][4], const u32 (&kept)[MT][D / 16][4], const u16* own, int first, const u16* other) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
#if KEEP
            for (int i = 0; i < 4; i++) a[m][i] = kept[m][k][i];
#else
            left(a[m], own, first + m * 16, k * 16);
#endif
        }
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            u32 b[4];
            right(b, other, n * 16, k * 16);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply(c[m][2 * n], a[m], b[0], b[1]);
                multiply(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// c[rows][D] += p · other over N terms.
INLINE void weighted(float (&c)[MT][D / 8][4], const float (&p)[MT][N / 8][4], const u16* other) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) as_left<N / 8>(a[m], p[m], k);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 b[4];
            right_by_terms(b, other, k * 16, n * 16);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply(c[m][2 * n], a[m], b[0], b[1]);
                multiply(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
template <int TILES> INLINE void zero(float (&c)[MT][TILES][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0;
}
INLINE void keep(u32 (&kept)[MT][D / 16][4], const u16* own, int first) {
#if KEEP
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int k = 0; k < D / 16; k++) left(kept[m][k], own, first + m * 16, k * 16);
#endif
}
// Writes the rows of an accumulator times a factor, through the warp's shared memory, so that complete rows are written.
INLINE void put(u16* to, i64 stride, const float (&c)[MT][D / 8][4], float factor, i64 first, i64 limit, u16* shared) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, own = (threadIdx.x >> 5) * 16 * MT;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(u32*)(shared + (own + m * 16 + g + h * 8) * ROW + n * 8 + 2 * t) = both(c[m][n][2 * h] * factor, c[m][n][2 * h + 1] * factor);
    __syncthreads();
#pragma unroll
    for (int c = threadIdx.x; c < M * (D / 8); c += THREADS) {
        int row = c / (D / 8), col = c % (D / 8) * 8;
        if (first + row < limit) *(uint4*)(to + (first + row) * stride + col) = *(const uint4*)(shared + row * ROW + col);
    }
}

// The head and the rows that a block owns, given the number of rows.
#define OWN(rows) \
    extern __shared__ __align__(16) u16 shared[]; \
    i64 tiles = ((rows) + M - 1) / M, pairs = gridDim.x / tiles; \
    i64 tile = s.spread ? blockIdx.x / pairs : blockIdx.x % tiles, pair = s.spread ? blockIdx.x % pairs : blockIdx.x / tiles; \
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, own = (int)(threadIdx.x >> 5) * 16 * MT; \
    (void)g; (void)t;

#if PASS == 0
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    u16* out, float* log_sums, const u16* q, const u16* k, const u16* v, float scale, const __grid_constant__ Shape s
) {
    OWN(s.queries)
    tile = tiles - 1 - tile;
    i64 batch = pair / s.heads, head = pair % s.heads, kv = head / (s.heads / s.kv_heads), first = tile * M;
    q += batch * s.q[0] + head * s.q[1];
    k += batch * s.k[0] + kv * s.k[1];
    v += batch * s.v[0] + kv * s.v[1];
    i64 end = s.keys;
    if (CAUSAL && first + M < end) end = first + M;
    int steps = (int)((end + N - 1) / N);
    u32 queries[MT][D / 16][4];
    fetch<M>(shared, q, s.q[2], first, s.queries);
    copies_end();
    copies_wait();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < D / 16; i++) left(queries[m][i], shared, own + m * 16, i * 16);
    __syncthreads();
    float o[MT][D / 8][4], largest[MT][2], sum[MT][2];
    zero<D / 8>(o);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) { largest[m][h] = -INFINITE; sum[m][h] = 0; }
    fetch<N>(shared, k, s.k[2], 0, s.keys);
    fetch<N>(shared + N * ROW, v, s.v[2], 0, s.keys);
    copies_end();
    float log2_scale = scale * LOG2E;
    for (int step = 0; step < steps; step++) {
        u16* tile_k = shared + (step & 1) * 2 * N * ROW;
        u16* tile_v = tile_k + N * ROW;
        copies_wait();
        __syncthreads();
        if (step + 1 < steps) {
            u16* next = shared + ((step + 1) & 1) * 2 * N * ROW;
            fetch<N>(next, k, s.k[2], (i64)(step + 1) * N, s.keys);
            fetch<N>(next + N * ROW, v, s.v[2], (i64)(step + 1) * N, s.keys);
            copies_end();
        }
        float p[MT][N / 8][4];
        zero<N / 8>(p);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int n = 0; n < N / 16; n++) {
                u32 b[4];
                right(b, tile_k, n * 16, i * 16);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    multiply(p[m][2 * n], queries[m][i], b[0], b[1]);
                    multiply(p[m][2 * n + 1], queries[m][i], b[2], b[3]);
                }
            }
        }
        i64 column = (i64)step * N;
        if (column + N > s.keys || (CAUSAL && column + N > first + own + 1)) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        i64 key = column + n * 8 + 2 * t + (i & 1), query = first + own + m * 16 + g + (i >> 1) * 8;
                        if (key >= s.keys || (CAUSAL && key > query)) p[m][n][i] = -INFINITE;
                    }
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = largest[m][h];
#pragma unroll
                for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(p[m][n][2 * h], p[m][n][2 * h + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float shrink = power((largest[m][h] - top) * log2_scale), shift = top * log2_scale, part = 0;
                largest[m][h] = top;
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) part += p[m][n][2 * h + i] = power(p[m][n][2 * h + i] * log2_scale - shift);
                sum[m][h] = sum[m][h] * shrink + part;
#pragma unroll
                for (int n = 0; n < D / 8; n++) { o[m][n][2 * h] *= shrink; o[m][n][2 * h + 1] *= shrink; }
            }
        weighted(o, p, tile_v);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            float factor = 1 / all;
#pragma unroll
            for (int n = 0; n < D / 8; n++) { o[m][n][2 * h] *= factor; o[m][n][2 * h + 1] *= factor; }
            i64 query = first + own + m * 16 + g + h * 8;
            if (t == 0 && query < s.queries) log_sums[pair * s.queries + query] = largest[m][h] * scale + logf(all);
        }
    put(out + batch * s.o[0] + head * s.o[1], s.o[2], o, 1, first, s.queries, shared);
}
#elif PASS == 1
// Computes the gradient of queries and, for pass 2, two numbers for each of `padded` rows: the log-sum-exp in base 2, and the sum
// of output times gradient.
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    u16* to_q, float2* numbers, const u16* q, const u16* k, const u16* v, const u16* o, const u16* grad, const float* log_sums, i64 padded,
    float scale, const __grid_constant__ Shape s
) {
    OWN(s.queries)
    tile = tiles - 1 - tile;
    i64 batch = pair / s.heads, head = pair % s.heads, kv = head / (s.heads / s.kv_heads), first = tile * M;
    q += batch * s.q[0] + head * s.q[1];
    k += batch * s.k[0] + kv * s.k[1];
    v += batch * s.v[0] + kv * s.v[1];
    o += batch * s.o[0] + head * s.o[1];
    grad += batch * s.g[0] + head * s.g[1];
    i64 end = s.keys;
    if (CAUSAL && first + M < end) end = first + M;
    int steps = (int)((end + N - 1) / N);
    u16* tile_q = shared;
    u16* tile_g = shared + M * ROW;
    u16* ring = shared + 2 * M * ROW;
    fetch<M>(tile_q, q, s.q[2], first, s.queries);
    fetch<M>(tile_g, grad, s.g[2], first, s.queries);
    fetch<N>(ring, k, s.k[2], 0, s.keys);
    fetch<N>(ring + N * ROW, v, s.v[2], 0, s.keys);
    copies_end();
    copies_wait();
    __syncthreads();
    // Each warp handles its own rows, with four lanes for each row.
    float log_sum[MT][2], along[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = own + m * 16 + g + h * 8;
            i64 query = first + row;
            bool inside = query < s.queries;
            float part = 0;
            if (inside)
#pragma unroll
                for (int c = t * 8; c < D; c += 32) {
                    uint4 x = *(const uint4*)(o + query * s.o[2] + c), y = *(const uint4*)(tile_g + row * ROW + c);
                    const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                    for (int i = 0; i < 4; i++) part += widen(xs[i], 0) * widen(ys[i], 0) + widen(xs[i], 1) * widen(ys[i], 1);
                }
            part += __shfl_xor_sync(0xffffffffu, part, 1);
            part += __shfl_xor_sync(0xffffffffu, part, 2);
            along[m][h] = part;
            log_sum[m][h] = inside ? log_sums[pair * s.queries + query] * LOG2E : INFINITE;
            if (t == 0) numbers[pair * padded + query] = make_float2(log_sum[m][h], part);
        }
    u32 of_q[MT][D / 16][4], of_g[MT][D / 16][4];
    keep(of_q, tile_q, own);
    keep(of_g, tile_g, own);
    float dq[MT][D / 8][4];
    zero<D / 8>(dq);
    float log2_scale = scale * LOG2E;
    for (int step = 0; step < steps; step++) {
        u16* tile_k = ring + (step & 1) * 2 * N * ROW;
        copies_wait();
        __syncthreads();
        if (step + 1 < steps) {
            u16* next = ring + ((step + 1) & 1) * 2 * N * ROW;
            fetch<N>(next, k, s.k[2], (i64)(step + 1) * N, s.keys);
            fetch<N>(next + N * ROW, v, s.v[2], (i64)(step + 1) * N, s.keys);
            copies_end();
        }
        float p[MT][N / 8][4], dp[MT][N / 8][4];
        zero<N / 8>(p);
        zero<N / 8>(dp);
        rows_by_rows(p, of_q, tile_q, own, tile_k);
        rows_by_rows(dp, of_g, tile_g, own, tile_k + N * ROW);
        i64 column = (i64)step * N;
        bool cut = column + N > s.keys || (CAUSAL && column + N > first + own + 1);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float x = power(p[m][n][i] * log2_scale - log_sum[m][i >> 1]);
                    if (cut) {
                        i64 key = column + n * 8 + 2 * t + (i & 1), query = first + own + m * 16 + g + (i >> 1) * 8;
                        if (key >= s.keys || (CAUSAL && key > query)) x = 0;
                    }
                    p[m][n][i] = x * (dp[m][n][i] - along[m][i >> 1]);
                }
        weighted(dq, p, tile_k);
    }
    put(to_q + batch * s.to[0] + head * s.to[1], s.to[2], dq, scale, first, s.queries, shared);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(
    u16* to_k, u16* to_v, const float2* numbers, const u16* q, const u16* k, const u16* v, const u16* grad, i64 padded, float scale,
    const __grid_constant__ Shape s
) {
    OWN(s.keys)
    i64 batch = pair / s.kv_heads, kv = pair % s.kv_heads, first = tile * M;
    int group = (int)(s.heads / s.kv_heads);
    k += batch * s.k[0] + kv * s.k[1];
    v += batch * s.v[0] + kv * s.v[1];
    q += batch * s.q[0] + kv * group * s.q[1];
    grad += batch * s.g[0] + kv * group * s.g[1];
    numbers += (batch * s.heads + kv * group) * padded;
    u16* tile_k = shared;
    u16* tile_v = shared + M * ROW;
    u16* ring = shared + 2 * M * ROW;
    // A stage holds queries, gradients and the two numbers of each row.
    const int stage = 2 * N * ROW + N * 4;
    // Queries before the first key attend to none of these keys.
    int begin = CAUSAL ? (int)(first / N) : 0, all = (int)((s.queries + N - 1) / N);
    int each = all > begin ? all - begin : 0, steps = each * group;
    auto fill = [&](int step) {
        u16* to = ring + (step & 1) * stage;
        int head = step / each;
        i64 row = (i64)(begin + step - head * each) * N;
        fetch<N>(to, q + head * s.q[1], s.q[2], row, s.queries);
        fetch<N>(to + N * ROW, grad + head * s.g[1], s.g[2], row, s.queries);
        if (threadIdx.x < N / 2) copy_16(to + 2 * N * ROW + threadIdx.x * 8, (const u16*)(numbers + head * padded + row + threadIdx.x * 2), true);
        copies_end();
    };
    fetch<M>(tile_k, k, s.k[2], first, s.keys);
    fetch<M>(tile_v, v, s.v[2], first, s.keys);
    copies_end();
    if (steps > 0) fill(0);
    copies_wait();
    __syncthreads();
    u32 of_k[MT][D / 16][4], of_v[MT][D / 16][4];
    keep(of_k, tile_k, own);
    keep(of_v, tile_v, own);
    float dk[MT][D / 8][4], dv[MT][D / 8][4];
    zero<D / 8>(dk);
    zero<D / 8>(dv);
    float log2_scale = scale * LOG2E;
    for (int step = 0; step < steps; step++) {
        u16* tile_q = ring + (step & 1) * stage;
        u16* tile_g = tile_q + N * ROW;
        const float2* of_rows = (const float2*)(tile_g + N * ROW);
        copies_wait();
        __syncthreads();
        if (step + 1 < steps) fill(step + 1);
        float p[MT][N / 8][4], dp[MT][N / 8][4];
        zero<N / 8>(p);
        zero<N / 8>(dp);
        rows_by_rows(p, of_k, tile_k, own, tile_q);
        rows_by_rows(dp, of_v, tile_v, own, tile_g);
        i64 column = (i64)(begin + step % each) * N;
        bool cut = CAUSAL && column < first + own + 16 * MT;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float4 of = *(const float4*)(of_rows + n * 8 + 2 * t);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float x = power(p[m][n][i] * log2_scale - (i & 1 ? of.z : of.x));
                    if (cut) {
                        i64 query = column + n * 8 + 2 * t + (i & 1), key = first + own + m * 16 + g + (i >> 1) * 8;
                        if (key > query) x = 0;
                    }
                    p[m][n][i] = x;
                    dp[m][n][i] = x * (dp[m][n][i] - (i & 1 ? of.w : of.y));
                }
        }
        weighted(dv, p, tile_g);
        weighted(dk, dp, tile_q);
    }
    put(to_k + batch * s.to[0] + kv * s.to[1], s.to[2], dk, scale, first, s.keys, shared);
    put(to_v + batch * s.to_v[0] + kv * s.to_v[1], s.to_v[2], dv, 1, first, s.keys, shared);
}
#endif
