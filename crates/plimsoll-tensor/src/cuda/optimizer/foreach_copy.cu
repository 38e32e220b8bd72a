// Copies of many tensors in one launch. A block finds its tensor from the index of its chunk.
//
// Defined before:
//   T     an integer type of the elements' size
//   MOST  the maximum number of tensors

#define CHUNK 16384

struct Table { i64 count; i64 first[MOST + 1]; i64 bytes[MOST]; char* to[MOST]; const char* from[MOST]; };

template <class V> __device__ void copy(char* to, const char* from, i64 begin, i64 end) {
#pragma unroll 4
    for (i64 i = begin + (i64)threadIdx.x * sizeof(V); i < end; i += 256 * sizeof(V)) *(V*)(to + i) = *(const V*)(from + i);
}

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Table table) {
    int row = row_of_block(table);
    i64 begin = ((i64)blockIdx.x - table.first[row]) * CHUNK, end = begin + CHUNK;
    if (end > table.bytes[row]) end = table.bytes[row];
    char* to = table.to[row];
    const char* from = table.from[row];
    if ((((u64)to | (u64)from | (u64)end) & 15) == 0) copy<Pack<u32, 4>>(to, from, begin, end);
    else copy<T>(to, from, begin, end);
}
