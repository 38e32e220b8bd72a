//! Descriptions of work for a device, as plain data: kernel launches, matrix products, fills.
//!
//! An operator describes its work with these types, using only sizes and addresses. So a description can be inspected,
//! and its kernels compiled, on a machine without a GPU.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::collective::Collective;
use crate::nccl::NcclCommunicator;
use crate::peers::PeerCopies;

/// A piece of work.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most of them are launches")]
pub enum Step {
    /// A kernel launch.
    Launch(Launch),
    /// A matrix product, by cuBLASLt.
    Product(Product),
    /// A convolution, by cuDNN.
    Convolution(Box<ConvolutionStep>),
    /// A collective, by NCCL or by copy engines.
    Collective(CollectiveStep),
    /// Sets a range of memory to zero.
    Clear {
        /// The address of the first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
    },
}

/// What moves the bytes of a collective.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// NCCL.
    Nccl(Arc<NcclCommunicator>),
    /// Copy engines.
    Peers(Arc<PeerCopies>),
}

/// A collective, as a piece of work for a stream.
#[derive(Clone, Debug)]
pub struct CollectiveStep {
    /// What moves the bytes.
    pub carrier: Carrier,
    /// The movement.
    pub collective: Collective,
}

/// The source of a kernel: CUDA C++ without headers, whose function is called `kernel`, and the definitions for its
/// compilation.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name in error messages.
    pub name: &'static str,
    /// The source that precedes it, shared by several kernels.
    pub prelude: &'static str,
    /// The text.
    pub text: &'static str,
    /// Macros that the source uses without defining them, with their values.
    pub defines: SmallVec<[(&'static str, Cow<'static, str>); 6]>,
    /// Whether it needs architecture-specific instructions such as `wgmma`. It is then compiled, for example, for `sm_90a`
    /// instead of `sm_90`.
    pub is_arch_specific: bool,
}

impl Source {
    /// A kernel source without definitions.
    pub fn new(name: &'static str, prelude: &'static str, text: &'static str) -> Source {
        Source { name, prelude, text, defines: SmallVec::new(), is_arch_specific: false }
    }

    /// The same source with one more definition.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Source {
        self.defines.push((name, value.into()));
        self
    }

    /// The same source, compiled with architecture-specific instructions.
    #[must_use]
    pub fn arch_specific(mut self) -> Source {
        self.is_arch_specific = true;
        self
    }

    /// The complete text for the compiler.
    pub fn full_text(&self) -> String {
        let mut text = String::with_capacity(self.prelude.len() + self.text.len() + 256);
        text.push_str(self.prelude);
        // The definitions follow the prelude, so that they cannot change names in it.
        for (name, value) in &self.defines {
            // Writing to a `String` never fails.
            let _ = writeln!(text, "#define {name} {value}");
        }
        text.push_str(self.text);
        text
    }

    /// Whether both sources are the same kernel. Texts are constants of the program, so their addresses are compared.
    pub fn is(&self, other: &Source) -> bool {
        std::ptr::eq(self.text, other.text) && self.defines == other.defines
    }

    /// A hash for tables. It is computed for each launch, so it avoids building the text.
    pub(crate) fn hash(&self) -> u64 {
        // The text is a constant of the program, so its address is enough.
        let mut hash = self.text.as_ptr().addr() as u64;
        let mut add = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        for (name, value) in &self.defines {
            for bytes in [name.as_bytes(), value.as_bytes()] {
                add(bytes.len() as u64);
                for chunk in bytes.chunks(8) {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    add(u64::from_ne_bytes(word));
                }
            }
        }
        hash
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's source.
    pub source: Source,
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// The arguments.
    pub args: Args,
}

/// The arguments of a kernel, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    words: SmallVec<[u64; 24]>,
    /// The offset of each argument.
    starts: SmallVec<[u32; 16]>,
    /// The index of the argument that tells the kernel where to report errors, and the kind of error that it reports.
    fault: Option<(usize, u32)>,
}

impl Args {
    /// An empty list of arguments.
    pub fn new() -> Args {
        Args::default()
    }

    fn word(mut self, word: u64) -> Args {
        self.starts.push(u32::try_from(self.words.len()).unwrap_or(u32::MAX));
        self.words.push(word);
        self
    }

