
// Copies images (or filters) to the channels-last layout and adds channels of zeros. A thread writes V channels of one pixel.
//
// Macros defined before this text:
//   T  the type of the elements
//   V  channels per thread

// The sizes of batch, depth, height and width; the strides of batch, channel, depth, height and width.
struct Shape { i64 channels, padded, size[4], step[5]; };

extern "C" __global__ void __launch_bounds__(256) kernel(T* to, const T* from, i64 n, Shape s) {
    i64 number = (i64)blockIdx.x * 256 + threadIdx.x;
    if (number >= n) return;
    i64 groups = s.padded / V, at = number / groups, first = (number - at * groups) * V;
    const T* place = from;
#pragma unroll
    for (int d = 3; d >= 0; d--) {
        i64 above = at / s.size[d];
        place += (at - above * s.size[d]) * s.step[d == 0 ? 0 : d + 1];
        at = above;
    }
    Pack<T, V> out;
#pragma unroll
    for (int k = 0; k < V; k++) out.v[k] = first + k < s.channels ? place[(first + k) * s.step[1]] : T();
    *(Pack<T, V>*)(to + number * V) = out;
}
