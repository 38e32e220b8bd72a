//! Parallel loops: the only way in which kernels use several cores.
//!
//! Work is split into chunks whose bounds depend only on shapes, never on the number of threads, so results do
//! not depend on it either. The calling thread takes chunks itself from a shared counter; helpers from rayon's
//! pool join when they wake up. The caller never waits for a helper that has not started (`region.rs`, Note
//! [Closing a region]), so a small kernel costs no hand-off.
//!
//! [`for_each_chunk`] is the primitive (`region.rs` runs it). [`for_each_piece`] and its siblings split output slices
//! into pieces of equal length, and [`for_each_cut`] any number of slices, each into its own pieces; kernels need no
//! unsafe code for that. [`Cut`] is for kernels whose pieces are irregular.

use std::marker::PhantomData;

use super::region::run;

/// Elements per piece in memory-bound kernels: 128 KiB of `f32`, about 10 µs, as long as it takes to wake a helper.
pub const PIECE: usize = 32 * 1024;

/// Threads that may run chunks of one kernel at the same time.
fn workers() -> usize {
    rayon::current_num_threads()
}

/// The maximum number of workers for which a kernel's scratch memory has room.
pub const SCRATCH_WORKERS: usize = 8;

/// The number of workers for which a kernel's scratch memory has room. It depends only on the shape, never on the number
/// of threads: a simulated device must request the same scratch memory as any machine. Additional threads get no scratch
/// memory and do not take part.
pub fn scratch_workers(chunks: usize) -> usize {
    chunks.clamp(1, SCRATCH_WORKERS)
}

/// Runs `body(chunk)` once for each chunk in `0..chunks`, on this thread and on the pool's.
pub fn for_each_chunk(chunks: usize, body: impl Fn(usize) + Sync) {
    run(chunks, workers(), &|_, chunk| body(chunk));
}

/// Like [`for_each_chunk`], lending each running worker its own `scratch_len` floats of `scratch`, whose contents are
/// whatever the last chunk left there. If `scratch` is too small for all workers, fewer run.
pub fn for_each_chunk_with(
    chunks: usize,
    scratch: &mut [f32],
    scratch_len: usize,
    body: impl Fn(usize, &mut [f32]) + Sync,
) {
    for_each_cut_with(chunks, (), scratch, scratch_len, |chunk, (), own| body(chunk, own));
}

/// Like [`for_each_chunk`], passing each chunk its piece of the slices in `cut`: one [`Pieces`], or a tuple or an array of
/// them.
///
/// ```text
/// // Rows of `out`, and one number of each:
/// for_each_cut(rows, (Pieces::of(out, cols), Pieces::of(mean, 1)), |row, (out, mean)| …);
/// ```
#[allow(clippy::needless_pass_by_value, reason = "its slices are borrowed mutably")]
pub fn for_each_cut<C: Cuts>(chunks: usize, cut: C, body: impl Fn(usize, C::Piece) + Sync) {
    // SAFETY: `run` passes each chunk once.
    run(chunks, workers(), &|_, chunk| body(chunk, unsafe { cut.piece(chunk) }));
}

/// [`for_each_cut`] and [`for_each_chunk_with`] in one.
#[allow(clippy::needless_pass_by_value, reason = "its slices are borrowed mutably")]
pub fn for_each_cut_with<C: Cuts>(
    chunks: usize,
    cut: C,
    scratch: &mut [f32],
    scratch_len: usize,
    body: impl Fn(usize, C::Piece, &mut [f32]) + Sync,
) {
    assert!(
        chunks == 0 || scratch.len() >= scratch_len,
        "scratch of {} where {scratch_len} are needed",
        scratch.len()
    );
    let at_most = scratch.len().checked_div(scratch_len).unwrap_or(usize::MAX);
    let scratch = Cut::new(scratch);
    run(chunks, workers().min(at_most), &|worker, chunk| {
        // SAFETY: `run` passes each chunk once, and gives each running worker a unique number below `at_most`.
        let (piece, own) = unsafe { (cut.piece(chunk), scratch.range(worker * scratch_len, scratch_len)) };
        body(chunk, piece, own);
    });
}

/// Splits `out` into consecutive pieces of `len` (the last may be shorter); runs `body(start, piece)` on each.
pub fn for_each_piece<T: Send>(out: &mut [T], len: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    for_each_cut(out.len().div_ceil(len), Pieces::of(out, len), |chunk, out| body(chunk * len, out));
}

