//! The tests of this crate, in one program with a module for each subject.

mod death;
mod environment;
mod faults;
mod ranks;
mod store;
