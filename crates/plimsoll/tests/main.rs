//! The integration tests of `plimsoll`, one module for each subject. They are one program because linking takes most of a test's
//! build time.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod adamw_8bit;
mod backend;
mod bad_input;
mod budget;
mod captured_gradients;
mod captured_step;
mod checkpoint;
mod conv_layers;
mod criteria;
mod devices;
mod distributed;
mod distributions;
mod fit;
mod flipped_bits;
mod init;
mod layer_case;
mod layers;
mod log;
mod memory;
mod memory_story;
mod models;
mod modules;
mod network;
mod no_silent_training;
mod offloaded_state;
mod on_device;
mod open_models;
mod open_modules;
mod optim;
mod optimizers;
mod other_layers;
mod ported;
mod pretrained;
mod recorded;
mod recorded_steps;
mod rematerialize;
mod schedulers;
mod scripts;
mod serialize;
mod sharded;
mod snapshot;
mod step_in_backward;
mod stochastic_rounding;
mod techniques;
mod tensor_parallel;
#[cfg(feature = "tokenizers")]
mod tokenizers;
mod traced;
mod trainer;
mod vision;
mod world;
