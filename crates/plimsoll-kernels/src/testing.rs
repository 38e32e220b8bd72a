//! Helpers for the kernels' tests: reproducible data, strided cases, approximate comparison, and runs on
//! several pools.

/// `len` values in -1..1 from a small generator, always the same for a `seed`.
pub(super) fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Row-major strides of `shape`.
pub(super) fn contiguous(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect()
}

/// Offsets of each position of `shape`, in row-major order, computed in the slow and obvious way.
pub(super) fn offsets(shape: &[usize], strides: &[usize]) -> impl Iterator<Item = usize> {
    let (shape, strides) = (shape.to_vec(), strides.to_vec());
    (0..shape.iter().product()).map(move |position: usize| {
        let index = contiguous(&shape).into_iter().zip(&shape).map(|(step, size)| position / step % size);
        index.zip(&strides).map(|(i, stride)| i * stride).sum()
    })
}

/// Shapes and strides that stay below 1000 elements: scalars, empty, transposed, broadcast, gaps.
pub(super) fn strided_cases() -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut cases = vec![
        (vec![], vec![]),
        (vec![0, 3], vec![3, 1]),
        (vec![1, 1], vec![5, 9]),
        (vec![5, 7], vec![1, 5]),
        (vec![5, 7], vec![0, 1]),
        (vec![5, 7], vec![1, 0]),
        (vec![33], vec![0]),
        (vec![33], vec![3]),
        (vec![4, 3, 17], vec![100, 20, 1]),
        (vec![2, 3, 4, 5], vec![60, 1, 15, 3]),
    ];
    for shape in [vec![1], vec![7], vec![257], vec![3, 5, 16], vec![2, 1, 31]] {
        cases.push((shape.clone(), contiguous(&shape)));
    }
    cases
}

/// Panics unless each pair differs by at most `tolerance` times the larger of 1 and the expected magnitude.
#[track_caller]
pub(super) fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let both_nan = found.is_nan() && expected.is_nan();
        let close = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(close || both_nan || found == expected, "at {i}: {found} where {expected} is expected");
    }
}

/// Runs `kernel` on pools of 1, 2 and 3 threads, checks that the results are identical to the bit, and
/// returns them.
pub(super) fn on_any_threads(kernel: impl Fn() -> Vec<f32> + Sync) -> Vec<f32> {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&kernel)
    };
    let one = run(1);
    for threads in [2, 3] {
        let same = run(threads).iter().zip(&one).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{threads} threads differ from one");
    }
    one
}
