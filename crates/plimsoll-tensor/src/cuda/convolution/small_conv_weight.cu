
// The gradient of the filters for small images in TF32. It is a product of [output channels, positions] and [positions, terms],
// where a term is a channel of the images and a tap. A block handles FILTERS channels of results and CHANNELS channels of images.
// It sums over UNITS units, each of which is ROWS rows of an image's results, and copies the next unit while it multiplies. As in
// small_conv.cu, images are not unfolded. The terms are divided among the warps, and the positions into SPLIT parts, whose sums
// are added in a fixed order.
//
// Macros defined before this text:
//   …                         as in small_conv.cu
//   BATCH, FILTERS, UNITS     images, and how a block works, see above
//   WIDE                      tiles of terms per warp
//   Y_LAST, Y_PLACE, Y_FILTER, Y_FLOATS, Y_SIDE
//                             for results, as X_… for images
//   PASS                      0 the partial sums of the blocks, 1 their total, in a fixed order

#define PATCH_W ((OUT_W - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define PATCH (((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1) * PATCH_W)
#define TAPS (KERNEL_H * KERNEL_W)
#define TERMS (CHANNELS * TAPS)
#define CHUNKS ((IN + CHANNELS - 1) / CHANNELS)
#define ROW_BLOCKS ((OUT_H + ROWS - 1) / ROWS)
#define PLACES (ROWS * OUT_W)
#define STEPS ((PLACES + 7) / 8)
#define TILES (FILTERS / 16)
#define ALL (OUT * CHUNKS * TERMS)

INLINE int channel_of(int term) { return TAPS_INNER ? term / TAPS : term % CHANNELS; }
INLINE int tap_of(int term) { return TAPS_INNER ? term % TAPS : term / CHANNELS; }

#if PASS == 0
// The strides of images and results along image, channel, row, column.
struct Shape { i64 x[4], y[4]; };