/// [`for_each_piece`] for several slices of equal length.
pub fn for_each_pieces<T: Send, const N: usize>(
    slices: [&mut [T]; N],
    len: usize,
    body: impl Fn(usize, [&mut [T]; N]) + Sync,
) {
    let total = slices.first().map_or(0, |slice| slice.len());
    assert!(slices.iter().all(|slice| slice.len() == total), "slices cut together");
    let cut = slices.map(|slice| Pieces::of(slice, len));
    for_each_cut(total.div_ceil(len), cut, |chunk, pieces| body(chunk * len, pieces));
}

/// [`for_each_piece`] for two slices of equal length.
pub fn for_each_piece2<T: Send, U: Send>(
    (a, b): (&mut [T], &mut [U]),
    len: usize,
    body: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    assert_eq!(a.len(), b.len(), "two slices cut together");
    let (chunks, cut) = (a.len().div_ceil(len), (Pieces::of(a, len), Pieces::of(b, len)));
    for_each_cut(chunks, cut, |chunk, (a, b)| body(chunk * len, a, b));
}

/// [`for_each_piece`] for three slices of equal length.
pub fn for_each_piece3<T: Send, U: Send, V: Send>(
    (a, b, c): (&mut [T], &mut [U], &mut [V]),
    len: usize,
    body: impl Fn(usize, &mut [T], &mut [U], &mut [V]) + Sync,
) {
    assert!(a.len() == b.len() && a.len() == c.len(), "three slices cut together");
    let (chunks, cut) = (a.len().div_ceil(len), (Pieces::of(a, len), Pieces::of(b, len), Pieces::of(c, len)));
    for_each_cut(chunks, cut, |chunk, (a, b, c)| body(chunk * len, a, b, c));
}

/// Data that is split into one piece for each chunk of a loop.
///
/// # Safety
/// The pieces of different chunks must not overlap.
pub unsafe trait Cuts: Sync {
    type Piece;

    /// The piece of a chunk; empty if nothing is left.
    ///
    /// # Safety
    /// Must be called at most once for each chunk.
    unsafe fn piece(&self, chunk: usize) -> Self::Piece;
}

/// A slice that is split into pieces, one for each chunk.
pub struct Pieces<'a, T> {
    slice: Cut<'a, T>,
    /// The slice consists of rows of this length, each split separately.
    row: usize,
    len: usize,
    of_a_row: usize,
}

impl<'a, T> Pieces<'a, T> {
    /// Consecutive pieces of `len`; the last may be shorter.
    pub fn of(slice: &'a mut [T], len: usize) -> Self {
        Self { row: usize::MAX, len, of_a_row: usize::MAX, slice: Cut::new(slice) }
    }

    /// Rows of `row` elements, each split into pieces of `len`; the last piece of a row may be shorter. All pieces of a
    /// row come before those of the next.
    pub fn in_rows(slice: &'a mut [T], row: usize, len: usize) -> Self {
        let of_a_row = if len == 0 { 1 } else { row.div_ceil(len).max(1) };
        Self { row, len, of_a_row, slice: Cut::new(slice) }
    }
}

// SAFETY: different chunks have different rows, or different multiples of `len` within a row.
unsafe impl<'a, T: Send> Cuts for Pieces<'a, T> {
    type Piece = &'a mut [T];

    #[inline(always)]
    unsafe fn piece(&self, chunk: usize) -> &'a mut [T] {
        let (row, nth) = (chunk / self.of_a_row, chunk % self.of_a_row);
        let first = self.row.saturating_mul(row).min(self.slice.len);
        let end = first.saturating_add(self.row).min(self.slice.len);
        let at = first.saturating_add(nth.saturating_mul(self.len)).min(end);
        // SAFETY: no other chunk has this piece, see above; the caller requests each chunk once.
        unsafe { self.slice.range(at, self.len.min(end - at)) }
    }
}

macro_rules! cuts_of_tuples {
    ($(($($name:ident $at:tt),*))*) => {$(
        // SAFETY: each element guarantees it.
        unsafe impl<$($name: Cuts),*> Cuts for ($($name,)*) {
            type Piece = ($($name::Piece,)*);

            #[inline(always)]
            #[allow(clippy::unused_unit, reason = "the empty tuple is one of them")]
            unsafe fn piece(&self, _chunk: usize) -> Self::Piece {
                // SAFETY: the caller's guarantee covers each element.
                ($(unsafe { self.$at.piece(_chunk) },)*)
            }
        }
    )*};
}
cuts_of_tuples! { () (A 0, B 1) (A 0, B 1, C 2) }

// SAFETY: each element guarantees it.
unsafe impl<C: Cuts, const N: usize> Cuts for [C; N] {
    type Piece = [C::Piece; N];

