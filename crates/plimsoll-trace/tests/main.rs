//! The integration tests of `plimsoll-trace`. They are one program, with a module per subject, because linking takes
//! most of a test's build time.

mod backward;
mod bodies;
mod busy;
mod conformance;
mod data_quality;
mod files;
mod fragmentation;
mod hostile;
mod hostile_explanations;
mod hostile_snapshots;
mod leaks;
mod one_name;
mod packed;
mod pages;
mod peaks;
mod pressure;
mod program;
mod programs;
mod random_programs;
mod recorder;
mod replay;
mod shapes;
mod side_by_side;
mod snapshots;
mod states;
mod timeline;
mod unused;
mod whatif;
