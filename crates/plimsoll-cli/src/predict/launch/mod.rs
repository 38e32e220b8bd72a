//! Starts the user's program on the simulated GPU (plimsoll-standin) and waits for its end. Returns how the program
//! ended ([`ended::Ended`]) and what it wrote ([`view::Ending`](super::view)).
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `embedded.rs` | the shared library that a release build contains |
//! | `standin.rs` | finds the shared library and checks its version |
//! | `host.rs` | the library that counts memory on the host |
//! | `signals.rs` | Ctrl-C and similar signals |
//! | `session.rs` | what all runs of one command share: the libraries, a folder, the signals |
//! | `surroundings.rs` | private caches, and an `nvidia-smi` |
//! | `ended.rs` | how a program ended |
//! | `supervised.rs` | runs a command under the supervisor of `../view` |

mod embedded;
pub(super) mod ended;
pub(super) mod host;
pub(super) mod session;
mod signals;
mod standin;
pub(super) mod supervised;
pub(super) mod surroundings;
