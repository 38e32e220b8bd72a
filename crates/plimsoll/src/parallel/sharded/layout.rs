//! The layout of a unit's parameters in its flat buffer: [`Layout`].
//!
//! The buffer consists of parts of equal length, one for each rank. The boundaries between parts fall between rows of
//! parameters, so each rank has a range of complete rows of each parameter, which may be empty. Each parameter begins
//! at a multiple of 512 bytes, as it would in its own allocation, so that products use the same algorithms.

use std::ops::Range;

/// The alignment of a parameter, which is the same as the allocator's.
const ALIGN_BYTES: usize = 512;
/// The length of a part is a multiple of this many elements.
const PART_GRAIN: usize = 256;
/// A parameter with fewer bytes is not split between ranks.
const CUT_FROM_BYTES: usize = 64 << 10;

/// A parameter as a matrix. A row consists of the elements with the same first index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) row_len: usize,
}

impl Matrix {
    fn len(self) -> usize {
        self.rows * self.row_len
    }
}

/// The positions of parameters in the flat buffer of their unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The number of elements in each rank's part.
    pub(super) part_len: usize,
    /// The first element of each parameter.
    pub(super) starts: Vec<usize>,
    matrices: Vec<Matrix>,
    ranks: usize,
}

impl Layout {
    /// Lays out parameters whose elements have `element_bytes` bytes each, and makes the parts as short as possible.
    pub(super) fn of(matrices: &[Matrix], ranks: usize, element_bytes: usize) -> Layout {
        let longest = matrices.iter().map(|matrix| matrix.len()).max().unwrap_or(0);
        let total: usize = matrices.iter().map(|matrix| matrix.len()).sum();
        let shortest = total.div_ceil(ranks).max(1);
        // If a parameter crosses several boundaries, parts must consist of complete rows.
        let long = matrices.iter().filter(|matrix| matrix.len() > shortest);
        let grain = long.fold(PART_GRAIN, |grain, matrix| lcm(grain, matrix.row_len));
        // If parts are as long as the longest parameter, no parameter crosses two boundaries.
        let enough = longest.max(shortest);
        let whole = || Layout::from(matrices, ranks, element_bytes, enough, PART_GRAIN);
        if grain > enough.next_multiple_of(PART_GRAIN) {
            return whole();
        }
        let in_rows = Layout::from(matrices, ranks, element_bytes, shortest, grain);
        if in_rows.part_len <= enough {
            return in_rows;
        }
        let whole = whole();
        if whole.part_len < in_rows.part_len { whole } else { in_rows }
    }

    /// Tries increasing part lengths, in multiples of `grain`, until all parameters fit.
    fn from(
        matrices: &[Matrix],
        ranks: usize,
        element_bytes: usize,
        shortest: usize,
        grain: usize,
    ) -> Layout {
        let (align, cut_from) = (ALIGN_BYTES / element_bytes, CUT_FROM_BYTES / element_bytes);
        let (mut part_len, mut step) = (shortest.next_multiple_of(grain), grain);
        for attempt in 1usize.. {
            if let Some(starts) = placed(matrices, ranks, part_len, align, cut_from) {
                return Layout { part_len, starts, matrices: matrices.to_vec(), ranks };
            }
            part_len += step;
            if attempt.is_multiple_of(64) {
                step *= 2;
            }
        }
        unreachable!("all parameters fit into one part that is long enough")
    }

    /// The number of elements in the buffer.
    pub(super) fn len(&self) -> usize {
        self.part_len * self.ranks
    }

    /// The number of elements that belong to no parameter.
    pub(super) fn padding(&self) -> usize {
        self.len() - self.matrices.iter().map(|matrix| matrix.len()).sum::<usize>()
    }

    /// The rows of a parameter that a rank has.
    pub(super) fn rows(&self, parameter: usize, rank: usize) -> Range<usize> {
        let Matrix { rows, row_len } = self.matrices[parameter];
        let start = self.starts[parameter];
        let row_at = |place: usize| place.saturating_sub(start).div_ceil(row_len.max(1)).min(rows);
        row_at(rank * self.part_len)..row_at((rank + 1) * self.part_len)
    }

    /// The position of these rows in the rank's part, in elements. It is inside the part even if there are no rows.
    pub(super) fn place_in_part(&self, parameter: usize, rank: usize) -> Range<usize> {
        let rows = self.rows(parameter, rank);
        let row_len = self.matrices[parameter].row_len;
        let start = (self.starts[parameter] + rows.start * row_len).saturating_sub(rank * self.part_len);
        let start = if rows.is_empty() { start.min(self.part_len) } else { start };
        start..start + rows.len() * row_len
    }
}

/// The first element of each parameter, or `None` if they do not fit into parts of this length.
fn placed(
    matrices: &[Matrix],
    ranks: usize,
    part_len: usize,
    align: usize,
    cut_from: usize,
) -> Option<Vec<usize>> {
    let mut end = 0usize;
    let mut starts = Vec::with_capacity(matrices.len());
    for &matrix in matrices {
        let start = start_of(matrix, end.next_multiple_of(align), part_len, align, cut_from)?;
        end = start + matrix.len();
        if end > ranks * part_len {
            return None;
        }
        starts.push(start);
    }
    Some(starts)
}

