
// The gradient of padding: each element sums the gradients of its copies in the output, in order. `step` holds the gradient's strides; the
// kinds are as in `remap.cu`.
//
// Macros defined before this text:
//   A     the accumulator type
//   T     the type of the elements
//   RANK  dimensions

struct Space { i64 size[RANK], out[RANK], step[RANK], before[RANK], kind[RANK]; };

// The n-th position along an output's dimension whose source is `i`; -1 after the last.
INLINE i64 source(const Space& s, int d, i64 i, i64 n) {
    i64 size = s.size[d], before = s.before[d], after = s.out[d] - size - before, found = 0;
    if (s.kind[d] == 0) return n == 0 ? i + before : -1;
    if (s.kind[d] == 4) {
        i64 first = i == 0 ? 0 : i + before, end = i == size - 1 ? s.out[d] : i + before + 1;
        return first + n < end ? first + n : -1;
    }
    i64 places[3];
    if (s.kind[d] == 3) {
        if (i > 0 && i <= before) places[found++] = before - i;
        places[found++] = before + i;
        if (i < size - 1 && size - 1 - i <= after) places[found++] = before + 2 * (size - 1) - i;
    } else {
        if (i >= size - before) places[found++] = before + i - size;
        places[found++] = before + i;
        if (i < after) places[found++] = before + i + size;
    }
    return n < found ? places[n] : -1;
}

extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* grad, i64 n, Space s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    i64 own[RANK], nth[RANK], rest = number;
#pragma unroll
    for (int d = RANK - 1; d >= 0; d--) { own[d] = rest % s.size[d]; rest /= s.size[d]; nth[d] = 0; }
    A sum = 0;
    while (true) {
        i64 at = 0;
        for (int d = 0; d < RANK; d++) at += source(s, d, own[d], nth[d]) * s.step[d];
        sum += load<A>(grad + at);
        int d = RANK - 1;
        while (d >= 0 && source(s, d, own[d], ++nth[d]) < 0) nth[d--] = 0;
        if (d < 0) break;
    }
    store(to + number, sum);
}