    /// Adds a pointer.
    #[must_use]
    pub fn address(self, address: u64) -> Args {
        self.word(address)
    }

    /// Adds a `long long`.
    #[must_use]
    pub fn i64(self, value: i64) -> Args {
        self.word(value.cast_unsigned())
    }

    /// Adds a size as a `long long`.
    #[must_use]
    pub fn size(self, value: usize) -> Args {
        self.word(value as u64)
    }

    /// Adds an `int`.
    #[must_use]
    pub fn i32(self, value: i32) -> Args {
        self.u32(value.cast_unsigned())
    }

    /// Adds an `unsigned int`.
    #[must_use]
    pub fn u32(self, value: u32) -> Args {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        self.word(u64::from_ne_bytes(bytes))
    }

    /// Adds a `float`.
    #[must_use]
    pub fn f32(self, value: f32) -> Args {
        self.u32(value.to_bits())
    }

    /// Adds a `double`.
    #[must_use]
    pub fn f64(self, value: f64) -> Args {
        self.word(value.to_bits())
    }

    /// Adds a struct of `long long`s.
    #[must_use]
    pub fn words(mut self, words: &[u64]) -> Args {
        self.starts.push(u32::try_from(self.words.len()).unwrap_or(u32::MAX));
        self.words.extend_from_slice(words);
        self
    }

    /// Adds the prelude's `Faults` (three words), with which the kernel reports errors of this kind.
    #[must_use]
    pub fn fault(mut self, kind: u32) -> Args {
        self.fault = Some((self.words.len(), kind));
        self.words(&[0, 0, 0])
    }

    /// The kind of error that the kernel can report.
    pub fn fault_kind(&self) -> Option<u32> {
        self.fault.map(|(_, kind)| kind)
    }

    /// The total size of the arguments in bytes.
    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Fills in the `Faults` argument.
    pub(crate) fn set_fault(&mut self, words: [u64; 3]) {
        if let Some((at, _)) = self.fault {
            self.words[at..at + 3].copy_from_slice(&words);
        }
    }

    /// Pointers to the arguments, valid as long as the arguments exist.
    pub(crate) fn places(&mut self) -> SmallVec<[*mut std::ffi::c_void; 16]> {
        let words = &mut self.words;
        self.starts.iter().map(|&at| (&raw mut words[at as usize]).cast()).collect()
    }
}

/// The floating-point type of a matrix in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Float {
    /// 64 bits.
    F64,
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits with the exponent range of 32-bit floats.
    BF16,
}

/// A stack of matrices in a product. One of the strides is 1, and the other is at least the length of the dimension
/// with stride 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The address of the first element.
    pub address: u64,
    /// Its type.
    pub float: Float,
    /// The distance from one row to the next, in elements.
    pub row: usize,
    /// The distance from one column to the next, in elements.
    pub col: usize,
    /// The distance from one matrix of the stack to the next, in elements; 0 if all use the same matrix.
    pub batch: usize,
}

/// `c = alpha · a b + beta · c [+ bias]`: `m × k` by `k × n`, accumulated in 32 bits, or in 64 bits for 64-bit matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The number of matrices in the stack.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The number of terms in each sum; must not be 0.
    pub k: usize,
    /// `m × k`.
    pub a: Matrix,
    /// `k × n`.
    pub b: Matrix,
    /// `m × n`, row-major.
    pub c: Matrix,
    /// The address of a bias with one number for each column, in the result's type.
    pub bias: Option<u64>,
    /// The factor for the product.
    pub alpha: f64,
    /// The factor for the old result.
    pub beta: f64,
    /// Whether `float32` may be multiplied in TF32.
    pub tf32: bool,
}

/// A pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionPass {
    /// Computes results from images and filters.
    Forward,
    /// Computes the gradient of the images from the gradient of the results and the filters.
    ToInput,
    /// Computes the gradient of the filters from the gradient of the results and the images.
    ToWeight,
}

/// The layout of a tensor `[batch, channels, depth, height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Laid {
    /// The size of each dimension.
    pub sizes: [usize; 5],
    /// The stride of each dimension, in elements.
    pub strides: [usize; 5],
}