/// The first position, starting at `from`, at which every boundary inside the parameter falls between rows. `None` if
/// there is no such position for parts of this length.
fn start_of(matrix: Matrix, from: usize, part_len: usize, align: usize, cut_from: usize) -> Option<usize> {
    let len = matrix.len();
    let border = (from / part_len + 1) * part_len;
    if from + len <= border {
        return Some(from);
    }
    let may_be_cut = len >= cut_from;
    let fits = |start: usize| {
        let crosses_several = len > part_len && start + len > border + part_len;
        (border - start).is_multiple_of(matrix.row_len)
            && (!crosses_several || part_len.is_multiple_of(matrix.row_len))
    };
    // Modulo the length of a row, the distance to the boundary repeats after this many steps.
    let period = matrix.row_len / gcd(matrix.row_len, align);
    let places = (0..period).map(|step| from + step * align).take_while(|start| *start < border);
    if let Some(start) = places.filter(|_| may_be_cut).find(|start| fits(*start)) {
        return Some(start);
    }
    let is_cut_well = may_be_cut && part_len.is_multiple_of(matrix.row_len);
    (len <= part_len || is_cut_well).then_some(border)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    (a / gcd(a, b.max(1))).saturating_mul(b.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(matrices: &[(usize, usize)], ranks: usize) -> Layout {
        let matrices: Vec<Matrix> =
            matrices.iter().map(|&(rows, row_len)| Matrix { rows, row_len }).collect();
        Layout::of(&matrices, ranks, 2)
    }

    #[test]
    fn small_parameters_are_not_cut_and_large_ones_between_rows() {
        // A weight of 128 KiB and its bias of 512 bytes, on 4 ranks: parts of 65 rows of 256 elements.
        let found = layout(&[(256, 256), (256, 1)], 4);
        assert_eq!((found.part_len, found.starts.clone()), (16_640, vec![0, 65_536]));
        let rows: Vec<Range<usize>> = (0..4).map(|rank| found.rows(0, rank)).collect();
        assert_eq!(rows, [0..65, 65..130, 130..195, 195..256]);
        assert_eq!((found.rows(1, 2), found.rows(1, 3)), (0..0, 0..256));
        assert_eq!(found.place_in_part(1, 3), 15_616..15_872);
    }

    #[test]
    fn more_ranks_than_rows_have_short_parts() {
        // 256 rows of 768 elements, and 128 more, on 1,024 ranks: one row or none.
        let found = layout(&[(256, 768), (128, 768)], 1024);
        assert_eq!(found.part_len, 768);
        assert_eq!(found.rows(0, 255), 255..256);
        assert_eq!((found.rows(1, 256).len(), found.rows(1, 1023).len()), (1, 0));
    }

    #[test]
    fn a_block_of_gpt2_xl_has_little_padding() {
        let vector = |len| (len, 1);
        let block = [
            vector(1600),
            vector(1600),
            (4800, 1600),
            vector(4800),
            (1600, 1600),
            vector(1600),
            vector(1600),
            vector(1600),
            (6400, 1600),
            vector(6400),
            (1600, 6400),
            vector(1600),
        ];
        for (ranks, most) in [(2, 0.001), (8, 0.01), (64, 0.03)] {
            let found = layout(&block, ranks);
            let share = found.padding() as f64 / found.len() as f64;
            assert!(share < most, "{share} of padding on {ranks} ranks");
        }
    }

    /// Checks that every row is on one rank, and that the positions of parameters and parts are as documented.
    fn check(matrices: &[Matrix], ranks: usize, element_bytes: usize) {
        let found = Layout::of(matrices, ranks, element_bytes);
        let what = format!("{matrices:?} of {element_bytes} bytes on {ranks} ranks: {found:?}");
        assert!(found.part_len.is_multiple_of(PART_GRAIN), "{what}");
        let mut end = 0;
        for (i, matrix) in matrices.iter().enumerate() {
            let start = found.starts[i];
            assert!(start >= end && (start * element_bytes).is_multiple_of(ALIGN_BYTES), "{what}");
            end = start + matrix.len();
            assert!(end <= found.len(), "{what}");
            let (mut next, mut owners) = (0, 0);
            for rank in 0..ranks {
                let (rows, place) = (found.rows(i, rank), found.place_in_part(i, rank));
                assert_eq!(place.len(), rows.len() * matrix.row_len, "{what}");
                assert!(place.end <= found.part_len, "{what}");
                if rows.is_empty() {
                    continue;
                }
                assert_eq!(rows.start, next, "{what}");
                let first = rank * found.part_len + place.start;
                assert_eq!(first, start + rows.start * matrix.row_len, "{what}");
                (next, owners) = (rows.end, owners + 1);
            }
            assert_eq!(next, matrix.rows, "{what}");
            assert!(owners <= 1 || matrix.len() * element_bytes >= CUT_FROM_BYTES, "{what}");
        }
    }

    #[test]
    fn every_row_is_on_one_rank() {
        let mut state = 1u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for _ in 0..2000 {
            let count = 1 + below(8);
            let matrices: Vec<Matrix> =
                (0..count).map(|_| Matrix { rows: below(400), row_len: 1 + below(300) }).collect();
            check(&matrices, 1 + below(64), [2, 4, 8][below(3)]);
        }
        check(&[Matrix { rows: 1, row_len: 1_000_003 }], 64, 2);
        check(&[Matrix { rows: 50_257, row_len: 1600 }, Matrix { rows: 1024, row_len: 1600 }], 64, 2);
        check(&[], 3, 4);
    }
}
