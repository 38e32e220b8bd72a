
// Cross entropy of logits [outer, classes, inner] against classes or probabilities, and the negative log likelihood of
// log-probabilities. A position's loss is the sum over its classes of b (log-sum - x), with coefficients b that depend on target,
// weights and smoothing.
//
// Macros defined before this text:
//   A              the compute type
//   T              the type of logits
//   G              the type of the loss and of its gradient
//   TARGET         the type of targets
//   PROBABILITIES  whether targets are probabilities
//   WIDE           whether a block (else a thread) handles a position
//   REDUCTION      0 none, 1 mean, 2 sum
//   LOSS           the type of the losses that are written: G, or A if they are summed
//   PASS           0 the divisor of a mean
//                  1 the losses
//                  2 the total loss
//                  3 the gradient
//                  4 the coefficients
//                  5 the likelihoods
//                  6 their gradient

struct Loss { i64 positions, classes, inner, ignored; double smoothing; };

// The parts of a coefficient: one for every class, and one for the target's class.
struct Position {
    i64 first, inner, target;
    bool counts;
    A spread, own;
    const T* weight;
    const TARGET* targets;
    INLINE A scale(i64 c) const { return weight ? load<A>(weight + c) : (A)1; }
    INLINE A base(i64 c, A smoothing) const {
#if PROBABILITIES
        return scale(c) * (load<A>(targets + first + c * inner) * (1 - smoothing) + spread);
#else
        (void)smoothing;
        return spread * scale(c);
#endif
    }
};
INLINE Position position(const Loss& l, i64 at, const TARGET* targets, const T* weight) {
    Position p;
    p.first = at / l.inner * l.classes * l.inner + at % l.inner;
    p.inner = l.inner;
    p.weight = weight;
    p.targets = targets;
    p.spread = (A)(l.smoothing / (double)l.classes);
#if PROBABILITIES
    p.target = -1;
    p.counts = true;
    p.own = 0;
#else
    p.target = load<i64>(targets + at);
    p.counts = p.target != l.ignored && p.target >= 0 && p.target < l.classes;
    p.own = p.counts ? (A)(1 - l.smoothing) * p.scale(p.target) : (A)0;
#endif
    return p;
}
#define HAS_BASE (PROBABILITIES || l.smoothing != 0)

#if WIDE
#define FIRST threadIdx.x
#define STEP blockDim.x
#define AT ((i64)blockIdx.x)
INLINE A total(A x) { return block_sum(x); }
INLINE A most(A x) { return block_max(x); }
#define WRITES (threadIdx.x == 0)
#else
#define FIRST 0
#define STEP 1
#define AT ((i64)blockIdx.x * blockDim.x + threadIdx.x)
INLINE A total(A x) { return x; }
INLINE A most(A x) { return x; }
#define WRITES true
#endif

