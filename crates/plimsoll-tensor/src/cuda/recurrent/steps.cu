
// The work of one step of a recurrent layer, between its matrix products. `row` is the distance between rows of the batch, in
// rows; `before` has the previous hidden and cell states.
//
// Macros defined before this text:
//   A          the compute type
//   T          the type of the elements
//   CELL       0 ReLU, 1 tanh, 2 LSTM, 3 GRU
//   PASS       0 forward, 1 backward, 2 the gradient of the projected output
//   PROJECTED  whether an LSTM projects its output: `y` is then one matrix of the outputs before projection, and so is `dh`

INLINE A sigmoid(A x) { return 1 / (1 + exp(-x)); }
INLINE A slope(A x) { return x * (1 - x); }
#define GATES (CELL == 2 ? 4 : CELL == 3 ? 3 : 1)

#if PASS == 0
extern "C" __global__ void __launch_bounds__(256) kernel(T* y, T* gates, T* extra, const A* h, const T* bias, const T* past_h, const T* past_c, i64 past_row, i64 row, i64 batch, i64 hidden) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= batch * hidden) return;
    i64 b = i / hidden, j = i % hidden, at = b * row * hidden + j, width = GATES * hidden;
    const A* of_h = h + b * width;
    A product[GATES];
    for (int k = 0; k < GATES; k++) product[k] = of_h[k * hidden + j] + (bias ? load<A>(bias + k * hidden + j) : (A)0);
#if CELL <= 1
    A x = load<A>(y + at) + product[0];
    store(y + at, CELL == 1 ? (A)tanh(x) : (x > 0 ? x : x * 0));
#else
    T* g = gates + b * row * width + j;
#if CELL == 2
    A in = sigmoid(load<A>(g) + product[0]), forget = sigmoid(load<A>(g + hidden) + product[1]);
    A cell = tanh(load<A>(g + 2 * hidden) + product[2]), out = sigmoid(load<A>(g + 3 * hidden) + product[3]);
    A c = forget * load<A>(past_c + b * past_row * hidden + j) + in * cell;
    store(extra + at, c);
    store(y + (PROJECTED ? i : at), out * tanh(c));
    store(g, in); store(g + hidden, forget); store(g + 2 * hidden, cell); store(g + 3 * hidden, out);
#else
    A past = load<A>(past_h + b * past_row * hidden + j);
    A r = sigmoid(load<A>(g) + product[0]), z = sigmoid(load<A>(g + hidden) + product[1]);
    A n = tanh(load<A>(g + 2 * hidden) + r * product[2]);
    store(extra + at, product[2]);
    store(y + at, n + z * (past - n));
    store(g, r); store(g + hidden, z); store(g + 2 * hidden, n);
#endif
#endif
}
#elif PASS == 1
extern "C" __global__ void __launch_bounds__(256) kernel(T* to_gates, T* dh, T* dc, T* to_extra, const T* dy, const T* y, const T* gates, const T* extra, const T* past_h, const T* past_c, i64 past_row, i64 row, i64 batch, i64 hidden) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= batch * hidden) return;
    i64 b = i / hidden, j = i % hidden, at = b * row * hidden + j, width = GATES * hidden;
    T* to = to_gates + b * row * width + j;
#if PROJECTED
    A d = load<A>(dh + i);
#else
    A d = load<A>(dh + i) + load<A>(dy + at);
#endif
#if CELL == 0
    store(to, load<A>(y + at) > 0 ? d : (A)0);
#elif CELL == 1
    A v = load<A>(y + at);
    store(to, d * (1 - v * v));
#elif CELL == 2
    const T* g = gates + b * row * width + j;
    A in = load<A>(g), forget = load<A>(g + hidden), cell = load<A>(g + 2 * hidden), out = load<A>(g + 3 * hidden);
    A c = tanh(load<A>(extra + at)), to_c = load<A>(dc + i) + d * out * (1 - c * c);
    store(dc + i, to_c * forget);
    store(to, to_c * cell * slope(in));
    store(to + hidden, to_c * load<A>(past_c + b * past_row * hidden + j) * slope(forget));
    store(to + 2 * hidden, to_c * in * (1 - cell * cell));
    store(to + 3 * hidden, d * c * slope(out));
#else
    const T* g = gates + b * row * width + j;
    A r = load<A>(g), z = load<A>(g + hidden), n = load<A>(g + 2 * hidden);
    A to_n = d * (1 - z) * (1 - n * n);
    store(to, to_n * load<A>(extra + at) * slope(r));
    store(to + hidden, d * (load<A>(past_h + b * past_row * hidden + j) - n) * slope(z));
    store(to + 2 * hidden, to_n);
    store(to_extra + at, to_n * r);
    store(dh + i, d * z);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(256) kernel(T* kept, const T* dh, const T* dy, i64 row, i64 batch, i64 state) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= batch * state) return;
    i64 at = i / state * row * state + i % state;
    store(kept + at, load<A>(dh + i) + load<A>(dy + at));
}
#endif
