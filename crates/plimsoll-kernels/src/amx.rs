//! Products of pairs of `bf16` in the tile registers of AMX, which Intel's processors have since Sapphire Rapids.
//!
//! The instructions have no stable intrinsics, so they are written as assembly. A tile register has 16 rows of 64 bytes. One of
//! `a` holds 16 rows of 16 pairs; one of `b` holds 16 steps of depth of 16 columns, as a panel of `tile.rs` is packed; one of
//! `c` holds 16 rows of 16 sums.

/// Rows, columns, and steps of depth (pairs) of a tile register.
pub(super) const SIDE: usize = 16;

/// Rows of pairs, and a packed panel of columns with a pair for each step of depth.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub(super) a: &'a [f32],
    /// The distance between rows of `a`.
    pub(super) a_row: usize,
    pub(super) b: &'a [f32],
    /// The columns of the panel: 16 or 32.
    pub(super) width: usize,
    /// Pairs along the depth, a multiple of 16.
    pub(super) steps: usize,
}

impl Factors<'_> {
    /// Adds the products of `rows` rows with all columns to `c`, whose rows are `c_row` apart.
    ///
    /// # Panics
    /// If a slice is too short, a size is not a multiple of [`SIDE`], or [`has_tiles`] is false.
    pub(super) fn add_to(&self, rows: usize, c: &mut [f32], c_row: usize) {
        let &Factors { a, a_row, b, width, steps } = self;
        assert!(has_tiles(), "this processor has no tile registers, or the system does not let us use them");
        assert!(width == SIDE || width == 2 * SIDE, "a panel of {width} columns");
        assert!(steps.is_multiple_of(SIDE) && steps <= a_row, "{steps} steps in rows of {a_row}");
        let Some(last) = rows.checked_sub(1).filter(|_| steps > 0) else { return };
        assert!(last * a_row + steps <= a.len() && steps * width <= b.len(), "operands of {rows} rows");
        assert!(width <= c_row && last * c_row + width <= c.len(), "sums of {rows} rows");
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        // SAFETY: checked.
        unsafe {
            x86::add(self, rows, c.as_mut_ptr(), c_row);
        }
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        let _ = c;
    }
}

