//! A library that is loaded into every process of a program under `plimsoll predict --isolation redirect`. What the program writes goes to
//! a private tree (`tree.rs`, `change.rs`), and it finds its files there; the disk stays as it is.
//!
//! It takes the place of functions of the C library (`exports.rs`, `folders.rs`, `names.rs`; how: `calls.rs`). What does not call those cannot write: Landlock and a
//! filter of system calls refuse it (`confine.rs`). `build.rs` compiles this folder by itself, without dependencies.
//!
//! Files are found as the kernel finds them, by following links part by part, but in two layers: the tree, and the disk below it.

#![allow(clippy::missing_safety_doc, reason = "they are the C library's functions, with its contracts")]

mod calls;
mod change;
mod confine;
mod exports;
mod folders;
mod names;
mod sys;
mod tree;

use std::ffi::{CStr, c_char};

use tree::Tree;

/// Goes on with a copy of the tree: a fork that serves a trial of `plan` calls it.
///
/// # Safety
/// The path ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_redirect_take(folder: *const c_char) {
    // SAFETY: the caller's promise.
    let folder = unsafe { CStr::from_ptr(folder) };
    Tree::set(folder.to_bytes().to_vec());
}
