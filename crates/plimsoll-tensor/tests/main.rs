//! The integration tests of `plimsoll-tensor`, in one program because linking takes most of a test's build time: one module per
//! subject.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod attention;
mod autograd;
mod bad_input;
mod budget;
mod call;
mod checkpoint;
mod conv;
mod cross_entropy;
mod cuda;
mod devices;
mod dtypes;
mod forms;
mod forms_in_place;
mod free_hooks;
mod fused;
mod gradcheck;
mod gradients;
mod graphs;
mod group;
mod in_place;
mod inference;
mod keeps_little;
mod late;
mod memory;
mod memory_story;
mod moving;
mod open_autograd;
mod operators;
mod pinned;
mod pool;
mod pytorch;
mod recompute;
mod reentrancy;
mod refusals;
mod rematerialize;
mod residency;
mod second;
mod second_order;
mod signs;
mod streams;
mod table;
mod traced;
mod waist;
