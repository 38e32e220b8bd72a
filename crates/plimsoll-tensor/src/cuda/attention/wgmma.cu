// Warpgroup matrix products with wgmma, for compute capability 9.0.
//
// Macros defined before this text:
//   HALF     whether elements are f16, else bf16
//   D        elements per row
//   THREADS  threads of a block
//
// A tile in shared memory is stored as halves of 64 columns, one after the other. A row of a half has 128 bytes, and its eight
// pieces of 16 bytes are permuted according to the row number (the 128-byte swizzle), so that eight rows have no bank conflicts.
// A tile begins at a multiple of 1,024 bytes. The sum dimension of an operand runs along its rows ("rows") or across them
// ("terms"); wgmma can read both.
//
// Accumulators have the layout of mma.m16n8k16: lane 4g + t of a warp holds rows g and g + 8, columns 2t and 2t + 1 of each group
// of eight columns. Two adjacent tiles already have the layout of a left operand.

#if HALF
#define SHORT "f16"
typedef f16 E;
#else
#define SHORT "bf16"
typedef bf16 E;
#endif
#define LOG2E 1.4426950408889634f

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// The position of a piece of a row in a half.
INLINE u32 piece(int row, int nth) { return row * 128 + ((nth ^ (row & 7)) << 4); }
INLINE uint4 sixteen(u32 address) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}

INLINE void copy_16(u32 to, const u16* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last groups of copies have arrived, and makes them visible to wgmma.
template <int LAST> INLINE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LAST) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The thread index, read again at each use: values derived from it would otherwise occupy registers between uses.
INLINE int thread_now() { int x; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x)); return x; }
// Copies rows of a matrix to a tile; rows from `limit` onward are zero.
template <int ROWS> INLINE void fetch(u32 to, const u16* from, i64 stride, int first, int limit) {
    const int EACH = THREADS / 8;
    int thread = thread_now(), row = thread / 8, nth = thread % 8;
    asm volatile("" : "+l"(stride));
    to += piece(row, nth);
    from += nth * 8;
    if (first + ROWS <= limit) {
        from += (first + row) * stride;
#pragma unroll
        for (int i = 0; i < (ROWS + EACH - 1) / EACH; i++) {
            if (ROWS % EACH == 0 || row + i * EACH < ROWS)
#pragma unroll
                for (int half = 0; half < D / 64; half++) copy_16(to + half * ROWS * 128 + i * EACH * 128, from + half * 64, 16);
            from += EACH * stride;
        }
    } else {
#pragma unroll
        for (int i = 0; i < (ROWS + EACH - 1) / EACH; i++) {
            bool inside = first + row + i * EACH < limit;
            const u16* at = from + (inside ? first + row + i * EACH : 0) * stride;
            if (ROWS % EACH == 0 || row + i * EACH < ROWS)
#pragma unroll
                for (int half = 0; half < D / 64; half++)
                    copy_16(to + half * ROWS * 128 + i * EACH * 128, at + half * 64, inside ? 16 : 0);
        }
    }
}

