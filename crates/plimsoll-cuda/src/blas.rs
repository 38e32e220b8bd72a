//! cuBLASLt: matrix products. Each shape uses one of the algorithms that the library's heuristic proposes.
//!
//! cuBLASLt's matrices are column-major, so we compute the transposed product: `cᵀ = bᵀ aᵀ`. The heuristic is queried
//! once for each shape, and depends only on sizes, types and alignments, so a program computes the same bits in each
//! run. `algorithm.rs` chooses among its algorithms.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use crate::algorithm::{self, Algorithm, Choice, Shape, choice};
use crate::driver::Handle;
use crate::error::{CudaError, Result};
use crate::library::{Library, Wanted, functions, package};
use crate::search::Search;
use crate::step::{Float, Matrix, Product};

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

functions! {
    /// The functions, under the names that the library exports.
    Functions {
        cublasLtCreate(*mut Handle);
        cublasLtDestroy(Handle);
        cublasLtMatmulDescCreate(*mut Handle, c_int, c_int);
        cublasLtMatmulDescSetAttribute(Handle, c_int, *const c_void, usize);
        cublasLtMatmulDescDestroy(Handle);
        cublasLtMatrixLayoutCreate(*mut Handle, c_int, u64, u64, i64);
        cublasLtMatrixLayoutSetAttribute(Handle, c_int, *const c_void, usize);
        cublasLtMatrixLayoutDestroy(Handle);
        cublasLtMatmulPreferenceCreate(*mut Handle);
        cublasLtMatmulPreferenceSetAttribute(Handle, c_int, *const c_void, usize);
        cublasLtMatmulPreferenceDestroy(Handle);
        cublasLtMatmulAlgoGetHeuristic(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int,
        );
        cublasLtMatmulAlgoConfigGetAttribute(*const Algorithm, c_int, *mut c_void, usize, *mut usize);
        cublasLtMatmulAlgoConfigSetAttribute(*mut Algorithm, c_int, *const c_void, usize);
        cublasLtMatmulAlgoCheck(Handle, Handle, Handle, Handle, Handle, Handle, *const Algorithm, *mut Heuristic);
        cublasLtMatmul(
            Handle, Handle, *const c_void, u64, Handle, u64, Handle, *const c_void, u64, Handle, u64, Handle,
            *const Algorithm, u64, usize, Handle,
        );
    }
}

// Numbers of cublasLt.h and library_types.h.
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_TRANSPOSE_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
const DESC_BIAS_TYPE: c_int = 26;
const EPILOGUE_BIAS: c_int = 4;
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_BATCH_STRIDE: c_int = 6;
const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_ALIGNMENT: [c_int; 4] = [5, 6, 7, 8];
const TRANSPOSED: c_int = 1;

/// The number of algorithms that the heuristic is asked for.
const CANDIDATES: usize = 8;

/// The properties that distinguish products for the heuristic: everything except addresses, of which only the alignment
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 4],
    /// Whether the matrix is row-major, its leading dimension, the distance between matrices, and the type, for each of
    /// `a`, `b` and `c`.
    matrices: [(bool, usize, usize, Float); 3],
    alignments: [u32; 3],
    has_bias: bool,
    keeps: bool,
    tf32: bool,
}

/// The library's descriptors for a product.
struct Plan {
    description: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
}

/// The library.
pub(crate) struct Blas {
    functions: Functions,
    library: Library,
    handle: Handle,
    plans: HashMap<Key, Plan>,
}

fn number(float: Float) -> c_int {
    match float {
        Float::F64 => R_64F,
        Float::F32 => R_32F,
        Float::F16 => R_16F,
        Float::BF16 => R_16BF,
    }
}

/// The largest power of two up to 256 that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

fn checked(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let (name, text) = match code {
        1 => ("CUBLAS_STATUS_NOT_INITIALIZED", "the library could not be started"),
        3 => ("CUBLAS_STATUS_ALLOC_FAILED", "the library could not allocate memory"),
        7 => ("CUBLAS_STATUS_INVALID_VALUE", "an argument that the library does not accept"),
        13 => ("CUBLAS_STATUS_EXECUTION_FAILED", "the product could not be queued"),
        15 => ("CUBLAS_STATUS_NOT_SUPPORTED", "not supported for these sizes and types"),
        _ => ("cuBLAS", "an error of the library"),
    };
    Err(CudaError::Call { call, name: format!("{name}, {code}"), text: text.to_owned(), is_sticky: false })
}

