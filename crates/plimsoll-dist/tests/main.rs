//! The tests of this crate, one program: a module a subject.

mod death;
mod environment;
mod faults;
mod ranks;
mod store;
