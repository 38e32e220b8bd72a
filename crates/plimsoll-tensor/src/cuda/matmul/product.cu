
// A matrix product with any strides and types, in tiles of 16 by 16. Used if cuBLASLt does not support the strides or the type.
//
// Macros defined before this text:
//   A      the accumulator type
//   T, TO  the types of the operands and of the result

struct Shape { i64 m, n, k; i64 a[3], b[3], c[3]; };

extern "C" __global__ void __launch_bounds__(256) kernel(TO* c, const T* a, const T* b, const TO* bias, double alpha, double beta, Shape s) {
    __shared__ A left[16][17], right[16][17];
    int x = threadIdx.x & 15, y = threadIdx.x >> 4;
    i64 row = (i64)blockIdx.x * 16 + y, col = (i64)blockIdx.y * 16 + x;
    a += (i64)blockIdx.z * s.a[0]; b += (i64)blockIdx.z * s.b[0]; c += (i64)blockIdx.z * s.c[0];
    A sum = 0;
    for (i64 first = 0; first < s.k; first += 16) {
        left[y][x] = row < s.m && first + x < s.k ? load<A>(a + row * s.a[1] + (first + x) * s.a[2]) : (A)0;
        right[y][x] = col < s.n && first + y < s.k ? load<A>(b + (first + y) * s.b[1] + col * s.b[2]) : (A)0;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row >= s.m || col >= s.n) return;
    TO* to = c + row * s.c[1] + col * s.c[2];
    if (alpha != 1.0) sum = As<A>::of(sum * As<A>::of(alpha));
    if (bias) sum += load<A>(bias + col);
    if (beta != 0.0) sum += As<A>::of(beta) * load<A>(to);
    store(to, sum);
}