impl Blas {
    /// Opens the newest library that a driver of this version supports. The device's context must be current on the
    /// thread.
    ///
    /// # Errors
    /// If the library is missing or cannot be initialized.
    pub(crate) fn open(search: &Search, driver: i32) -> Result<Blas> {
        let names: &'static [&'static str] = match driver {
            13_000.. => &["libcublasLt.so.13", "libcublasLt.so.12"],
            _ => &["libcublasLt.so.12"],
        };
        let advice = package(driver);
        let library = Library::open(Wanted { library: "cuBLASLt", names, advice }, search)?;
        let functions = Functions::load(&library)?;
        let mut handle = 0;
        // SAFETY: the pointer is to a handle that the call writes.
        checked("cublasLtCreate", unsafe { (functions.cublasLtCreate)(&raw mut handle) })?;
        Ok(Blas { functions, library, handle, plans: HashMap::new() })
    }

    /// The file from which it was loaded.
    pub(crate) fn path(&self) -> String {
        self.library.path().display().to_string()
    }

    /// Queues a product. The workspace belongs to the stream.
    pub(crate) fn run(&mut self, product: &Product, workspace: (u64, usize), stream: Handle) -> Result<()> {
        let key = key(product);
        if !self.plans.contains_key(&key) {
            let plan = self.plan(product, &key, workspace.1)?;
            self.plans.insert(key, plan);
        }
        let Plan { description, layouts: [a, b, c], algorithm } = &self.plans[&key];
        if let Some(bias) = product.bias {
            self.describe(*description, DESC_BIAS_POINTER, &bias)?;
        }
        let wide = [product.alpha, product.beta];
        let narrow = wide.map(|x| x as f32);
        let scalar = |i: usize| match product.c.float {
            Float::F64 => (&raw const wide[i]).cast(),
            _ => (&raw const narrow[i]).cast(),
        };
        // SAFETY: live handles of this library; scalars of the type given in the descriptor; device addresses are plain
        // numbers on the host.
        let code = unsafe {
            (self.functions.cublasLtMatmul)(
                self.handle,
                *description,
                scalar(0),
                product.b.address,
                *b,
                product.a.address,
                *a,
                scalar(1),
                product.c.address,
                *c,
                product.c.address,
                *c,
                &raw const *algorithm,
                workspace.0,
                workspace.1,
                stream,
            )
        };
        checked("cublasLtMatmul", code)
    }

    /// Makes the descriptors of a product and chooses its algorithm.
    fn plan(&self, product: &Product, key: &Key, workspace_bytes: usize) -> Result<Plan> {
        let f = &self.functions;
        let (compute, scale) = arithmetic(key);
        let mut description = 0;
        // SAFETY: the pointer is to a handle that the call writes.
        checked("cublasLtMatmulDescCreate", unsafe {
            (f.cublasLtMatmulDescCreate)(&raw mut description, compute, scale)
        })?;
        // The library's first matrix is our second one. The rows of a row-major matrix are the columns of the transposed
        // one.
        for (attribute, (by_rows, ..)) in
            [(DESC_TRANSPOSE_A, key.matrices[1]), (DESC_TRANSPOSE_B, key.matrices[0])]
        {
            if !by_rows {
                self.describe(description, attribute, &TRANSPOSED)?;
            }
        }
        if let Some(bias) = product.bias {
            self.describe(description, DESC_EPILOGUE, &EPILOGUE_BIAS)?;
            self.describe(description, DESC_BIAS_POINTER, &bias)?;
            self.describe(description, DESC_BIAS_TYPE, &number(product.c.float))?;
        }
        let Product { batch, m, n, k, .. } = *product;
        let sizes = [[m, k], [k, n], [m, n]];
        let mut layouts = [0; 3];
        for (layout, (&(by_rows, leading, stride, float), [rows, cols])) in
            layouts.iter_mut().zip(key.matrices.iter().zip(sizes))
        {
            let (rows, cols) = if by_rows { (cols, rows) } else { (rows, cols) };
            // SAFETY: the pointer is to a handle that the call writes.
            checked("cublasLtMatrixLayoutCreate", unsafe {
                (f.cublasLtMatrixLayoutCreate)(
                    &raw mut *layout,
                    number(float),
                    rows as u64,
                    cols as u64,
                    leading as i64,
                )
            })?;
            if batch > 1 {
                self.lay(*layout, LAYOUT_BATCH_COUNT, &i32::try_from(batch).unwrap_or(i32::MAX))?;
                self.lay(*layout, LAYOUT_BATCH_STRIDE, &(stride as i64))?;
            }
        }
        let algorithm = self.algorithm(description, layouts, key, workspace_bytes)?;
        algorithm.map(|algorithm| Plan { description, layouts, algorithm }).ok_or_else(|| {
            CudaError::NoAlgorithm {
                product: format!("{batch} × [{m}, {k}] × [{k}, {n}] in {:?}", product.c.float),
            }
        })
    }

    fn algorithm(
        &self,
        description: Handle,
        [a, b, c]: [Handle; 3],
        key: &Key,
        workspace_bytes: usize,
    ) -> Result<Option<Algorithm>> {
        let f = &self.functions;
        let mut preference = 0;
        // SAFETY: the pointer is to a handle that the call writes.
        checked("cublasLtMatmulPreferenceCreate", unsafe {
            (f.cublasLtMatmulPreferenceCreate)(&raw mut preference)
        })?;
        let prefer = |attribute: c_int, value: *const c_void, bytes: usize| {
            // SAFETY: a live handle; `value` is a local of that many bytes.
            checked("cublasLtMatmulPreferenceSetAttribute", unsafe {
                (f.cublasLtMatmulPreferenceSetAttribute)(preference, attribute, value, bytes)
            })
        };
        prefer(PREFERENCE_WORKSPACE, (&raw const workspace_bytes).cast(), 8)?;
        let [of_a, of_b, of_c] = key.alignments;
        for (attribute, value) in PREFERENCE_ALIGNMENT.into_iter().zip([of_b, of_a, of_c, of_c]) {
            prefer(attribute, (&raw const value).cast(), 4)?;
        }
        let (mut found, mut count) = ([Heuristic::default(); CANDIDATES], 0);
        // SAFETY: live handles, and room for the requested number of results.
        let code = unsafe {
            (f.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                description,
                b,
                a,
                c,
                c,
                preference,
                c_int::try_from(CANDIDATES).unwrap_or(1),
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        // SAFETY: the handle created above, which is not used after this.
        unsafe { (f.cublasLtMatmulPreferenceDestroy)(preference) };
        if code == 15 {
            return Ok(None);
        }
        checked("cublasLtMatmulAlgoGetHeuristic", code)?;
        let count = usize::try_from(count).unwrap_or(0);
        let usable: Vec<Algorithm> =
            found.iter().take(count).filter(|found| found.state == 0).map(|found| found.algorithm).collect();
        let known =
            |algorithm: &Algorithm| algorithm::known(|attribute| self.attribute(algorithm, attribute));
        let [_, m, n, k] = key.sizes;
        let is_short = key.matrices.iter().all(|(.., float)| matches!(float, Float::BF16 | Float::F16));
        let Some(choice) = choice(Shape { m, n, k, is_short }, usable.iter().map(known)) else {
            return Ok(None);
        };
        let chosen = |nth: usize| usable.get(nth).copied();
        Ok(match choice {
            Choice::Candidate(nth) => chosen(nth),
            Choice::Changed(nth) => {
                let changed = chosen(nth).and_then(|algorithm| self.changed(algorithm));
                let runs = |algorithm: &Algorithm| {
                    let mut result = Heuristic::default();
                    // SAFETY: live handles, an algorithm from the library, and room for the result.
                    let code = unsafe {
                        (f.cublasLtMatmulAlgoCheck)(
                            self.handle,
                            description,
                            b,
                            a,
                            c,
                            c,
                            std::ptr::from_ref(algorithm),
                            &raw mut result,
                        )
                    };
                    code == 0 && result.state == 0 && result.workspace_bytes <= workspace_bytes
                };
                changed.filter(runs).or(chosen(nth))
            }
        })
    }

    /// An attribute of an algorithm; 0 if it has none.
    fn attribute(&self, algorithm: &Algorithm, attribute: c_int) -> u32 {
        let (mut value, mut written) = (0u32, 0usize);
        // SAFETY: an algorithm from the library, and room for the attribute's bits, at most 32.
        let code = unsafe {
            (self.functions.cublasLtMatmulAlgoConfigGetAttribute)(
                algorithm,
                attribute,
                (&raw mut value).cast(),
                algorithm::size(attribute),
                &raw mut written,
            )
        };
        if code == 0 { value } else { 0 }
    }

    /// An algorithm with other tiles, if the library accepts them: see `algorithm::CHANGES`.
    fn changed(&self, mut algorithm: Algorithm) -> Option<Algorithm> {
        for (attribute, value) in algorithm::CHANGES {
            // SAFETY: an algorithm from the library, and a value of the attribute's size.
            let code = unsafe {
                (self.functions.cublasLtMatmulAlgoConfigSetAttribute)(
                    &raw mut algorithm,
                    attribute,
                    (&raw const value).cast(),
                    algorithm::size(attribute),
                )
            };
            if code != 0 {
                return None;
            }
        }
        Some(algorithm)
    }

    fn describe<T>(&self, description: Handle, attribute: c_int, value: &T) -> Result<()> {
        // SAFETY: a live handle, and a value of the attribute's size: an int or a device address.
        let code = unsafe {
            (self.functions.cublasLtMatmulDescSetAttribute)(
                description,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        checked("cublasLtMatmulDescSetAttribute", code)
    }

    fn lay<T>(&self, layout: Handle, attribute: c_int, value: &T) -> Result<()> {
        // SAFETY: as above: a 32-bit count or a 64-bit stride.
        let code = unsafe {
            (self.functions.cublasLtMatrixLayoutSetAttribute)(
                layout,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        checked("cublasLtMatrixLayoutSetAttribute", code)
    }

    /// Frees everything. No product may be running.
    pub(crate) fn close(&mut self) {
        for (_, plan) in self.plans.drain() {
            // SAFETY: handles of this library, which are not used after this.
            unsafe {
                (self.functions.cublasLtMatmulDescDestroy)(plan.description);
                for layout in plan.layouts {
                    (self.functions.cublasLtMatrixLayoutDestroy)(layout);
                }
            }
        }
        // SAFETY: as above.
        unsafe { (self.functions.cublasLtDestroy)(self.handle) };
    }
}

fn key(product: &Product) -> Key {
    let Product { batch, m, n, k, a, b, c, .. } = *product;
    let of = |matrix: Matrix, rows: usize, cols: usize| {
        let (by_rows, leading) = matrix.leading(rows, cols);
        (by_rows, leading, matrix.batch, matrix.float)
    };
    let bias = product.bias.map_or(256, alignment);
    Key {
        sizes: [batch, m, n, k],
        matrices: [of(a, m, k), of(b, k, n), of(c, m, n)],
        alignments: [alignment(a.address), alignment(b.address), alignment(c.address).min(bias.max(16))],
        has_bias: product.bias.is_some(),
        keeps: product.beta != 0.0,
        tf32: product.tf32 && [a, b, c].iter().all(|matrix| matrix.float == Float::F32),
    }
}

/// The compute type and the scale type of a product.
fn arithmetic(key: &Key) -> (c_int, c_int) {
    let [.., (.., result)] = key.matrices;
    match result {
        Float::F64 => (COMPUTE_64F, R_64F),
        _ if key.tf32 => (COMPUTE_32F_FAST_TF32, R_32F),
        _ => (COMPUTE_32F, R_32F),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_products_of_32_bits_are_computed_in_tf32_and_only_where_that_is_allowed() {
        let of = |float, tf32| {
            let matrix = Matrix { address: 512, float, row: 16, col: 1, batch: 0 };
            let (a, b, c) = (matrix, matrix, matrix);
            arithmetic(&key(&Product {
                batch: 1,
                m: 16,
                n: 16,
                k: 16,
                a,
                b,
                c,
                bias: None,
                alpha: 1.0,
                beta: 0.0,
                tf32,
            }))
        };
        assert_eq!(of(Float::F32, false), (COMPUTE_32F, R_32F));
        assert_eq!(of(Float::F32, true), (COMPUTE_32F_FAST_TF32, R_32F));
        assert_eq!(of(Float::BF16, true), (COMPUTE_32F, R_32F));
        assert_eq!(of(Float::F64, true), (COMPUTE_64F, R_64F));
    }

    #[test]
    fn products_of_one_shape_and_alignment_share_a_plan() {
        let matrix = |address, row| Matrix { address, float: Float::BF16, row, col: 1, batch: 0 };
        let product = |address| Product {
            batch: 1,
            m: 4,
            n: 8,
            k: 16,
            a: matrix(address, 16),
            b: matrix(512, 8),
            c: matrix(1024, 8),
            bias: None,
            alpha: 1.0,
            beta: 0.0,
            tf32: false,
        };
        assert_eq!(key(&product(512)), key(&product(4096)));
        assert_ne!(key(&product(512)), key(&product(528)));
        assert_eq!((alignment(512), alignment(528), alignment(6)), (256, 16, 2));
    }
}