// The matrix descriptor of a wgmma operand: 128-byte swizzle, 1,024 bytes between groups of eight rows, `apart` bytes between halves.
INLINE u64 described(u32 address, u32 apart) {
    return (u64)(address >> 4) | (u64)(apart >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62;
}

#define EIGHT(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define NUMBERS_32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define NUMBERS_64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define OF_32(c) EIGHT(c, 0), EIGHT(c, 8), EIGHT(c, 16), EIGHT(c, 24)
#define OF_64(c) OF_32(c), EIGHT(c, 32), EIGHT(c, 40), EIGHT(c, 48), EIGHT(c, 56)
#define WGMMA(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." SHORT "." SHORT " "

// c (+)= a · b, with 64 rows and 16 terms. The rows of b are columns here.
INLINE void multiply(float (&c)[32], u64 a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA("64") NUMBERS_32 ", %32, %33, p, 1, 1, 0, 0; }"
        : OF_32(c) : "l"(a), "l"(b), "r"(add));
}
INLINE void multiply(float (&c)[64], u64 a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " WGMMA("128") NUMBERS_64 ", %64, %65, p, 1, 1, 0, 0; }"
        : OF_64(c) : "l"(a), "l"(b), "r"(add));
}
// The same with a in registers, summing over the rows of b.
INLINE void multiply(float (&c)[32], const u32* a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; " WGMMA("64") NUMBERS_32 ", {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
        : OF_32(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
INLINE void multiply(float (&c)[64], const u32* a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; " WGMMA("128") NUMBERS_64 ", {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
        : OF_64(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
INLINE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all but the last groups of products.
template <int LAST> INLINE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LAST) : "memory"); }
// The compiler must not move reads of an accumulator to before the wait for it.
template <int SIZE> INLINE void settle(float (&c)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) asm volatile("" : "+f"(c[i]) :: "memory");
}
template <int SIZE> INLINE void zero(float (&c)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) c[i] = 0;
    settle(c);
}

// c = own · otherᵀ over D terms: 64 rows of a tile with OWN rows, times a tile with OTHER rows.
template <int OWN, int OTHER> INLINE void rows_by_rows(float (&c)[OTHER / 2], u32 own, u32 other) {
    u64 a = described(own, 16), b = described(other, 16);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        multiply(c, a + ((k / 4 * OWN * 128 + k % 4 * 32) >> 4), b + ((k / 4 * OTHER * 128 + k % 4 * 32) >> 4), k > 0);
}
// c += a · other over OTHER terms.
template <int OTHER> INLINE void weighted(float (&c)[D / 2], const u32 (&a)[OTHER / 16][4], u32 other) {
    u64 b = described(other, OTHER * 128);
#pragma unroll
    for (int k = 0; k < OTHER / 16; k++) multiply(c, a[k], b + (k * 2048 >> 4), 1);
}

INLINE u32 both(float low, float high) {
    u32 out;
    asm("cvt.rn." SHORT "x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
// An accumulator as left operands.
template <int SIZE> INLINE void as_left(u32 (&a)[SIZE / 8][4], const float (&c)[SIZE]) {
#pragma unroll
    for (int k = 0; k < SIZE / 8; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = both(c[k * 8 + i * 2], c[k * 8 + i * 2 + 1]);
}
INLINE float power(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE float widen(u32 both, int half) { E e; e.bits = (u16)(half ? both >> 16 : both & 0xffffu); return widen(e); }

// A barrier for the warps of a warpgroup.
INLINE void meet(int group) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); }
// Writes 64 rows of an accumulator times a factor, through the warpgroup's rows in a tile with OWN rows, so that complete rows
// are written.
template <int OWN> INLINE void put(u16* to, i64 stride, const float (&c)[D / 2], float factor, int first, int limit, u32 tile, int group) {
    int within = thread_now() & 127, lane = within & 31, g = lane >> 2, t = lane & 3, row = (within >> 5) * 16 + g;
    meet(group);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            asm volatile("st.shared.b32 [%0], %1;" :: "r"(tile + n / 8 * OWN * 128 + piece(row + h * 8, n % 8) + t * 4),
                "r"(both(c[n * 4 + h * 2] * factor, c[n * 4 + h * 2 + 1] * factor)) : "memory");
    meet(group);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        int at = i * 128 + within, row = at / (D / 8), nth = at % (D / 8);
        uint4 x = sixteen(tile + nth / 8 * OWN * 128 + piece(row, nth % 8));
        if (first + row < limit) *(uint4*)(to + (first + row) * stride + nth * 8) = x;
    }
}
// Sums each column over this many of the rows that `put` wrote. A warp handles 16 columns of a half, and a lane two of them in a
// quarter of the rows, so that the lanes of a warp read every bank once.
template <int OWN> INLINE void sum_rows(float* to, int rows, u32 tile) {
    int within = thread_now() & 127, lane = within & 31, pair = lane & 7, first = lane >> 3 << 1, column = (within >> 5) * 16 + pair * 2;
#pragma unroll
    for (int half = 0; half < D / 64; half++) {
        float low = 0, high = 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = (i >> 1) * 8 + first + (i & 1);
            u32 x;
            asm volatile("ld.shared.b32 %0, [%1];"
                : "=r"(x) : "r"(tile + half * OWN * 128 + piece(row, column >> 3) + (pair & 3) * 4) : "memory");
            if (row < rows) {
                low += widen(x, 0);
                high += widen(x, 1);
            }
        }
#pragma unroll
        for (int far = 8; far < 32; far *= 2) {
            low += __shfl_xor_sync(0xffffffffu, low, far);
            high += __shfl_xor_sync(0xffffffffu, high, far);
        }
        if (lane < 8) *(float2*)(to + half * 64 + column) = make_float2(low, high);
    }
}
