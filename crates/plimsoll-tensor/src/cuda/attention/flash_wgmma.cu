// Attention by tiles with wgmma, for bf16 and f16 on compute capability 9.0. It computes the same as flash.cu, with the same
// arguments.
//
// Macros defined before this text:
//   HALF, D, CAUSAL  as in flash.cu
//   PASS             0 forward, 1 the gradient of queries, 2 the gradients of keys and values
//   GROUPS           warpgroups per block; each owns 64 rows
//   N                rows of the other operand that a block loops over at a time
//   STAGES           steps of N rows in shared memory
//   BLOCKS           blocks that share a multiprocessor
//   SUMS             whether partial sums over the rows of a packed tensor's gradient are also computed, one for every 64 rows
//                    of a batch
//
// The products of one block overlap with the exponentials of another, so a warpgroup simply waits for its own products.

#define M (GROUPS * 64)

// Strides are the elements from one batch, head and row to the next. `spread`: neighbouring blocks work on different heads, those
// with the most work first.
struct Shape {
    i64 batch, heads, kv_heads, queries, keys, spread;
    i64 q[3], k[3], v[3], o[3], g[3], to[3], to_v[3];
};

// The head and the rows that a block owns, and those that a warpgroup owns, given the number of rows.
#define OWN(rows) \
    extern __shared__ __align__(1024) unsigned char memory[]; \
    const u32 shared = shared_address(memory); \
    const int queries = (int)s.queries, keys = (int)s.keys, tiles = ((rows) + M - 1) / M, pairs = gridDim.x / tiles; \
    int tile = s.spread ? blockIdx.x / pairs : blockIdx.x % tiles; \
    const int pair = s.spread ? blockIdx.x % pairs : blockIdx.x / tiles; \
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); \
    const u32 group_rows = 64 * 128 * group;

// Bytes of a tile with this many rows.
#define TILE(rows) ((rows) * D * 2)

// The first row and the first column that a lane holds in a warpgroup's accumulators.
INLINE int lane_row() { int thread = thread_now(); return (thread >> 5 & 3) * 16 + (thread >> 2 & 7); }
INLINE int lane_column() { return 2 * (thread_now() & 3); }

// Masks the scores of 64 queries from `query` onward and N keys from `key` onward: excluded scores become `nothing`.
INLINE bool is_cut(int query, int key, int keys) { return key + N > keys || (CAUSAL && key + N > query + 1); }
INLINE void cut(float (&p)[N / 2], int query, int key, int keys, float nothing) {
    query += lane_row();
    key += lane_column();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int left = keys - key;
        if (CAUSAL) left = min(left, query + h * 8 + 1 - key);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * 8 + i >= left) p[n * 4 + h * 2 + i] = nothing;
    }
}

// The address of the first column of the partial sum that begins at row `first` of a batch.
INLINE float* sums_of(float* sums, const Shape& s, int batch, i64 rows, int first, i64 column) {
    return sums + (batch * ((rows + 63) / 64) + first / 64) * ((s.heads + 2 * s.kv_heads) * D) + column;
}

