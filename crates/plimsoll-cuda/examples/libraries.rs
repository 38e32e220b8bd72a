//! Prints this machine's first GPU and NVIDIA's libraries, or what is missing: `cargo run -p plimsoll-cuda --example
//! libraries`.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use plimsoll_cuda::{Gpu, Search};

fn main() {
    let search = Search::from_env();
    match Gpu::open(0, search, 0) {
        Ok(gpu) => println!("{:#?}\n{:#?}", gpu.facts(), gpu.libraries()),
        Err(why) => println!("no GPU: {why}"),
    }
}
