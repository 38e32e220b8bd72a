//! The integration tests of `plimsoll-standin`, in one program, as linking takes most of a test's build: a module a subject.

mod convolution;
mod libraries;
mod library;
mod one_device;
mod ordinary_calls;
mod outside;
mod place;
mod reports;
mod several_devices;
