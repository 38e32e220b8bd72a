
// Convolution of small images in TF32: forward, or the gradient of images, which is a convolution with flipped filters. It is a
// product of [positions, terms] and [terms, output channels], where a term is a channel and a tap. A block computes ROWS rows of
// an image's results and COLUMNS of their channels. It loops over the channels of the images in chunks of CHANNELS, and copies
// the next chunk while it multiplies. Images are not unfolded: the patch that the block needs is in shared memory with zeros
// around it, and a term is an offset in it. The positions are divided among the warps, and the terms into SPLIT parts, whose sums
// are added in a fixed order at the end.
//
// Macros defined before this text:
//   IN, OUT                   channels of images and results
//   IN_H, IN_W, OUT_H, OUT_W  height and width of images and results
//   KERNEL_…, STRIDE_…, PADDING_…, DILATION_…
//                             for the windows, along H and W
//   FLIP                      whether filters are flipped
//   THREADS, ROWS, COLUMNS, CHANNELS, SPLIT
//                             how a block works, see above
//   TAPS_INNER                whether the terms of a channel are contiguous
//   X_LAST                    whether images are channels-last
//   X_PLACE, X_CHANNEL, W_COLUMN, W_TERM, W_SKIP
//                             distances in shared memory, the last from a channel's last term to the next
//                             channel's first
//   X_FLOATS, W_FLOATS        floats of a chunk in shared memory
//   X_SIDE, W_SIDE            numbers per copy
//   RUN, RUNS, COUNT          filters are stored in runs of RUN numbers, with RUNS runs for each of COUNT filters
//                             or channels
//   FROM_…, TO_…              the distances between them, in memory and in shared memory

#define PATCH_W ((OUT_W - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define PATCH (((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1) * PATCH_W)
#define TAPS (KERNEL_H * KERNEL_W)
#define TERMS (CHANNELS * TAPS)
#define STEPS ((TERMS + 7) / 8)
#define CHUNKS ((IN + CHANNELS - 1) / CHANNELS)
#define ROW_BLOCKS ((OUT_H + ROWS - 1) / ROWS)
#define TILES (COLUMNS / 8)

// The strides of images and results along image, channel, row, column.
struct Shape { i64 x[4], y[4]; };

// The offset of a term in the patch, relative to a position, and in the filters.
INLINE int distance_of(int term) {
    int channel = TAPS_INNER ? term / TAPS : term % CHANNELS, tap = TAPS_INNER ? term % TAPS : term / CHANNELS;
    if (FLIP) tap = TAPS - 1 - tap;
    return (tap / KERNEL_W * DILATION_H * PATCH_W + tap % KERNEL_W * DILATION_W) * X_PLACE + channel * X_CHANNEL;
}
INLINE int filter_of(int term) { return term * W_TERM + (W_SKIP ? term / TAPS * W_SKIP : 0); }
INLINE int start_of(int place) { return (place / OUT_W * STRIDE_H * PATCH_W + place % OUT_W * STRIDE_W) * X_PLACE; }