    unsafe fn piece(&self, chunk: usize) -> Self::Piece {
        // SAFETY: the caller's guarantee covers each element.
        std::array::from_fn(|i| unsafe { self[i].piece(chunk) })
    }
}

/// A slice whose disjoint ranges may be borrowed mutably by several threads.
pub struct Cut<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Cut` hands out only ranges that its users guarantee to be disjoint, which is the same as sending `&mut T`s.
unsafe impl<T: Send> Sync for Cut<'_, T> {}

impl<'a, T> Cut<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The first element, for code that takes pointers; the rule of [`Cut::range`] also applies to it.
    pub fn pointer(&self) -> *mut T {
        self.start
    }

    /// Sets the element at `at`.
    ///
    /// # Safety
    /// No live borrow from this `Cut` may contain this element, and no other thread may set it.
    #[inline(always)]
    pub unsafe fn set(&self, at: usize, value: T) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: inside the slice from which this was made; exclusive by the caller's guarantee.
        unsafe { *self.start.add(at) = value };
    }

    /// Borrows `len` elements from `at`.
    ///
    /// # Safety
    /// No other live borrow from this `Cut` may overlap this one.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise
    pub unsafe fn range(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at + len <= self.len, "range {at}..{} of {}", at + len, self.len);
        // SAFETY: inside the slice from which this was made, which is borrowed for `'a`; disjoint by the caller's
        // guarantee.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn every_chunk_runs_once() {
        let mut seen = vec![0u32; 1000];
        for_each_piece(&mut seen, 7, |start, piece| {
            for (i, x) in piece.iter_mut().enumerate() {
                *x += (start + i) as u32;
            }
        });
        assert!(seen.iter().enumerate().all(|(i, &x)| x == i as u32));
    }

    #[test]
    fn a_panic_in_a_chunk_reaches_the_caller() {
        let caught = catch_unwind(|| {
            for_each_chunk(64, |chunk| {
                std::thread::sleep(std::time::Duration::from_micros(50));
                assert!(chunk != 40, "chunk {chunk}");
            });
        });
        assert!(caught.is_err());
    }

    #[test]
    fn workers_never_share_scratch() {
        let mut scratch = vec![0.0; 3 * 8];
        for_each_chunk_with(500, &mut scratch, 8, |chunk, own| {
            own.fill(chunk as f32);
            std::thread::yield_now();
            assert!(own.iter().all(|&x| x == chunk as f32));
        });
    }

    /// For each element, the number of its chunk plus one, after every chunk has added that to its piece.
    fn marked(total: usize, chunks: usize, cut: impl Fn(&mut [usize]) -> Pieces<'_, usize>) -> Vec<usize> {
        let mut marks = vec![0; total];
        for_each_cut(chunks, cut(&mut marks), |chunk, piece| piece.iter_mut().for_each(|x| *x += chunk + 1));
        marks
    }

    #[test]
    fn pieces_cover_a_slice_and_do_not_overlap() {
        assert_eq!(marked(7, 3, |x| Pieces::of(x, 3)), [1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(marked(10, 4, |x| Pieces::in_rows(x, 5, 3)), [1, 1, 1, 2, 2, 3, 3, 3, 4, 4]);
        assert_eq!(marked(8, 2, |x| Pieces::in_rows(x, 4, 4)), [1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn what_lies_beyond_a_slice_is_an_empty_piece() {
        assert_eq!(marked(4, 9, |x| Pieces::of(x, 3)), [1, 1, 1, 2]);
        assert_eq!(marked(5, 9, |x| Pieces::in_rows(x, 4, 3)), [1, 1, 1, 2, 3]);
        assert_eq!(marked(0, 3, |x| Pieces::in_rows(x, 0, 0)), [0; 0]);
        assert_eq!(marked(2, usize::from(true) * 3, |x| Pieces::of(x, 0)), [0; 2]);
        assert_eq!(marked(3, 9, |x| Pieces::in_rows(x, 2, usize::MAX)), [1, 1, 2]);
    }

    #[test]
    fn several_slices_are_cut_together() {
        let (mut rows, mut sums) = (vec![1.0f32; 6], vec![0.0; 3]);
        for_each_cut(3, (Pieces::of(&mut rows, 2), Pieces::of(&mut sums, 1)), |row, (cells, sum)| {
            cells[1] = row as f32;
            sum[0] = cells.iter().sum();
        });
        assert_eq!((rows, sums), (vec![1.0, 0.0, 1.0, 1.0, 1.0, 2.0], vec![1.0, 2.0, 3.0]));
    }
}
