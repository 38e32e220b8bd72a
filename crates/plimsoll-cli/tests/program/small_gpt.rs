//! `plimsoll train gpt` with a model whose matrices are just large enough to be divided among
//! ranks.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::{json, plimsoll, stderr};

/// The job, without its batch size.
pub(crate) const SMALL: [&str; 12] =
    ["train", "gpt", "--layers", "2", "--heads", "2", "--width", "128", "--context", "8", "--sample", "3"];

pub(crate) fn train(batch_size: &str, args: &[&str]) -> Output {
    plimsoll(&[&SMALL[..], &["--batch-size", batch_size], args].concat())
}

/// The answer of a run that must succeed.
pub(crate) fn result(batch_size: &str, args: &[&str]) -> Value {
    let output = train(batch_size, &[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

/// Starts ranks that save after each step, by hand: the first hosts the store.
pub(crate) fn endless(ranks: usize, batch_size: &str, parallel: &str, args: &[&str]) -> Vec<Child> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let rank = |rank: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(SMALL).args(["--batch-size", batch_size, "--steps", "1000000", "--save-every", "1"]);
        command.args(["--parallel", parallel]).args(args);
        command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", ranks.to_string())]);
        command.envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())]);
        command.env("RAYON_NUM_THREADS", "1");
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    (0..ranks).map(rank).collect()
}

/// Checks that arguments are rejected before any file is read.
pub(crate) fn refused(batch_size: &str, args: &[&str], expected: &str) {
    let output = train(batch_size, &[&["--data", "/nowhere/text"], args].concat());
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
}

/// The bytes of the whole model, after ranks have saved it.
pub(crate) fn consolidated(run: &str) -> Vec<u8> {
    let output = plimsoll(&["checkpoint", "consolidate", run, "--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    std::fs::read(format!("{run}/model.safetensors")).expect("weights")
}
