//! `plimsoll top` next to PyTorch programs under `plimsoll run`, on the stand-in; and `--prometheus`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{Folder, json, plimsoll, stderr, stdout};
use crate::standin;
use crate::torch::Torch;

const TRAINS: &str = "
import time, torch, torch.nn as nn
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(3)]).cuda()
model.register_buffer('mean', torch.zeros(1024, device='cuda'))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
kept = []
for step in range(100000):
    loss = model(torch.randn(256, 1024, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(torch.zeros(256, device='cuda'))
    time.sleep(0.05)
";

/// A program that is killed when the test ends.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn top(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path());
    command.arg("top").args(args).output().expect("the program starts")
}

/// Waits until the process has completed some steps. Returns a sample.
fn stepping(folder: &Folder, pid: &str) -> Value {
    for _ in 0..3000 {
        let output = top(folder, &[pid, "--json"]);
        if output.status.success() && json(&output)["steps"].as_u64() > Some(9) {
            return json(&output);
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("no steps: {}", stderr(&top(folder, &[pid, "--json"])));
}

/// The server's response to a request.
fn answer(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).expect("a connection");
    client.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("an answer");
    text
}

#[needs(pytorch)]
#[test]
fn a_pytorch_program_and_the_ranks_of_a_job_can_be_watched() {
    let torch = Torch::new("top", TRAINS);
    let folder = &torch.folder;
    let rank = |rank: &str| {
        let mut command = standin::run(&torch, &[], &[]);
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_PORT", "29512");
        Running::start(&mut command)
    };
    let (first, second) = (rank("0"), rank("1"));
    let sample = stepping(folder, &first.pid());
    let bytes = |name: &str| sample[name].as_u64().unwrap_or_else(|| panic!("{name} in {sample}"));
    assert_eq!((sample["schema"].as_str(), sample["rank"].as_u64()), (Some("plimsoll.live/1"), Some(0)));
    assert!(sample["device"].as_str().is_some_and(|it| it.starts_with("cuda:0 (NVIDIA A100")), "{sample}");
    let category = |name: &str| sample["by_category"][name].as_u64();
    assert_eq!(category("parameter"), Some(12 << 20), "{sample}");
    assert_eq!((category("optimizer state"), category("buffer")), (Some(12 << 20), Some(4096)), "{sample}");
    let sum: u64 =
        sample["by_category"].as_object().expect("categories").values().filter_map(Value::as_u64).sum();
    assert_eq!(sum, bytes("allocated_bytes"));
    assert!(bytes("device_free_bytes") < bytes("capacity_bytes") && bytes("peak_reserved_bytes") > 0);
    // The program allocates 1 KiB more with each step.
    assert_eq!(sample["growth_bytes_per_step"], 1024.0, "{sample}");

    // `run` waits in a separate process; the program has its own process ID.
    let pids = [sample["pid"].to_string(), stepping(folder, &second.pid())["pid"].to_string()];
    assert_ne!(pids[0], first.pid());
    let job = stdout(&top(folder, &[]));
    for piece in
        ["2 of a job on this machine", "29512", &pids[0], &pids[1], "The rank with the least headroom"]
    {
        assert!(job.contains(piece), "{piece} in {job}");
    }
    assert_eq!(stdout(&top(folder, &["--json"])).lines().count(), 2);

    // Writes a snapshot on request.
    let output = top(folder, &["--snapshot", &first.pid()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let file = stdout(&output).trim().to_owned();
    assert!(file.starts_with(folder.path()) && file.ends_with("snapshot-rank0-1.pickle"), "{file}");
    let explained = plimsoll(&["explain", &file, "--json"]);
    assert_eq!(explained.status.code(), Some(0), "{}", stderr(&explained));

    // The figures of both ranks.
    let mut server = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    server.env("XDG_RUNTIME_DIR", folder.path()).args(["top", "--prometheus", "0"]);
    let mut server = Running::start(&mut server);
    let mut said = String::new();
    BufReader::new(server.0.stderr.take().expect("stderr")).read_line(&mut said).expect("a line");
    let address = said.trim().trim_start_matches("serving http://").trim_end_matches("/metrics").to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{said}");
    let has_row = |metrics: &str, rank: &str| {
        metrics.lines().any(|line| line.starts_with("plimsoll_allocated_bytes{") && line.contains(rank))
    };
    // A rank that does not answer in time is omitted from one response.
    let mut metrics = String::new();
    for _ in 0..20 {
        metrics = answer(&address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        if ["rank=\"0\"", "rank=\"1\""].iter().all(|rank| has_row(&metrics, rank)) {
            break;
        }
    }
    assert!(["rank=\"0\"", "rank=\"1\""].iter().all(|rank| has_row(&metrics, rank)), "{metrics}");
    assert!(answer(&address, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 404"));
    // The port is in use.
    let again = top(folder, &["--prometheus", &address]);
    assert_eq!(again.status.code(), Some(3));
    assert!(stderr(&again).contains("another program listens there"), "{}", stderr(&again));
}

#[test]
fn a_run_serves_its_figures_until_it_ends() {
    let folder = Folder::new("run-prometheus");
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path());
    command.args(["run", "--prometheus", "0", "--", "sleep", "60"]);
    let mut run = Running::start(&mut command);
    let mut said = String::new();
    BufReader::new(run.0.stderr.take().expect("stderr")).read_line(&mut said).expect("a line");
    let address = said.trim().trim_start_matches("serving http://").trim_end_matches("/metrics").to_owned();
    // Idle clients and incomplete requests do not delay others.
    let connect = || TcpStream::connect(&address).expect("a connection");
    let idle: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost:").expect("half a request");
    let began = Instant::now();
    let metrics = answer(&address, &format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert!(metrics.starts_with("HTTP/1.1 200 OK") && began.elapsed() < Duration::from_secs(4), "{metrics}");
    let other = answer(&address, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 421") && !other.contains("plimsoll_"), "{other}");
    // The connection ends, with a response or without.
    half.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut rest = Vec::new();
    let end = half.read_to_end(&mut rest).map_err(|why| why.kind());
    assert!(end != Err(ErrorKind::WouldBlock) && rest.len() < 1000, "{end:?} {rest:?}");
    drop(idle);
    drop(run);
    let is_over = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        TcpStream::connect(&address).is_err()
    });
    assert!(is_over, "the server ends with the program");
}

#[test]
fn an_address_that_cannot_be_used_is_a_clear_error() {
    for (args, code, said) in [
        (&["top", "--prometheus", "here"][..], 2, "HOST:PORT"),
        (&["top", "--prometheus", "70000"], 2, "65535"),
        (&["run", "--prometheus", "1.2.3", "--", "true"], 2, "HOST:PORT"),
        (
            &["run", "--prometheus", "192.0.2.1:9000", "--", "true"],
            3,
            "this machine does not have that address",
        ),
        (&["run", "--prometheus", "--no-watch", "--", "true"], 2, "cannot be used with"),
        (&["top", "--snapshot", "4000000"], 3, "process 4000000: there is no such process"),
    ] {
        let output = plimsoll(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    }
}