#if PASS == 0
extern "C" __global__ void __launch_bounds__(512) kernel(A* out, const TARGET* targets, const T* weight, Loss l, Faults faults) {
    A sum = 0;
    for (i64 i = threadIdx.x; i < l.positions; i += 512) {
#if PROBABILITIES
        sum += 1;
#else
        i64 target = load<i64>(targets + i);
        if (target == l.ignored) continue;
        if (target < 0 || target >= l.classes) { report(faults, target, i, l.classes); continue; }
        sum += weight ? load<A>(weight + target) : (A)1;
#endif
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = sum;
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(512) kernel(LOSS* losses, A* largest, A* logs, const T* x, const TARGET* targets, const T* weight, Loss l) {
    i64 at = AT;
    if (at >= l.positions) return;
    Position p = position(l, at, targets, weight);
    const T* row = x + p.first;
    A best = -(A)INFINITE, sum = 0, base = 0;
    for (i64 c = FIRST; c < l.classes; c += STEP) { A v = load<A>(row + c * l.inner); best = v > best ? v : best; }
    best = most(best);
    for (i64 c = FIRST; c < l.classes; c += STEP) sum += exp(load<A>(row + c * l.inner) - best);
    A logarithm = log(total(sum));
    if (p.counts && HAS_BASE)
        for (i64 c = FIRST; c < l.classes; c += STEP) base += p.base(c, (A)l.smoothing) * (logarithm - (load<A>(row + c * l.inner) - best));
    base = total(base);
    if (!WRITES) return;
    if (p.counts && p.target >= 0) base += p.own * (logarithm - (load<A>(row + p.target * l.inner) - best));
    largest[at] = best;
    logs[at] = logarithm;
    store(losses + at, p.counts ? base : (A)0);
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(512) kernel(G* out, const A* losses, const A* divisor, Loss l) {
    A sum = 0;
    for (i64 i = threadIdx.x; i < l.positions; i += 512) sum += losses[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, REDUCTION == 1 ? sum / *divisor : sum);
}
#elif PASS == 3
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const G* grad, const T* x, const TARGET* targets, const A* largest, const A* logs, const A* divisor, const T* weight, Loss l) {
    i64 at = AT;
    if (at >= l.positions) return;
    Position p = position(l, at, targets, weight);
    if (!p.counts) {
        for (i64 c = FIRST; c < l.classes; c += STEP) store(out + p.first + c * l.inner, (A)0);
        return;
    }
    A scale = load<A>(grad + (REDUCTION == 0 ? at : 0)), level = 0;
    if (REDUCTION == 1) scale = scale / *divisor;
    if (HAS_BASE) for (i64 c = FIRST; c < l.classes; c += STEP) level += p.base(c, (A)l.smoothing);
    level = (total(level) + p.own) * scale;
    A off = largest[at] + logs[at];
    for (i64 c = FIRST; c < l.classes; c += STEP) {
        A y = exp(load<A>(x + p.first + c * l.inner) - off) * level;
        if (HAS_BASE) y -= p.base(c, (A)l.smoothing) * scale;
        if (c == p.target) y -= p.own * scale;
        store(out + p.first + c * l.inner, y);
    }
}
#elif PASS == 4
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const TARGET* targets, const T* weight, Loss l) {
    i64 at = AT;
    if (at >= l.positions) return;
    Position p = position(l, at, targets, weight);
    for (i64 c = FIRST; c < l.classes; c += STEP)
        store(out + p.first + c * l.inner, p.counts ? p.base(c, (A)l.smoothing) + (c == p.target ? p.own : (A)0) : (A)0);
}
#elif PASS == 5
// One block; writes the losses of all positions, or their sum.
extern "C" __global__ void __launch_bounds__(512) kernel(G* out, const T* x, const TARGET* targets, const T* weight, const A* divisor, Loss l) {
    A sum = 0;
    for (i64 at = threadIdx.x; at < l.positions; at += 512) {
        Position p = position(l, at, targets, weight);
        A loss = p.counts ? -(p.own * load<A>(x + p.first + p.target * l.inner)) : (A)0;
        sum += loss;
        if (REDUCTION == 0) store(out + at, loss);
    }
    sum = block_sum(sum);
    if (REDUCTION != 0 && threadIdx.x == 0) store(out, REDUCTION == 1 ? sum / *divisor : sum);
}
#else
// Writes into zeros.
extern "C" __global__ void __launch_bounds__(512) kernel(T* out, const G* grad, const TARGET* targets, const A* divisor, const T* weight, Loss l) {
    i64 at = (i64)blockIdx.x * 512 + threadIdx.x;
    if (at >= l.positions) return;
    Position p = position(l, at, targets, weight);
    if (!p.counts) return;
    A scale = load<A>(grad + (REDUCTION == 0 ? at : 0));
    if (REDUCTION == 1) scale = scale / *divisor;
    store(out + p.first + p.target * l.inner, -(p.own * scale));
}
#endif
