//! Loads libraries that the program has written, such as extensions that it compiles.

use std::ffi::{c_char, c_int, c_void};

use crate::folders;
use crate::sys;

/// A library's path, and the C library's function that loads it.
#[repr(C)]
struct Load {
    path: *const c_char,
    load: *mut c_void,
}

/// Where to load a library from: the tree, or the path itself. A path in the tree is never freed, because the C library
/// may read it later.
extern "C" fn place(path: *const c_char) -> Load {
    let own = if path.is_null() { None } else { folders::program(path) };
    let path = own.map_or(path, |own| own.leak().as_ptr().cast());
    Load { path, load: sys::next(c"dlopen") }
}

// The C library looks for dependencies according to the file of its caller, which must therefore be the program's file
// and not this library. So each function jumps instead of calling.

/// Loads a library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rsi",
        "call {place}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        place = sym place,
    )
}

/// Loads a library.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "str x1, [sp, 16]",
        "bl {place}",
        "mov x16, x1",
        "ldr x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x16",
        place = sym place,
    )
}
