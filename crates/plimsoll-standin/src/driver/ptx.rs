//! Reads the stack sizes of kernels from PTX, which the driver compiles: [`stacks`]. It counts the declared local
//! memory; how much the compiler would spill is unknown.

use std::ffi::{CStr, c_void};

/// The text of a module in memory; `None` if the image is not PTX.
///
/// # Safety
///
/// `image` must be a valid argument of `cuModuleLoadData`: a cubin, a fatbin, or PTX that ends with a zero byte.
pub(super) unsafe fn in_memory<'image>(image: *const c_void) -> Option<&'image str> {
    if image.is_null() {
        return None;
    }
    // SAFETY: the shortest image, an empty text, has one byte.
    let first = unsafe { image.cast::<u8>().read() };
    if !(first.is_ascii_graphic() || first.is_ascii_whitespace()) || first == b'P' {
        return None;
    }
    // SAFETY: cubins and fatbins begin with other bytes (0x7f, and 0x50, which is `P`), so this is PTX, which ends with a zero.
    unsafe { CStr::from_ptr(image.cast()) }.to_str().ok().filter(|text| text.contains(".version"))
}

/// The kernels that declare local memory, with its bytes per thread.
pub(super) fn stacks(text: &str) -> Vec<(String, u32)> {
    let kernels = text.split(".entry").skip(1).map(|kernel| (name(kernel), local_bytes(kernel)));
    kernels.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn name(kernel: &str) -> &str {
    let kernel = kernel.trim_start();
    &kernel[..kernel.find(|c: char| c == '(' || c.is_whitespace()).unwrap_or(kernel.len())]
}

/// The total size of the byte arrays in local memory: `.local .align 16 .b8 stack[4096];`.
fn local_bytes(kernel: &str) -> u32 {
    let of = |line: &str| -> Option<u32> {
        let (_, array) = line.trim_start().strip_prefix(".local")?.split_once(".b8")?;
        array.split_once('[')?.1.split_once(']')?.0.trim().parse().ok()
    };
    kernel.lines().filter_map(of).fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = concat!(include_str!("../../tests/cubin/spills.ptx"), "\0");

    #[test]
    fn the_stack_is_that_of_the_cubin_made_from_it() {
        // SAFETY: a text that ends with a zero byte.
        let text = unsafe { in_memory(PTX.as_ptr().cast()) }.unwrap();
        assert_eq!(stacks(text), [("spills".to_owned(), 4096)]);
    }

    #[test]
    fn other_images_are_no_text() {
        for image in [&b"\x7fELF\0"[..], b"P\xedU\xba\0", b"\0", b"hello\0"] {
            // SAFETY: as above; nothing after the first byte of the first two is read.
            assert_eq!(unsafe { in_memory(image.as_ptr().cast()) }, None, "{image:?}");
        }
        assert_eq!(stacks(".entry"), []);
        assert_eq!(stacks(".entry a(\n.local .b8 x[\n.local .b8 y[9"), []);
    }
}
