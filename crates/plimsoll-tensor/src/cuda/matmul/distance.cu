
// Distances between all pairs from two sets of vectors, and their gradients.
//
// Macros defined before this text:
//   T         the type of the elements
//   A         the type in which elements are subtracted for a gradient
//   BACKWARD  whether this is the gradient
//   NORM      0 number of different elements
//             1 sum of absolute differences
//             2 Euclidean
//             3 largest absolute difference
//             4 norm of any order p

struct Sets { i64 rows, columns, width; };

#if !BACKWARD
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* x, const T* y, i64 n, double p, Sets s) {
    i64 pair = (i64)blockIdx.x * 256 + threadIdx.x;
    if (pair >= n) return;
    i64 row = pair / s.columns;
    const T *a = x + row * s.width, *b = y + (row / s.rows * s.columns + pair % s.columns) * s.width;
    double sum = 0;
    for (i64 k = 0; k < s.width; k++) {
        double d = fabs(load<double>(a + k) - load<double>(b + k));
        if (NORM == 0) sum += d != 0;
        else if (NORM == 1) sum += d;
        else if (NORM == 2) sum += d * d;
        else if (NORM == 3) sum = d > sum || d != d ? d : sum;
        else sum += pow(d, p);
    }
    store(out + pair, NORM == 2 ? sqrt(sum) : NORM == 4 ? pow(sum, 1.0 / p) : sum);
}
#else
// The derivative of a distance with respect to one difference.
INLINE double slope(double d, double distance, double p) {
    double sign = d > 0 ? 1 : d < 0 ? -1 : d;
    if (NORM == 0) return 0;
    if (NORM == 1) return sign;
    // Rounded in the same way as the distance.
    if (NORM == 3) return value<double>(Into<T>::of(fabs(d))) == distance ? sign : 0;
    if (distance == 0) return 0;
    if (NORM == 2) return d / distance;
    return d == 0 ? 0 : sign * pow(fabs(d) / distance, p - 1);
}
// One thread handles each element of x. The pair (i, j) is at i * by_row + j * by_column in its
// batch.
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* grad, const T* x, const T* y, const T* distance, i64 n, double p, i64 by_row, i64 by_column, Sets s) {
    i64 element = (i64)blockIdx.x * 256 + threadIdx.x;
    if (element >= n) return;
    i64 row = element / s.width, k = element % s.width, batch = row / s.rows;
    A own = load<A>(x + element);
    double sum = 0;
    for (i64 j = 0; j < s.columns; j++) {
        i64 at = batch * s.rows * s.columns + row % s.rows * by_row + j * by_column;
        A d = own - load<A>(y + (batch * s.columns + j) * s.width + k);
        sum += load<double>(grad + at) * slope((double)d, load<double>(distance + at), p);
    }
    store(out + element, sum);
}
#endif