#if PASS == 0
// For each row: the largest score so far, the sum of exponentials, and the factor that rescales earlier sums.
struct Rows { float largest[2], sum[2], shrink[2]; };
// Scores become exponentials.
INLINE void exponentials(float (&p)[N / 2], Rows& rows, float log2_scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top[2] = {rows.largest[h], p[h * 2]};
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) top[i] = fmaxf(top[i], p[n * 4 + h * 2 + i]);
        float now = fmaxf(top[0], top[1]);
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        rows.shrink[h] = power((rows.largest[h] - now) * log2_scale);
        rows.largest[h] = now;
        float shift = now * log2_scale, part[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = power(p[n * 4 + h * 2 + i] * log2_scale - shift);
                part[i] += x;
                p[n * 4 + h * 2 + i] = x;
            }
        rows.sum[h] = rows.sum[h] * rows.shrink[h] + (part[0] + part[1]);
    }
}
INLINE void shrink(float (&o)[D / 2], const Rows& rows) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] *= rows.shrink[i >> 1 & 1];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(
    u16* out, float* log_sums, const u16* q, const u16* k, const u16* v, float scale, const __grid_constant__ Shape s
) {
    OWN(queries)
    tile = tiles - 1 - tile;
    const int batch = pair / (int)s.heads, head = pair % (int)s.heads, kv = head / (int)(s.heads / s.kv_heads);
    const int first = tile * M, mine = first + group * 64;
    k += batch * s.k[0] + kv * s.k[1];
    v += batch * s.v[0] + kv * s.v[1];
    const int steps = ((CAUSAL ? min(keys, first + M) : keys) + N - 1) / N;
    const int my_steps = mine < queries ? ((CAUSAL ? min(keys, mine + 64) : keys) + N - 1) / N : 0;
    const u32 own_q = shared + group_rows, ring = shared + TILE(M);
    auto stage = [&](int step) { return ring + (u32)step % STAGES * (2 * TILE(N)); };
    auto fill = [&](int step) {
        if (step < steps) {
            fetch<N>(stage(step), k, s.k[2], step * N, keys);
            fetch<N>(stage(step) + TILE(N), v, s.v[2], step * N, keys);
        }
        copies_end();
    };
    fetch<M>(shared, q + batch * s.q[0] + head * s.q[1], s.q[2], first, queries);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fill(i);
    float o[D / 2], p[N / 2];
    u32 a[N / 16][4];
    const float log2_scale = scale * LOG2E;
    Rows rows = {{-INFINITE, -INFINITE}, {0, 0}, {0, 0}};
    zero(o);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        fill(step + STAGES - 1);
        if (step < my_steps) {
            products_begin();
            rows_by_rows<M, N>(p, own_q, stage(step));
            products_end();
            products_wait<0>();
            settle(p);
            if (is_cut(mine, step * N, keys)) cut(p, mine, step * N, keys, -INFINITE);
            exponentials(p, rows, log2_scale);
            as_left(a, p);
            shrink(o, rows);
            settle(o);
            products_begin();
            weighted<N>(o, a, stage(step) + TILE(N));
            products_end();
            products_wait<0>();
            settle(o);
        }
    }
    if (my_steps == 0) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float all = rows.sum[h];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        rows.shrink[h] = 1 / all;
        int query = mine + lane_row() + h * 8;
        if (lane_column() == 0 && query < queries) log_sums[(i64)pair * queries + query] = rows.largest[h] * scale + logf(all);
    }
    shrink(o, rows);
    put<M>(out + batch * s.o[0] + head * s.o[1], s.o[2], o, 1, mine, queries, own_q, group);
}
#elif PASS == 1
// Computes the gradient of queries and, for pass 2, two numbers for each of `padded` rows: the log-sum-exp in base 2, and the sum
// of output times gradient.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(
    u16* to_q, float2* numbers, const u16* q, const u16* k, const u16* v, const u16* o, const u16* grad, const float* log_sums, i64 padded,
    float* sums, float scale, const __grid_constant__ Shape s
) {
    OWN(queries)
    tile = tiles - 1 - tile;
    const int batch = pair / (int)s.heads, head = pair % (int)s.heads, kv = head / (int)(s.heads / s.kv_heads);
    const int first = tile * M, mine = first + group * 64;
    k += batch * s.k[0] + kv * s.k[1];
    v += batch * s.v[0] + kv * s.v[1];
    const int steps = ((CAUSAL ? min(keys, first + M) : keys) + N - 1) / N;
    const int my_steps = mine < queries ? ((CAUSAL ? min(keys, mine + 64) : keys) + N - 1) / N : 0;
    const u32 own_q = shared + group_rows, own_g = own_q + TILE(M), ring = shared + 2 * TILE(M);
    auto stage = [&](int step) { return ring + (u32)step % STAGES * (2 * TILE(N)); };
    auto fill = [&](int step) {
        if (step < steps) {
            fetch<N>(stage(step), k, s.k[2], step * N, keys);
            fetch<N>(stage(step) + TILE(N), v, s.v[2], step * N, keys);
        }
        copies_end();
    };
    fetch<M>(shared, q + batch * s.q[0] + head * s.q[1], s.q[2], first, queries);
    fetch<M>(shared + TILE(M), grad + batch * s.g[0] + head * s.g[1], s.g[2], first, queries);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fill(i);
    copies_wait<STAGES - 2>();
    __syncthreads();
    // Four lanes handle each row.
    float log_sum[2], along[2];
    o += batch * s.o[0] + head * s.o[1];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane_row() + h * 8, query = mine + row, t = lane_column() / 2;
        bool inside = query < queries;
        float part = 0;
        if (inside)
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                int nth = i * 4 + t;
                uint4 x = *(const uint4*)(o + query * s.o[2] + nth * 8), y = sixteen(own_g + nth / 8 * M * 128 + piece(row, nth % 8));
                const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int j = 0; j < 4; j++) part += widen(xs[j], 0) * widen(ys[j], 0) + widen(xs[j], 1) * widen(ys[j], 1);
            }
        part += __shfl_xor_sync(0xffffffffu, part, 1);
        part += __shfl_xor_sync(0xffffffffu, part, 2);
        along[h] = part;
        log_sum[h] = inside ? log_sums[(i64)pair * queries + query] * LOG2E : INFINITE;
        if (t == 0 && query < padded) numbers[pair * padded + query] = make_float2(log_sum[h], part);
    }
    float dq[D / 2], p[N / 2], dp[N / 2];
    u32 a[N / 16][4];
    zero(dq);
    const float log2_scale = scale * LOG2E;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        fill(step + STAGES - 1);
        if (step < my_steps) {
            products_begin();
            rows_by_rows<M, N>(p, own_q, stage(step));
            products_end();
            rows_by_rows<M, N>(dp, own_g, stage(step) + TILE(N));
            products_end();
            products_wait<1>();
            settle(p);
#pragma unroll
            for (int i = 0; i < N / 2; i++) p[i] = power(p[i] * log2_scale - log_sum[i >> 1 & 1]);
            if (is_cut(mine, step * N, keys)) cut(p, mine, step * N, keys, 0);
            settle(p);
            products_wait<0>();
            settle(dp);
#pragma unroll
            for (int i = 0; i < N / 2; i++) p[i] *= dp[i] - along[i >> 1 & 1];
            as_left(a, p);
            products_begin();
            weighted<N>(dq, a, stage(step));
            products_end();
            products_wait<0>();
            settle(dq);
        }
    }
    if (my_steps == 0) return;
    put<M>(to_q + batch * s.to[0] + head * s.to[1], s.to[2], dq, scale, mine, queries, own_q, group);
    if (SUMS) sum_rows<M>(sums_of(sums, s, batch, s.queries, mine, head * D), queries - mine, own_q);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(
    u16* to_k, u16* to_v, const float2* numbers, const u16* q, const u16* k, const u16* v, const u16* grad, i64 padded, float* sums,
    float scale, const __grid_constant__ Shape s
) {
    OWN(keys)
    const int batch = pair / (int)s.kv_heads, kv = pair % (int)s.kv_heads, heads = (int)(s.heads / s.kv_heads);
    const int first = tile * M, mine = first + group * 64;
    q += batch * s.q[0] + kv * heads * s.q[1];
    grad += batch * s.g[0] + kv * heads * s.g[1];
    numbers += (batch * s.heads + kv * heads) * padded;
    const u32 own_k = shared + group_rows, own_v = own_k + TILE(M), ring = shared + 2 * TILE(M), after = ring + STAGES * 2 * TILE(N);
    // Queries before the first key attend to none of these keys.
    const int begin = CAUSAL ? first / N : 0, my_begin = CAUSAL ? mine / N : 0, all = (queries + N - 1) / N;
    const int steps = all > begin ? (all - begin) * heads : 0;
    auto stage = [&](int step) { return ring + (u32)step % STAGES * (2 * TILE(N)); };
    // Prefetch the next queries, gradients and numbers.
    int next_tile = begin;
    auto fill = [&](int step) {
        if (step < steps) {
            int row = next_tile * N;
            fetch<N>(stage(step), q, s.q[2], row, queries);
            fetch<N>(stage(step) + TILE(N), grad, s.g[2], row, queries);
            int thread = thread_now();
            if (thread < N / 2) copy_16(after + (u32)step % STAGES * (N * 8) + thread * 16, (const u16*)(numbers + row + thread * 2), 16);
            if (++next_tile == all) {
                next_tile = begin;
                q += s.q[1];
                grad += s.g[1];
                numbers += padded;
            }
        }
        copies_end();
    };
    fetch<M>(shared, k + batch * s.k[0] + kv * s.k[1], s.k[2], first, keys);
    fetch<M>(shared + TILE(M), v + batch * s.v[0] + kv * s.v[1], s.v[2], first, keys);
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++) fill(i);
    float dk[D / 2], dv[D / 2], p[N / 2], dp[N / 2];
    u32 a[N / 16][4], b[N / 16][4];
    zero(dk);
    zero(dv);
    const float log2_scale = scale * LOG2E;
    int now = begin;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 3>();
        __syncthreads();
        fill(step + STAGES - 2);
        // The products of the last step, which overlapped with the barrier; they read the previous stage.
        products_wait<0>();
        settle(dk);
        settle(dv);
        if (now >= my_begin) {
            const u32 tile_q = stage(step), tile_g = tile_q + TILE(N), of_rows = after + (u32)step % STAGES * (N * 8) + lane_column() * 8;
            products_begin();
            rows_by_rows<M, N>(p, own_k, tile_q);
            products_end();
            rows_by_rows<M, N>(dp, own_v, tile_g);
            products_end();
            products_wait<1>();
            settle(p);
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                uint4 of = sixteen(of_rows + n * 64);
#pragma unroll
                for (int i = 0; i < 4; i++) p[n * 4 + i] = power(p[n * 4 + i] * log2_scale - __uint_as_float(i & 1 ? of.z : of.x));
            }
            if (CAUSAL && now * N < mine + 63) {
                int before = mine + lane_row() - now * N - lane_column();
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    if (i / 4 * 8 + (i & 1) < before + (i >> 1 & 1) * 8) p[i] = 0;
            }
            as_left(a, p);
            products_wait<0>();
            settle(dp);
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                uint4 of = sixteen(of_rows + n * 64);
#pragma unroll
                for (int i = 0; i < 4; i++) p[n * 4 + i] *= dp[n * 4 + i] - __uint_as_float(i & 1 ? of.w : of.y);
            }
            as_left(b, p);
            products_begin();
            weighted<N>(dv, a, tile_g);
            weighted<N>(dk, b, tile_q);
            products_end();
        }
        if (++now == all) now = begin;
    }
    products_wait<0>();
    settle(dk);
    settle(dv);
    if (steps == 0) {
        // `put` overwrites the memory that receives keys and values.
        copies_wait<0>();
        __syncthreads();
    }
    if (mine >= keys) return;
    put<M>(to_k + batch * s.to[0] + kv * s.to[1], s.to[2], dk, scale, mine, keys, own_k, group);
    put<M>(to_v + batch * s.to_v[0] + kv * s.to_v[1], s.to_v[2], dv, 1, mine, keys, own_v, group);
    if (SUMS) {
        sum_rows<M>(sums_of(sums, s, batch, s.keys, mine, (s.heads + kv) * D), keys - mine, own_k);
        sum_rows<M>(sums_of(sums, s, batch, s.keys, mine, (s.heads + s.kv_heads + kv) * D), keys - mine, own_v);
    }
}
#endif