INLINE void copy_chunk(float* xs, float* ws, const float* x, const float* w, int row, int column, int chunk, const Shape& s) {
    int first = chunk * CHANNELS;
    for (int i = (int)threadIdx.x; i < PATCH * CHANNELS / X_SIDE; i += THREADS) {
        int channel = X_LAST ? i % (CHANNELS / X_SIDE) * X_SIDE : i / PATCH, at = X_LAST ? i / (CHANNELS / X_SIDE) : i % PATCH;
        int h = row * STRIDE_H - PADDING_H + at / PATCH_W, v = at % PATCH_W - PADDING_W;
        bool there = h >= 0 && h < IN_H && v >= 0 && v < IN_W && first + channel < IN;
        const float* from = x + (first + channel) * (int)s.x[1] + h * (int)s.x[2] + v * (int)s.x[3];
        copy_later<X_SIDE>(xs + at * X_PLACE + channel * X_CHANNEL, there ? from : x, there);
    }
    // Runs extend over the channels of a filter or, if filters are flipped, over the filters.
    int each = TAPS_INNER ? TAPS : 1, outer = FLIP ? first : column, inner = (FLIP ? column : first) * each;
    int outer_end = FLIP ? IN : OUT, inner_end = (FLIP ? OUT : IN) * each;
    for (int i = (int)threadIdx.x; i < COUNT * RUNS * RUN / W_SIDE; i += THREADS) {
        int r = i % (RUN / W_SIDE) * W_SIDE, run = i / (RUN / W_SIDE) % RUNS, n = i / (RUN / W_SIDE * RUNS);
        bool there = outer + n < outer_end && inner + r < inner_end;
        const float* from = w + (outer + n) * FROM_COUNT + run * FROM_RUN + inner + r;
        copy_later<W_SIDE>(ws + n * TO_COUNT + run * TO_RUN + r, there ? from : w, there);
    }
    end_copies();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(float* y, const float* x, const float* w, const float* bias, Shape s) {
    extern __shared__ __align__(16) float shared[];
    const int stage = X_FLOATS + W_FLOATS;
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int part = warp % SPLIT, tile = warp / SPLIT * 2;
    int row = (int)(blockIdx.x % ROW_BLOCKS) * ROWS, image = (int)(blockIdx.x / ROW_BLOCKS), column = (int)blockIdx.y * COLUMNS;
    int rows = OUT_H - row < ROWS ? OUT_H - row : ROWS;
    x += image * s.x[0];
    copy_chunk(shared, shared + X_FLOATS, x, w, row, column, 0, s);
    int start[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int place = (tile + i / 2) * 16 + i % 2 * 8 + g;
        start[i / 2][i % 2] = place < rows * OUT_W ? start_of(place) : 0;
    }
    float sums[2][TILES][4] = {};
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const float* xs = shared + (chunk & 1) * stage;
        const float* ws = xs + X_FLOATS;
        if (chunk + 1 < CHUNKS) {
            float* next = shared + (~chunk & 1) * stage;
            copy_chunk(next, next + X_FLOATS, x, w, row, column, chunk + 1, s);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        if (tile * 16 < rows * OUT_W) {
#pragma unroll 2
            for (int step = part; step < STEPS; step += SPLIT) {
                int term = step * 8 + t;
                bool first = TERMS % 8 == 0 || term < TERMS, second = TERMS % 8 == 0 || term + 4 < TERMS;
                int at = first ? distance_of(term) : 0, later = second ? distance_of(term + 4) : 0;
                int from = first ? filter_of(term) : 0, from_later = second ? filter_of(term + 4) : 0;
                u32 a[2][4], b[TILES][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    a[i][0] = first ? rounded(xs[start[i][0] + at]) : 0, a[i][1] = first ? rounded(xs[start[i][1] + at]) : 0;
                    a[i][2] = second ? rounded(xs[start[i][0] + later]) : 0, a[i][3] = second ? rounded(xs[start[i][1] + later]) : 0;
                }
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    b[j][0] = first ? rounded(ws[(j * 8 + g) * W_COLUMN + from]) : 0;
                    b[j][1] = second ? rounded(ws[(j * 8 + g) * W_COLUMN + from_later]) : 0;
                }
#pragma unroll
                for (int j = 0; j < TILES; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++) multiply(sums[i][j], a[i], b[j]);
            }
        }
        __syncthreads();
    }
    // Adds the partial sums over the terms, in order.
    const int numbers = TILES * 8, threads = THREADS / SPLIT;
    float* own = shared + warp / SPLIT * 32 + lane;
    if (SPLIT > 1) {
        if (part != 0)
#pragma unroll
            for (int i = 0; i < numbers; i++) own[((part - 1) * numbers + i) * threads] = sums[i / 4 % 2][i / 8][i % 4];
        __syncthreads();
        if (part != 0) return;
    }
#pragma unroll
    for (int i = 0; i < numbers; i++) {
        float sum = sums[i / 4 % 2][i / 8][i % 4];
#pragma unroll
        for (int other = 1; other < SPLIT; other++) sum += own[((other - 1) * numbers + i) * threads];
        int place = (tile + i / 4 % 2) * 16 + i % 4 / 2 * 8 + g, n = column + i / 8 * 8 + t * 2 + i % 2;
        if (place >= rows * OUT_W || n >= OUT) continue;
        if (bias) sum += bias[n];
        y[image * s.y[0] + n * (int)s.y[1] + (row + place / OUT_W) * (int)s.y[2] + place % OUT_W * (int)s.y[3]] = sum;
    }
}
