//! The integration tests of `plimsoll-standin`. They are one program, because linking takes most of a test's build
//! time; each module covers one subject.

mod convolution;
mod kinds;
mod libraries;
mod library;
mod one_device;
mod ordinary_calls;
mod outside;
mod place;
mod reports;
mod several_devices;
