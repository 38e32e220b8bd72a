//! Workspaces of cuSOLVER, in elements. They are undocumented; these formulas were fitted to an H200
//! (`tests/pytorch/workspaces/solver-h200-2.11.0.txt`, CUDA 13.0). The counts are the same for all types, unless a function
//! takes the bytes of an element.

/// Bytes that the newer functions, which report bytes, need in addition to the elements.
pub(super) const HEADER_BYTES: u64 = 128;

/// Cholesky factorization (`potrf`).
pub(super) fn cholesky(element_bytes: u64) -> u64 {
    32 + 128 / element_bytes
}

/// QR factorization of any number of rows (`geqrf`).
pub(super) fn qr(columns: u64) -> u64 {
    1024 * columns.max(256) + (512 << 10)
}

/// The orthogonal factor of a QR factorization, from `reflectors` reflectors (`orgqr`, `ungqr`).
pub(super) fn orthogonal(rows: u64, reflectors: u64) -> u64 {
    if reflectors >= 128 {
        128 * rows + 256 * reflectors + 16_640
    } else {
        33_024 + (rows * reflectors).next_multiple_of(32)
    }
}

/// Eigenvalues and eigenvectors of a symmetric matrix, by divide and conquer (`syevd`, `heevd`).
pub(super) fn eigen(n: u64) -> u64 {
    (3 * n * n + 768 * n + 65_603).max(4 * n * n + 127 * n + 32_963)
}

/// The workspace in bytes for `batch` matrices of elements of this size (`XsyevBatched`).
pub(super) fn eigen_batch_bytes(n: u64, batch: u64, element_bytes: u64) -> u64 {
    let shared = 3 * HEADER_BYTES;
    (batch * (element_bytes * eigen(n) + HEADER_BYTES)).saturating_sub(batch * shared) + shared
}

/// Eigenvalues and eigenvectors of a symmetric matrix, by Jacobi's method (`syevj`, `heevj`).
pub(super) fn eigen_jacobi(n: u64) -> u64 {
    if n >= 4096 { 5 * n * n / 2 } else { n * n + 38 * n + n.saturating_sub(1024) * n / 280 + 1000 }
}

/// Singular values and vectors by Jacobi's method (`gesvdj`). If the matrix is not square, it works on the QR factor.
pub(super) fn singular_jacobi(rows: u64, columns: u64, econ: bool) -> u64 {
    let (short, long) = (rows.min(columns), rows.max(columns));
    if short == long {
        return 2 * short * short + 68 * short + short.saturating_sub(1024) * short / 280 + 1000;
    }
    let (product, factor) = if rows > columns { (1, 0) } else { (2, 3) };
    let vectors = if econ { 0 } else { 513 * (long - short) };
    let whole = short * short + product * short * long + 513 * short + 256 * long + 66_840 + vectors;
    whole.max(qr(short) + factor * short * short + 2 * short)
}

/// The workspace for a batch of any number of matrices of at most 32 rows and columns (`gesvdjBatched`).
pub(super) const SINGULAR_BATCH: u64 = 992;

/// Factorization of an indefinite symmetric matrix (`sytrf`).
pub(super) fn indefinite(n: u64, element_bytes: u64) -> u64 {
    let least = match element_bytes {
        4 => 24_608,
        8 => 13_328,
        _ => 11_016,
    };
    let columns = if n < 4096 { 64 } else { 128 };
    least.max(columns * n + 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = include_str!("../../tests/pytorch/workspaces/solver-h200-2.11.0.txt");

    #[test]
    fn the_formulas_are_the_cards_answers_or_near() {
        for line in CARD.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let (name, element) = (words.next().unwrap(), words.next().unwrap());
            let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
            let bytes = match element {
                "S" => 4,
                "Z" => 16,
                _ => 8,
            };
            let (model, card, tolerance) = match (name, numbers.as_slice()) {
                ("potrf", &[_, card]) => (cholesky(bytes), card, 0),
                ("sytrf", &[n, card]) => (indefinite(n, bytes), card, 0),
                ("evd", &[n, card]) => (eigen(n), card, card / 2000),
                ("syevj", &[n, card]) => (eigen_jacobi(n), card, (card / 100).max(2000)),
                // For nearly square matrices another rule applies.
                ("gesvdj", &[1000, 1024, _, card]) => (singular_jacobi(1000, 1024, true), card, card / 5),
                ("gesvdj", &[m, n, econ, card]) => {
                    (singular_jacobi(m, n, econ == 1), card, (card / 100).max(2100))
                }
                ("syevBatched", &[n, batch, card]) => {
                    (eigen_batch_bytes(n, batch, bytes), card, (card / 1000).max(512 * batch))
                }
                ("geqrf", &[_, n, card]) => (qr(n), card, 0),
                // Between 65 and 127 reflectors, the GPU follows a third rule, for less than 150 kB.
                ("gqr", &[m, n, card]) if (66..128).contains(&m.min(n)) => {
                    (orthogonal(m, m.min(n)), card, card / 11)
                }
                ("gqr", &[m, n, card]) => (orthogonal(m, m.min(n)), card, 0),
                _ => panic!("{line}"),
            };
            assert!(model.abs_diff(card) <= tolerance, "{line}: {model}");
        }
    }
}
