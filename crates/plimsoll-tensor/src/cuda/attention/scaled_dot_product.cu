
// The work on rows of scores between the matrix products. A block handles one row, for one head and one query.
//
// Macros defined before this text:
//   A         the type of scores
//   T         the type of the operands
//   MASK      0 none, 1 added to scores, 2 keeps scores where true
//   M         the type of the mask
//   BACKWARD  whether this is the gradient

struct Rows {
    i64 heads, queries, keys;
    i64 batch, first_head, first_query, count;
    i64 causal, mask[4];
    u64 stream, seed;
    u32 threshold; float factor;
};

// A score after scaling and masking, as the input of softmax.
INLINE A score(const A* row, i64 k, A scale, const M* mask, i64 step, bool is_causal, i64 query) {
    if (is_causal && k > query) return -(A)INFINITE;
    A x = load<A>(row + k) * scale;
#if MASK == 1
    x += load<A>(mask + k * step);
#elif MASK == 2
    if (!load<i64>(mask + k * step)) return -(A)INFINITE;
#endif
    return x;
}

INLINE A kept(const Rows& r, u64 row, i64 k) {
    if (r.threshold == 0) return 1;
    u64 element = row * ((r.keys + 63) / 64 * 64) + k;
    return random_word(element, r.stream, r.seed) >= r.threshold ? (A)r.factor : (A)0;
}

#define FIND_ROW \
    i64 head = r.first_head + (i64)blockIdx.x / r.count, query = r.first_query + (i64)blockIdx.x % r.count; \
    u64 row = (u64)((r.batch * r.heads + head) * r.queries + query); \
    const M* hidden = MASK ? mask + r.batch * r.mask[0] + head * r.mask[1] + query * r.mask[2] : mask; \
    const A* scores = s + (i64)blockIdx.x * r.keys; \
    bool is_causal = r.causal != 0;

#if !BACKWARD
extern "C" __global__ void kernel(T* p, const A* s, A* log_sums, const M* mask, double scale, Rows r) {
    FIND_ROW
    A largest = -(A)INFINITE;
    for (i64 k = threadIdx.x; k < r.keys; k += blockDim.x)
        largest = Larger::of(largest, score(scores, k, (A)scale, hidden, r.mask[3], is_causal, query));
    largest = block_max(largest);
    A sum = 0;
    if (largest != -(A)INFINITE)
        for (i64 k = threadIdx.x; k < r.keys; k += blockDim.x)
            sum += exp(score(scores, k, (A)scale, hidden, r.mask[3], is_causal, query) - largest);
    sum = block_sum(sum);
    // A row that attends to no key becomes 0.
    A factor = sum > 0 || sum != sum ? 1 / sum : (A)0;
    if (largest == -(A)INFINITE) largest = 0;
    for (i64 k = threadIdx.x; k < r.keys; k += blockDim.x) {
        A x = exp(score(scores, k, (A)scale, hidden, r.mask[3], is_causal, query) - largest) * factor;
        store(p + (i64)blockIdx.x * r.keys + k, x * kept(r, row, k));
    }
    if (threadIdx.x == 0) log_sums[row] = largest + log(sum);
}
#else
// Computes the probabilities again, and the gradients of scores from those of probabilities. `o` and `g` are the output and its
// gradient.
struct Strides { i64 o[3], g[3], dim; };
extern "C" __global__ void kernel(
    T* p, T* ds, const A* s, const A* dp, const A* log_sums, const M* mask, const T* o, const T* g, double scale, Strides at, Rows r
) {
    FIND_ROW
    const T* out = o + r.batch * at.o[0] + head * at.o[1] + query * at.o[2];
    const T* grad = g + r.batch * at.g[0] + head * at.g[1] + query * at.g[2];
    A along = 0;
    for (i64 i = threadIdx.x; i < at.dim; i += blockDim.x) along += load<A>(out + i) * load<A>(grad + i);
    along = block_sum(along);
    A log_sum = log_sums[row];
    bool sees = log_sum > -(A)INFINITE;
    for (i64 k = threadIdx.x; k < r.keys; k += blockDim.x) {
        i64 to = (i64)blockIdx.x * r.keys + k;
        A x = sees ? exp(score(scores, k, (A)scale, hidden, r.mask[3], is_causal, query) - log_sum) : (A)0;
        A factor = kept(r, row, k), slope = load<A>(dp + to);
        store(p + to, x * factor);
        store(ds + to, x * (factor * slope - along) * (A)scale);
    }
}
#endif