INLINE void copy_unit(float* xs, float* ys, const float* x, const float* y, int unit, int filter, int first, const Shape& s) {
    int row = unit % ROW_BLOCKS * ROWS;
    x += unit / ROW_BLOCKS * s.x[0];
    y += unit / ROW_BLOCKS * s.y[0];
    for (int i = (int)threadIdx.x; i < PATCH * CHANNELS / X_SIDE; i += THREADS) {
        int channel = X_LAST ? i % (CHANNELS / X_SIDE) * X_SIDE : i / PATCH, at = X_LAST ? i / (CHANNELS / X_SIDE) : i % PATCH;
        int h = row * STRIDE_H - PADDING_H + at / PATCH_W, v = at % PATCH_W - PADDING_W;
        bool there = h >= 0 && h < IN_H && v >= 0 && v < IN_W && first + channel < IN;
        const float* from = x + (first + channel) * (int)s.x[1] + h * (int)s.x[2] + v * (int)s.x[3];
        copy_later<X_SIDE>(xs + at * X_PLACE + channel * X_CHANNEL, there ? from : x, there);
    }
    // Positions beyond the last are zero. Contiguous positions or channels are copied together.
    const int across = (Y_LAST ? FILTERS : STEPS * 8) / Y_SIDE;
    for (int i = (int)threadIdx.x; i < STEPS * 8 * FILTERS / Y_SIDE; i += THREADS) {
        int n = Y_LAST ? i % across * Y_SIDE : i / across, place = Y_LAST ? i / across : i % across * Y_SIDE;
        bool there = place < PLACES && row + place / OUT_W < OUT_H && filter + n < OUT;
        const float* from = y + (filter + n) * (int)s.y[1] + (row + place / OUT_W) * (int)s.y[2] + place % OUT_W * (int)s.y[3];
        copy_later<Y_SIDE>(ys + place * Y_PLACE + n * Y_FILTER, there ? from : y, there);
    }
    end_copies();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(float* parts, const float* y, const float* x, Shape s) {
    extern __shared__ __align__(16) float shared[];
    const int stage = X_FLOATS + Y_FLOATS;
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int part = warp % SPLIT, wide = warp / SPLIT * WIDE;
    int chunk = (int)blockIdx.y % CHUNKS, filter = (int)blockIdx.y / CHUNKS * FILTERS;
    int begin = (int)blockIdx.x * UNITS, end = begin + UNITS < BATCH * ROW_BLOCKS ? begin + UNITS : BATCH * ROW_BLOCKS;
    copy_unit(shared, shared + X_FLOATS, x, y, begin, filter, chunk * CHANNELS, s);
    // The offset of each of the warp's terms from a position.
    int distance[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        int term = (wide + j) * 8 + g, tap = tap_of(term);
        distance[j] = term >= TERMS ? 0 : (tap / KERNEL_W * DILATION_H * PATCH_W + tap % KERNEL_W * DILATION_W) * X_PLACE + channel_of(term) * X_CHANNEL;
    }
    float sums[TILES][WIDE][4] = {};
    for (int unit = begin; unit < end; unit++) {
        const float* xs = shared + ((unit - begin) & 1) * stage;
        const float* ys = xs + X_FLOATS;
        if (unit + 1 < end) {
            float* next = shared + (~(unit - begin) & 1) * stage;
            copy_unit(next, next + X_FLOATS, x, y, unit + 1, filter, chunk * CHANNELS, s);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        if (wide * 8 < TERMS)
#pragma unroll 2
            for (int step = part; step < STEPS; step += SPLIT) {
                int place = step * 8 + t;
                bool first = PLACES % 8 == 0 || place < PLACES, second = PLACES % 8 == 0 || place + 4 < PLACES;
                int at = (place / OUT_W * STRIDE_H * PATCH_W + place % OUT_W * STRIDE_W) * X_PLACE;
                int later = ((place + 4) / OUT_W * STRIDE_H * PATCH_W + (place + 4) % OUT_W * STRIDE_W) * X_PLACE;
                u32 a[TILES][4], b[WIDE][2];
#pragma unroll
                for (int i = 0; i < TILES; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        a[i][k] = rounded(ys[(place + k / 2 * 4) * Y_PLACE + (i * 16 + k % 2 * 8 + g) * Y_FILTER]);
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    b[j][0] = first ? rounded(xs[at + distance[j]]) : 0;
                    b[j][1] = second ? rounded(xs[later + distance[j]]) : 0;
                }
#pragma unroll
                for (int j = 0; j < WIDE; j++)
#pragma unroll
                    for (int i = 0; i < TILES; i++) multiply(sums[i][j], a[i], b[j]);
            }
        __syncthreads();
    }
    const int numbers = TILES * WIDE * 4, threads = THREADS / SPLIT;
    float* own = shared + warp / SPLIT * 32 + lane;
    if (SPLIT > 1) {
        if (part != 0)
#pragma unroll
            for (int i = 0; i < numbers; i++) own[((part - 1) * numbers + i) * threads] = sums[i / 4 % TILES][i / 4 / TILES][i % 4];
        __syncthreads();
        if (part != 0) return;
    }
#pragma unroll
    for (int i = 0; i < numbers; i++) {
        float sum = sums[i / 4 % TILES][i / 4 / TILES][i % 4];
#pragma unroll
        for (int other = 1; other < SPLIT; other++) sum += own[((other - 1) * numbers + i) * threads];
        int n = filter + i / 4 % TILES * 16 + i % 4 / 2 * 8 + g, term = (wide + i / 4 / TILES) * 8 + t * 2 + i % 2;
        if (n < OUT && term < TERMS) parts[((i64)blockIdx.x * OUT + n) * (CHUNKS * TERMS) + chunk * TERMS + term] = sum;
    }
}
#else
// A block handles 32 elements. The weight's strides are along filter, channel, tap.
struct Weight { i64 w[3]; };
extern "C" __global__ void __launch_bounds__(256) kernel(float* w, const float* parts, i64 count, Weight s) {
    __shared__ float sums[8][32];
    int lane = (int)threadIdx.x & 31, row = (int)threadIdx.x >> 5, element = (int)blockIdx.x * 32 + lane;
    float sum = 0;
    if (element < ALL)
#pragma unroll 4
        for (i64 part = row; part < count; part += 8) sum += parts[part * ALL + element];
    sums[row][lane] = sum;
    __syncthreads();
    if (row != 0 || element >= ALL) return;
    for (int i = 1; i < 8; i++) sum += sums[i][lane];
    int n = element / (CHUNKS * TERMS), chunk = element / TERMS % CHUNKS, term = element % TERMS;
    int channel = chunk * CHANNELS + channel_of(term);
    if (channel < IN) w[n * (int)s.w[0] + channel * (int)s.w[1] + tap_of(term) * (int)s.w[2]] = sum;
}
#endif
