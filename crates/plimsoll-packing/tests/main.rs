//! The integration tests of `plimsoll-packing`, one module per subject.

mod bad_input;
mod data;
mod hard;
mod known;
mod random;
mod world;