/// Whether this processor has tile registers with products of `bf16`, and the system lets this process use them.
pub(super) fn has_tiles() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *HAS.get_or_init(x86::request)
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    use super::{Factors, SIDE};

    /// Asks Linux for the tile registers. Threads that start later, and those that run, may then use them too.
    pub(super) fn request() -> bool {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        let features = __cpuid_count(7, 0).edx;
        if features & AMX_BF16 == 0 || features & AMX_TILE == 0 {
            return false;
        }
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XFEATURE_XTILEDATA: u64 = 18;
        let mut result = ARCH_PRCTL;
        // SAFETY: this system call changes no memory of ours; the kernel keeps all registers but these.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result == 0
    }

    /// The shapes of the tile registers, as `ldtilecfg` reads them.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Sets the shapes: `upper` and `lower` rows of sums and of `a`.
    ///
    /// # Safety
    /// The processor has tile registers, and both numbers are from 1 to 16.
    unsafe fn shape(upper: usize, lower: usize) {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let rows = [upper, upper, lower, lower, upper, lower, SIDE, SIDE];
        for (register, rows) in rows.into_iter().enumerate() {
            shapes.row_bytes[register] = 64;
            shapes.rows[register] = rows as u8;
        }
        // SAFETY: `shapes` is valid; the caller promises the rest.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) }
    }

    /// # Safety
    /// The processor has tile registers, and every element is inside its slice, as `Factors::add_to` checks.
    pub(super) unsafe fn add(of: &Factors<'_>, rows: usize, c: *mut f32, c_row: usize) {
        let mut shaped = None;
        for row in (0..rows).step_by(2 * SIDE) {
            let upper = SIDE.min(rows - row);
            let lower = SIDE.min(rows - row - upper);
            // SAFETY: the rows are those that the caller promises.
            unsafe {
                if shaped != Some((upper, lower)) {
                    shape(upper, lower.max(1));
                    shaped = Some((upper, lower));
                }
                let (a, c) = (of.a.as_ptr().add(row * of.a_row), c.add(row * c_row));
                if lower > 0 && of.width == 2 * SIDE {
                    four(of, a, c, c_row);
                    continue;
                }
                for col in (0..of.width).step_by(SIDE) {
                    let b = of.b.as_ptr().add(col);
                    one::<true>(of, a, b, c.add(col), c_row);
                    if lower > 0 {
                        one::<false>(of, a.add(SIDE * of.a_row), b, c.add(SIDE * c_row + col), c_row);
                    }
                }
            }
        }
        // SAFETY: without this, the system would save the registers at each switch of threads.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }

    /// Two tiles of rows times two of columns.
    ///
    /// # Safety
    /// Like `add`, with the shapes set.
    unsafe fn four(of: &Factors<'_>, a: *const f32, c: *mut f32, c_row: usize) {
        // SAFETY: the caller promises that all rows exist.
        unsafe {
            asm!(
                "tileloadd tmm0, [{c} + {c_row}]",
                "tileloadd tmm1, [{c} + {c_row} + 64]",
                "tileloadd tmm2, [{d} + {c_row}]",
                "tileloadd tmm3, [{d} + {c_row} + 64]",
                "2:",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm4, [{a} + {a_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{e} + {a_row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {e}, 64",
                "add {b}, 2048",
                "dec {left}",
                "jnz 2b",
                "tilestored [{c} + {c_row}], tmm0",
                "tilestored [{c} + {c_row} + 64], tmm1",
                "tilestored [{d} + {c_row}], tmm2",
                "tilestored [{d} + {c_row} + 64], tmm3",
                a = inout(reg) a => _,
                e = inout(reg) a.add(SIDE * of.a_row) => _,
                a_row = in(reg) 4 * of.a_row,
                b = inout(reg) of.b.as_ptr() => _,
                b_row = in(reg) 4 * 2 * SIDE,
                c = in(reg) c,
                d = in(reg) c.add(SIDE * c_row),
                c_row = in(reg) 4 * c_row,
                left = inout(reg) of.steps / SIDE => _,
                options(nostack),
            );
        }
    }

    /// One tile of rows, the upper or the lower one, times one of columns.
    ///
    /// # Safety
    /// Like `add`, with the shapes set.
    unsafe fn one<const UPPER: bool>(
        of: &Factors<'_>,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        c_row: usize,
    ) {
        macro_rules! product {
            ($sums:literal, $rows:literal) => {
                asm!(
                    concat!("tileloadd ", $sums, ", [{c} + {c_row}]"),
                    "2:",
                    concat!("tileloadd ", $rows, ", [{a} + {a_row}]"),
                    "tileloadd tmm6, [{b} + {b_row}]",
                    concat!("tdpbf16ps ", $sums, ", ", $rows, ", tmm6"),
                    "add {a}, 64",
                    "add {b}, {b_step}",
                    "dec {left}",
                    "jnz 2b",
                    concat!("tilestored [{c} + {c_row}], ", $sums),
                    a = inout(reg) a => _,
                    a_row = in(reg) 4 * of.a_row,
                    b = inout(reg) b => _,
                    b_row = in(reg) 4 * of.width,
                    b_step = in(reg) 4 * SIDE * of.width,
                    c = in(reg) c,
                    c_row = in(reg) 4 * c_row,
                    left = inout(reg) of.steps / SIDE => _,
                    options(nostack),
                )
            };
        }
        // SAFETY: the caller promises that all rows exist.
        unsafe {
            if UPPER {
                product!("tmm0", "tmm4");
            } else {
                product!("tmm2", "tmm5");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    /// `bf16` in the low and the high half.
    fn halves(pair: f32) -> [f32; 2] {
        let bits = pair.to_bits();
        [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
    }

    fn pairs(count: usize, seed: u64) -> Vec<f32> {
        let values = random(2 * count, seed);
        let pair = |pair: &[f32]| f32::from_bits(pair[0].to_bits() >> 16 | pair[1].to_bits() & 0xffff_0000);
        values.chunks_exact(2).map(pair).collect()
    }

    /// Sums of all shapes, also of fewer rows than a tile has. Does nothing on a processor without tiles.
    #[test]
    fn any_number_of_rows_matches_the_reference() {
        if !has_tiles() {
            return;
        }
        for (rows, width, steps) in [1, 5, 16, 17, 31, 32, 33, 64, 70]
            .into_iter()
            .flat_map(|rows| [(rows, 16, 16), (rows, 32, 16), (rows, 16, 48), (rows, 32, 64)])
        {
            let (a_row, c_row) = (steps + 16, width + 3);
            let (a, b) = (pairs(rows * a_row, 1), pairs(steps * width, 2));
            let mut found = random(rows * c_row, 3);
            let mut expected = found.clone();
            for row in 0..rows {
                for col in 0..width {
                    let products = (0..steps).map(|step| {
                        let (a, b) = (halves(a[row * a_row + step]), halves(b[step * width + col]));
                        f64::from(a[0]) * f64::from(b[0]) + f64::from(a[1]) * f64::from(b[1])
                    });
                    let sum = f64::from(found[row * c_row + col]) + products.sum::<f64>();
                    expected[row * c_row + col] = sum as f32;
                }
            }
            Factors { a: &a, a_row, b: &b, width, steps }.add_to(rows, &mut found, c_row);
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() < 1e-4, "{rows} {width} {steps}, {at}: {found} {expected}");
            }
        }
    }
}
