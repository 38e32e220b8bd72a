//! A library that is loaded into every process of a program under `plimsoll predict --isolation redirect`. The
//! program's writes go to a private tree (`tree.rs`, `change.rs`), and it finds its files there; the disk stays
//! unchanged.
//!
//! It replaces functions of the C library (`exports.rs`, `about.rs`, `folders.rs`, `listing.rs`, `load.rs`, `names.rs`,
//! `shared.rs`; `calls.rs` has the mechanism). Code
//! that does not call those functions cannot write, because Landlock and a filter of system calls refuse it
//! (`confine.rs`). `build.rs` compiles this folder separately, without dependencies.
//!
//! Paths are resolved as in the kernel, by following links part by part, but in two layers: the tree, and the
//! disk below it.

#![allow(clippy::missing_safety_doc, reason = "they are the C library's functions, with its contracts")]

mod about;
mod calls;
mod change;
mod confine;
mod exports;
mod folders;
mod listing;
mod load;
mod names;
mod shared;
mod sys;
mod tree;

use std::ffi::{CStr, c_char};

use tree::Tree;

/// Switches to a copy of the tree; called by a fork that serves a trial of `plan`.
///
/// # Safety
/// The path ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_redirect_take(folder: *const c_char) {
    // SAFETY: the caller guarantees this.
    let folder = unsafe { CStr::from_ptr(folder) };
    Tree::set(folder.to_bytes().to_vec());
}
