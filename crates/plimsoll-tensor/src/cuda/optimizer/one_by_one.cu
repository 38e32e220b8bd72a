
// One step of one parameter.
//
// Macros defined before this text:
//   A        the compute type
//   P, G, S  the types of parameter, gradient and state
//   RANDOM   whether the parameter and its state are rounded stochastically
//   RULE     0 RMSprop, 1 Adagrad, 2 Lion, 3 SGD, 4 Adam

struct Numbers { double v[12]; };

extern "C" __global__ void __launch_bounds__(256) kernel(P* p, const G* g, S* first, S* second, S* third, i64 n, Numbers numbers, Bits bits) {
#if RANDOM
#define PUT(nth, to, x) put(to, x, bits.of(i, nth))
#else
#define PUT(nth, to, x) store(to, x)
#endif
    (void)bits;
    const double* v = numbers.v;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        A x = load<A>(p + i), grad = load<A>(g + i);
#if RULE == 0
        // rate, alpha, 1 - alpha, eps, decay, sign, momentum, whether centred. State: squares[, buffer][, mean].
        grad = (A)v[5] * grad + (A)v[4] * x;
        A square = (A)v[1] * load<A>(first + i) + (A)v[2] * grad * grad, variance = square;
        PUT(1, first + i, square);
        if (v[7] != 0) {
            A mean = load<A>(third + i);
            mean = mean + (A)v[2] * (grad - mean);
            PUT(v[6] > 0 ? 3 : 2, third + i, mean);
            variance = square - mean * mean;
        }
        A step = grad / (sqrt(variance) + (A)v[3]);
        if (v[6] > 0) {
            step = (A)v[6] * load<A>(second + i) + step;
            PUT(2, second + i, step);
        }
        x = x - (A)v[0] * step;
#elif RULE == 1
        // rate, eps, decay, sign. State: sum.
        grad = (A)v[3] * grad + (A)v[2] * x;
        A sum = load<A>(first + i) + grad * grad;
        PUT(1, first + i, sum);
        x = x - (A)v[0] * (grad / (sqrt(sum) + (A)v[1]));
#elif RULE == 2
        // rate, beta1, 1 - beta1, beta2, 1 - beta2, decoupled decay factor. State: mean.
        A mean = load<A>(first + i), update = (A)v[1] * mean + (A)v[2] * grad;
        A sign = update > 0 ? (A)1 : update < 0 ? (A)-1 : (A)0;
        x = (A)v[5] * x - (A)v[0] * sign;
        PUT(1, first + i, (A)v[3] * mean + (A)v[4] * grad);
#elif RULE == 3
        // rate, decay, momentum, 1 - dampening, whether first, whether Nesterov, sign. State: momentum buffer, if any.
        grad = (A)v[6] * grad + (A)v[1] * x;
        if (v[2] != 0) {
            A buffer = v[4] != 0 ? grad : (A)v[2] * load<A>(first + i) + (A)v[3] * grad;
            PUT(1, first + i, buffer);
            grad = v[5] != 0 ? grad + (A)v[2] * buffer : buffer;
        }
        x = x - (A)v[0] * grad;
#else
        // step size, L2 penalty, decoupled decay factor, 1 - beta1, beta2, 1 - beta2, root of the second bias correction, eps,
        // sign, whether amsgrad.
        grad = (A)v[8] * grad + (A)v[1] * x;
        A mean = load<A>(first + i), square = load<A>(second + i);
        mean = mean + (A)v[3] * (grad - mean);
        square = (A)v[4] * square + (A)v[5] * grad * grad;
        PUT(1, first + i, mean);
        PUT(2, second + i, square);
        if (v[9] != 0) {
            // NaN stays NaN.
            A largest = load<A>(third + i);
            square = square > largest || square != square ? square : largest;
            PUT(3, third + i, square);
        }
        x = (A)v[2] * x - (A)v[0] * mean / (sqrt(square) / (A)v[6] + (A)v[7]);
#endif
        PUT(0, p + i, x);
    }
}
