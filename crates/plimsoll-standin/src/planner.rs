//! cuDNN's own answers without a GPU: the kernels that its heuristics choose for a graph, and their workspaces.
//!
//! Since version 9.8, cuDNN can plan for a device that is described in JSON. A separate process does this (the
//! *planner*): it loads the cuDNN of the user's PyTorch, without PyTorch and without the stand-in in front of it, and
//! answers over a socket. A crash of cuDNN without a device therefore cannot reach the user's program.
//!
//! | file | what it holds |
//! |---|---|
//! | `client.rs` | in the user's process: starts the planner, sends requests, falls back to the model if it fails |
//! | `memo.rs` | in the user's process: answers that other processes of the same command got |
//! | `wire.rs` | requests and replies as bytes |
//! | `description.rs` | the GPU's description in cuDNN's format |
//! | `cudnn.rs` | in the planner: the real library's graph API |
//! | `clusters.rs` | in the planner: the layout of the multiprocessors, which the JSON cannot express |
//!
//! Some cuDNN engines call cuBLASLt, which needs a device. In the planner the loader finds the stand-in under
//! cuBLASLt's name (`place.rs`); it reports one algorithm, as in the user's process.

pub(crate) mod client;
mod clusters;
mod cudnn;
mod description;
mod memo;
pub(crate) mod wire;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use self::cudnn::Cudnn;
use self::wire::{Reply, Request};

/// Answers requests on this process's stdin, which is a socket, until it is closed.
///
/// # Errors
///
/// I/O errors: stdin is not a socket, or the connection broke.
pub fn serve() -> std::io::Result<()> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut cudnn = None;
    while let Some(message) = wire::receive(&mut socket)? {
        let reply = match Request::read(&message) {
            Some(request) => answer(&mut cudnn, request),
            None => Reply::Refused { status: wire::NOT_ASKED, why: "malformed request".to_owned() },
        };
        wire::send(&mut socket, &reply.bytes())?;
    }
    Ok(())
}

fn answer(cudnn: &mut Option<Cudnn>, request: Request) -> Reply {
    let refused = |(status, why)| Reply::Refused { status, why };
    if let Request::Describe { library, device, layout } = request {
        return match Cudnn::open(&library, &device, layout.as_deref()) {
            Ok((opened, version)) => {
                *cudnn = Some(opened);
                Reply::Described { version }
            }
            Err(failure) => refused(failure),
        };
    }
    let Some(cudnn) = cudnn else {
        return refused((wire::NOT_ASKED, "no device description was sent".to_owned()));
    };
    let reply = match request {
        Request::Heuristics(graph) => cudnn.heuristics(&graph).map(Reply::Found),
        Request::Plan { heuristics, place } => cudnn.plan(heuristics, place).map(Reply::Planned),
        Request::PlanOf(configuration) => cudnn.plan_of(&configuration).map(Reply::Planned),
        Request::Describe { .. } => Err((wire::NOT_ASKED, "described before".to_owned())),
    };
    reply.unwrap_or_else(refused)
}
