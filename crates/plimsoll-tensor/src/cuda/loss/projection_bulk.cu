
// Pass 1 of projection.cu for GPUs with bulk asynchronous copies to shared memory (Hopper and newer). A block processes one row
// after the other in shared memory, while the next row is loaded and the gradients of the previous one are stored.
//
// Macros defined before this text:
//   A  the compute type
//   T  the type of logits

#define VEC (16 / (int)sizeof(T))
#define THREADS 1024
// e to the power of x - off. For 16-bit floats, this takes one multiplication and one power-of-2 instruction.
INLINE float power(float x, float off) {
    if (sizeof(T) != 2) return exp(x - off);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, 1.44269504f, -1.44269504f * off)));
    return y;
}
INLINE double power(double x, double off) { return exp(x - off); }
INLINE float larger(float x, float y) { return fmaxf(x, y); }
INLINE double larger(double x, double y) { return fmax(x, y); }

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Starts to load a row; the barrier's phase completes when it has arrived.
INLINE void bring(void* to, const void* from, u32 bytes, u64* barrier) {
    u32 at = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at) : "memory");
}
INLINE void wait_for(u64* barrier, u32 phase) {
    u32 is_done = 0;
    while (!is_done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(is_done) : "r"(shared_address(barrier)), "r"(phase) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(
    T* logits, A* losses, const i64* target, const A* total, const T* weight, i64 classes, i64 stride, i64 ignored, double smoothing,
    i64 mean, i64 wanted, i64 rows
) {
    typedef Pack<T, VEC> Some;
    extern __shared__ __align__(128) unsigned char bytes[];
    __shared__ __align__(8) u64 arrived[2];
    u32 row_bytes = (u32)(stride * sizeof(T));
    int packs = (int)((classes + VEC - 1) / VEC), whole = (int)(classes / VEC);
    if (threadIdx.x == 0) {
        for (int b = 0; b < 2; b++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(arrived + b)) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) bring(bytes, logits + blockIdx.x * stride, row_bytes, arrived);
    u32 turn = 0;
    for (i64 own_row = blockIdx.x; own_row < rows; own_row += gridDim.x, turn++) {
        u32 here = turn & 1;
        Some* row = (Some*)(bytes + here * row_bytes);
        i64 to = target[own_row], next = own_row + gridDim.x;
        bool counts = to != ignored && to >= 0 && to < classes;
        wait_for(arrived + here, turn >> 1 & 1);
        A top = -(A)INFINITE;
        if (counts) {
#pragma unroll 4
            for (int p = threadIdx.x; p < whole; p += THREADS) {
                Some x = row[p];
#pragma unroll
                for (int k = 0; k < VEC; k++) top = larger(top, value<A>(x.v[k]));
            }
            for (int i = whole * VEC + (int)threadIdx.x; i < classes; i += THREADS) top = larger(top, load<A>((const T*)row + i));
        }
        A largest = block_max(top);
        // All threads are done with the previous row; once its gradients are stored, the next row overwrites it.
        if (threadIdx.x == 0 && next < rows) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            bring(bytes + (here ^ 1) * row_bytes, logits + next * stride, row_bytes, arrived + (here ^ 1));
        }
        if (!counts) {
            if (threadIdx.x == 0) losses[own_row] = 0;
            if (wanted) {
                Some zeros;
#pragma unroll
                for (int k = 0; k < VEC; k++) zeros.v[k] = Into<T>::of((A)0);
                for (int p = threadIdx.x; p < packs; p += THREADS) row[p] = zeros;
            }
        } else {
            A sum = 0, of_target = load<A>((const T*)row + to);
#pragma unroll 4
            for (int p = threadIdx.x; p < whole; p += THREADS) {
                Some x = row[p];
#pragma unroll
                for (int k = 0; k < VEC; k++) sum += power(value<A>(x.v[k]), largest);
            }
            for (int i = whole * VEC + (int)threadIdx.x; i < classes; i += THREADS) sum += power(load<A>((const T*)row + i), largest);
            A logarithm = log(block_sum(sum)) + largest;
            // The coefficients of the target and of every class, and their sum.
            A own = weight ? load<A>(weight + to) * (A)(1 - smoothing) : (A)(1 - smoothing), level = own, base = 0;
            A spread = (A)(smoothing / (double)classes);
            if (smoothing != 0) {
                A weights = 0;
                for (i64 i = threadIdx.x; i < classes; i += THREADS) {
                    A w = weight ? load<A>(weight + i) : (A)1;
                    weights += w;
                    base += w * (logarithm - load<A>((const T*)row + i));
                }
                level += spread * block_sum(weights);
                base = spread * block_sum(base);
            }
            if (threadIdx.x == 0) losses[own_row] = base + own * (logarithm - of_target);
            if (wanted) {
                A scale = mean ? 1 / *total : (A)1, factor = level * scale;
#pragma unroll 4
                for (int p = threadIdx.x; p < packs; p += THREADS) {
                    Some x = row[p];
                    A y[VEC];
#pragma unroll
                    for (int k = 0; k < VEC; k++) y[k] = power(value<A>(x.v[k]), logarithm) * factor;
                    if (smoothing != 0)
#pragma unroll
                        for (int k = 0; k < VEC; k++)
                            y[k] -= spread * scale * (weight && p * (i64)VEC + k < classes ? load<A>(weight + p * (i64)VEC + k) : (A)1);
#pragma unroll
                    for (int k = 0; k < VEC; k++) x.v[k] = Into<T>::of(y[k]);
                    row[p] = x;
                }
                // The target's part is added by the thread that wrote the rest.
                if ((int)(to / VEC) % THREADS == (int)threadIdx.x) {
                    A y = power(of_target, logarithm) * factor - own * scale;
                    if (smoothing != 0) y -= spread * scale * (weight ? load<A>(weight + to) : (A)1);
                    store((T*)row + to, y);
                }
            }
        }
        if (wanted) {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            if (threadIdx.x == 0) {
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                    :: "l"(__cvta_generic_to_global(logits + own_row * stride)), "r"(shared_address(row)), "r"(row_bytes) : "memory");
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
