
// Rotary embedding: rotates pairs of a row's elements by an angle.
//
// Macros defined before this text:
//   A       the compute type
//   T       the type of the elements
//   C       the type of the tables
//   RANK    dimensions of rows
//   HALVES  whether a pair is one element of each half of the row, or two neighbours

struct Space { i64 size[RANK], to[RANK], from[RANK]; };
extern "C" __global__ void __launch_bounds__(256) kernel(T* out, const T* x, const C* cos, const C* sin, i64 rows, i64 cols, i64 half, i64 positions, double sign, Space s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x, each = cols - half;
    if (number >= rows * each) return;
    i64 row = number / each, i = number % each;
    T* to = out + place<RANK>(row, s.size, s.to);
    const T* from = x + place<RANK>(row, s.size, s.from);
    if (i >= half) { to[half + i] = from[half + i]; return; }
    i64 at = row % positions * half + i, first = HALVES ? i : 2 * i, second = HALVES ? half + i : 2 * i + 1;
    A c = load<A>(cos + at), d = (A)sign * load<A>(sin + at), a = load<A>(from + first), b = load<A>(from + second);
    store(to + first, a * c - b * d);
    store(to + second, b * c + a * d);
}
