//! Prints the environment variables with which a program runs on the stand-in: `cargo run -p plimsoll-standin
//! --example environment FOLDER`. It makes the folder, with links to the library that Cargo built. Then, in a shell:
//!
//! ```sh
//! env $(cargo run -q -p plimsoll-standin --example environment /tmp/standin) python -c "import torch; print(torch.cuda.get_device_name())"
//! ```

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::io;
use std::path::PathBuf;

use plimsoll_standin::{place, settings};

fn main() -> io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        println!("usage: environment FOLDER");
        return Ok(());
    };
    // Cargo puts examples into a folder below the library's.
    let program = std::env::current_exe()?;
    let built =
        program.parent().and_then(|examples| examples.parent()).map(|target| target.join(place::LIBRARY));
    let library = built
        .filter(|built| built.is_file())
        .ok_or_else(|| io::Error::other(format!("{} is not built", place::LIBRARY)))?;
    place::lay_out(&folder, &library)?;
    println!("{}=H100", settings::GPU);
    for (name, value) in place::environment(&folder, |name| std::env::var_os(name)) {
        println!("{name}={}", value.display());
    }
    Ok(())
}
