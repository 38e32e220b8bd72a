//! The file system as the program sees it: the program sees its own changes, but the disk does not change
//! ([`Writes`]).
//!
//! A supervisor (`supervise.rs`), a second process of `plimsoll`, sets up the view and starts the user's program in it.
//! The supervisor keeps running, so that no process of the program is left if the first `plimsoll` process is killed.
//! At the end, it lists what would have been written.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `caches.rs` | caches of downloads and compilers, in which new files stay |
//! | `spec.rs` | the options about writes, and the supervisor's instructions |
//! | `written.rs` | the list of what would have been written |
//! | `places.rs` | which folders get an overlay, from the table of mounts |
//! | `uncopied.rs` | files that an overlay in a user namespace cannot copy |
//! | `namespace.rs` | the mount namespace, and the parts of an overlay |
//! | `overlay.rs` | an overlay on each writable folder, in a mount namespace |
//! | `redirect.rs` | the same with a library that is loaded into the program, if overlays do not work |
//! | `supervise.rs` | the supervisor, and how a run ends |
//!
//! `_predict/view.py` in the Python package sets up the same view for each fork that serves a trial of `plan`.

mod caches;
mod namespace;
mod overlay;
mod places;
mod redirect;
mod spec;
mod supervise;
mod uncopied;
mod written;

pub(super) use self::spec::Spec;
pub(crate) use self::spec::{Isolation, Replaced, Writes};
pub(crate) use self::supervise::run;
pub(super) use self::supervise::{ENDING, Ending};
pub(super) use self::uncopied::{UNCOPIED, UNCOPIED_BY_A_COMMAND};
pub(super) use self::written::{File, Kind, Written};