/// A convolution of images `x` with filters `w`, whose results are `y`, or one of its gradients. The number of groups
/// follows from the channels of `x` and `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The pass, which determines which of the three tensors is written.
    pub pass: ConvolutionPass,
    /// The type of all three tensors.
    pub float: Float,
    /// Whether `float32` may be multiplied in TF32.
    pub tf32: bool,
    /// The number of spatial dimensions. With fewer than three, the missing ones come first, with size 1.
    pub rank: usize,
    /// Images.
    pub x: Laid,
    /// Filters: `[out, in / groups, …]`.
    pub w: Laid,
    /// Results.
    pub y: Laid,
    /// The stride between windows in depth, height and width.
    pub stride: [usize; 3],
    /// The zero padding on each side.
    pub padding: [usize; 3],
    /// The distance between neighbouring elements of a window.
    pub dilation: [usize; 3],
    /// The addresses of `x`, `w` and `y`.
    pub addresses: [u64; 3],
}

/// A convolution with the work before and after it, and the work to do instead if cuDNN is missing or has no plan for it.
#[derive(Clone, Debug)]
pub struct ConvolutionStep {
    /// The convolution.
    pub convolution: Convolution,
    /// Work before it, such as changing the layout of tensors.
    pub before: Vec<Step>,
    /// Work after it, such as a bias.
    pub after: Vec<Step>,
    /// Work that replaces all three.
    pub otherwise: Vec<Step>,
}

impl Matrix {
    /// Whether a library can read a matrix with these strides without a copy.
    pub fn fits(rows: usize, cols: usize, row: usize, col: usize) -> bool {
        let along = |count: usize, stride: usize| count <= 1 || stride == 1;
        let across = |count: usize, stride: usize, length: usize| count <= 1 || stride >= length;
        (along(cols, col) && across(rows, row, cols)) || (along(rows, row) && across(cols, col, rows))
    }

    /// Whether the matrix is row-major (otherwise it is column-major), and its leading dimension.
    pub(crate) fn leading(&self, rows: usize, cols: usize) -> (bool, usize) {
        let by_rows = (cols <= 1 || self.col == 1) && (rows <= 1 || self.row >= cols);
        let (count, stride, length) = if by_rows { (rows, self.row, cols) } else { (cols, self.col, rows) };
        (by_rows, if count <= 1 { length.max(1) } else { stride })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_its_definitions_and_its_text() {
        let source =
            Source::new("test", "// prelude\n", "kernel").with("T", "float").with("N", 3.to_string());
        assert_eq!(source.full_text(), "// prelude\n#define T float\n#define N 3\nkernel");
    }

    #[test]
    fn sources_with_other_definitions_are_other_kernels() {
        let source =
            |value: &'static str| Source::new("test", "", "kernel").with("T", "float").with("N", value);
        assert!(source("3").is(&source("3")) && source("3").hash() == source("3").hash());
        let others =
            [source("4"), source("33"), source("3").with("M", "1"), Source::new("test", "", "kernel")];
        for other in others {
            assert!(!source("3").is(&other) && source("3").hash() != other.hash(), "{other:?}");
        }
    }

    #[test]
    fn each_argument_has_a_place_and_the_fault_gets_its_words() {
        let mut args = Args::new().address(1).f32(1.0).words(&[7, 8, 9]).fault(2).i32(-1);
        args.set_fault([4, 5, 6]);
        assert_eq!((args.places().len(), args.bytes(), args.fault_kind()), (5, 72, Some(2)));
        assert_eq!(&args.words[5..8], [4, 5, 6]);
    }

    #[test]
    fn strides_that_a_library_reads_are_recognized() {
        assert!(Matrix::fits(3, 4, 4, 1) && Matrix::fits(3, 4, 1, 3) && Matrix::fits(3, 4, 10, 1));
        assert!(Matrix::fits(1, 4, 0, 1) && Matrix::fits(3, 1, 1, 7));
        assert!(!Matrix::fits(3, 4, 0, 1) && !Matrix::fits(3, 4, 8, 2));
        let matrix = |row, col| Matrix { address: 0, float: Float::F32, row, col, batch: 0 };
        assert_eq!(matrix(4, 1).leading(3, 4), (true, 4));
        assert_eq!(matrix(1, 3).leading(3, 4), (false, 3));
        assert_eq!(matrix(0, 1).leading(1, 4), (true, 4));
    }
}
