//! The arguments of a kernel that works on many tensors in one launch: [`table`].

/// A column of the table: a number for each row.
pub(super) type Column<'c, T> = &'c dyn Fn(&T) -> u64;

/// The maximum number of rows for which the kernel is compiled, so that few rows need few bytes of arguments. `most` is the largest
/// that its arguments have room for.
pub(super) fn room_for(rows: usize, most: usize) -> usize {
    [16, 64, 192].into_iter().find(|&room| room >= rows).unwrap_or(most)
}

/// The table of these rows: their number; the first block of each row, and the number of all blocks after the last; the columns.
/// Each list has `room` places. The first column is the length of a row, and a block does `chunk` of it. Returns the words and the
/// number of blocks. `table.cu` finds the row of a block.
pub(super) fn table<T>(rows: &[T], room: usize, chunk: u64, columns: &[Column<'_, T>]) -> (Vec<u64>, usize) {
    let mut words = vec![rows.len() as u64];
    let mut blocks = 0;
    for row in rows {
        words.push(blocks);
        blocks += columns[0](row).div_ceil(chunk);
    }
    words.resize(room + 2, blocks);
    for (nth, column) in columns.iter().enumerate() {
        words.extend(rows.iter().map(column));
        words.resize(2 + room + (nth + 1) * room, 0);
    }
    (words, usize::try_from(blocks).unwrap_or(usize::MAX))
}
