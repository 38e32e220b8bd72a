
// The row of a table that this block works on: the last whose first block is not after it.
template <class Table> INLINE int row_of_block(const Table& table) {
    int low = 0, high = (int)table.count - 1;
    while (low < high) {
        int middle = (low + high + 1) >> 1;
        if (table.first[middle] <= (i64)blockIdx.x) low = middle; else high = middle - 1;
    }
    return low;
}
