//! Reads the stack sizes of kernels from cubin files, which compilers write: [`stacks`].
//!
//! A cubin is an ELF file. Its section `.nv.info` has, for each kernel, the minimum stack size of a thread, which
//! `cuobjdump --dump-resource-usage` also prints. The section refers to a kernel by its index in the symbol table.

use std::ffi::c_void;

/// The bytes of the ELF header, of a section header, and of a symbol.
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// The types of the symbol table and of `.nv.info` sections.
const SYMBOLS: u32 = 2;
/// The type of a section without bytes in the file.
const NO_BITS: u32 = 8;
const INFORMATION: u32 = 0x7000_0000;

/// The format of attributes that have a size and a value, and the attribute with the minimum stack size.
const SIZED: u8 = 4;
const MIN_STACK: u8 = 0x12;

/// The maximum size of a file.
const MOST_BYTES: u64 = 1 << 30;

/// A section's type, name, offset and size, and the index of its linked section.
struct Section {
    kind: u32,
    name: usize,
    offset: usize,
    bytes: usize,
    link: usize,
}

/// The kernels in a cubin that need a stack, with the stack size per thread. Empty if `image` is not a cubin.
pub(super) fn stacks(image: &[u8]) -> Vec<(String, u32)> {
    read(image).unwrap_or_default()
}

/// The bytes of a cubin in memory, up to the end of its last section. `None` if the image is not a cubin but, for
/// example, PTX.
///
/// # Safety
///
/// `image` must be a valid argument of `cuModuleLoadData`: a cubin, a fatbin, or PTX that ends with a zero byte.
pub(super) unsafe fn in_memory<'image>(image: *const c_void) -> Option<&'image [u8]> {
    let start = image.cast::<u8>();
    if start.is_null() {
        return None;
    }
    // SAFETY: the shortest image, an empty text, has one byte. Each further byte is read only if the previous one matched a
    // cubin's.
    let is_elf = b"\x7fELF".iter().enumerate().all(|(at, byte)| unsafe { start.add(at).read() } == *byte);
    if !is_elf {
        return None;
    }
    // SAFETY: a cubin begins with a header of this size.
    let header = unsafe { std::slice::from_raw_parts(start, HEADER_BYTES) };
    let (table, entries) = table(header)?;
    let table_end = table.checked_add(entries.checked_mul(SECTION_BYTES)?)?;
    // SAFETY: according to the header, the section table ends there.
    let with_table = unsafe { std::slice::from_raw_parts(start, within(table_end)?) };
    let ends = (0..entries).map(|nth| {
        let section = section(with_table, table, nth)?;
        section.offset.checked_add(if section.kind == NO_BITS { 0 } else { section.bytes })
    });
    let end = ends.collect::<Option<Vec<usize>>>()?.into_iter().max()?.max(table_end);
    // SAFETY: according to the section table, the last section ends there.
    Some(unsafe { std::slice::from_raw_parts(start, within(end)?) })
}

/// Returns the length, unless it exceeds the maximum size of a file.
fn within(bytes: usize) -> Option<usize> {
    (bytes as u64 <= MOST_BYTES).then_some(bytes)
}

fn read(image: &[u8]) -> Option<Vec<(String, u32)>> {
    if !image.starts_with(b"\x7fELF") {
        return None;
    }
    let (table, entries) = table(image)?;
    let sections = (0..entries).map(|nth| section(image, table, nth));
    let sections = sections.collect::<Option<Vec<Section>>>()?;
    let names = sections.get(usize::from(number::<2>(image, 0x3e).map(u16::from_le_bytes)?))?;
    let part = |section: &Section| image.get(section.offset..section.offset.checked_add(section.bytes)?);
    let is_information = |it: &&Section| {
        it.kind == INFORMATION
            && text(image, names.offset.saturating_add(it.name)).as_deref() == Some(".nv.info")
    };
    let symbols = sections.iter().find(|it| it.kind == SYMBOLS)?;
    let (table, words) = (part(symbols)?, sections.get(symbols.link)?);
    let information = part(sections.iter().find(is_information)?)?;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some([format, attribute, low, high]) = number::<4>(information, at) {
        let bytes = if format == SIZED { usize::from(u16::from_le_bytes([low, high])) } else { 0 };
        if (format, attribute, bytes) == (SIZED, MIN_STACK, 8) {
            let symbol = u32::from_le_bytes(number(information, at + 4)?) as usize;
            let stack_bytes = u32::from_le_bytes(number(information, at + 8)?);
            let name = u32::from_le_bytes(number(table, symbol.checked_mul(SYMBOL_BYTES)?)?) as usize;
            if stack_bytes > 0 {
                found.push((text(image, words.offset.checked_add(name)?)?, stack_bytes));
            }
        }
        at += 4 + bytes;
    }
    Some(found)
}

/// The offset of the section table, and the number of sections.
fn table(header: &[u8]) -> Option<(usize, usize)> {
    let offset = u64::from_le_bytes(number(header, 0x28)?);
    Some((usize::try_from(offset).ok()?, usize::from(u16::from_le_bytes(number(header, 0x3c)?))))
}

fn section(image: &[u8], table: usize, nth: usize) -> Option<Section> {
    let at = table.checked_add(nth.checked_mul(SECTION_BYTES)?)?;
    let short = |offset: usize| Some(u32::from_le_bytes(number(image, at.checked_add(offset)?)?));
    let long =
        |offset: usize| usize::try_from(u64::from_le_bytes(number(image, at.checked_add(offset)?)?)).ok();
    Some(Section {
        name: short(0)? as usize,
        kind: short(4)?,
        offset: long(0x18)?,
        bytes: long(0x20)?,
        link: short(0x28)? as usize,
    })
}

fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The text at an offset, up to its zero byte.
fn text(bytes: &[u8], at: usize) -> Option<String> {
    let text = bytes.get(at..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUBIN: &[u8] = include_bytes!("../../tests/cubin/spills.cubin");

    #[test]
    fn the_stack_is_what_cuobjdump_prints() {
        assert_eq!(stacks(CUBIN), [("spills".to_owned(), 4096)]);
    }

    #[test]
    fn a_cubin_in_memory_ends_with_its_sections_and_a_text_is_none() {
        // SAFETY: these are a complete cubin, and texts that end with a zero byte.
        let lengths = unsafe {
            [CUBIN, b".version 8.0\0", b"\x7f\0", b"\0"]
                .map(|it| in_memory(it.as_ptr().cast()).map(<[u8]>::len))
        };
        // After the last section, there are only the program headers, which a loader reads: five headers of 56 bytes.
        assert_eq!(lengths, [Some(CUBIN.len() - 5 * 56), None, None, None]);
    }

    #[test]
    fn a_damaged_cubin_has_no_stacks_and_does_no_harm() {
        for end in 0..CUBIN.len() {
            assert!(stacks(&CUBIN[..end]).len() <= 1);
        }
        for at in 0..CUBIN.len() {
            let mut damaged = CUBIN.to_vec();
            damaged[at] ^= 0xff;
            assert!(stacks(&damaged).len() <= 2);
        }
    }
}
