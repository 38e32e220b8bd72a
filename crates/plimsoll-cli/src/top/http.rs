//! The server of `--prometheus`: HTTP/1.1, one answer for a connection, no state. Figures are asked of the processes when a client asks.
//!
//! For `plimsoll run --prometheus`, which becomes the program, a second process serves. It is no child of the program's, which may
//! wait for its children, and ends when the program does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll::memory::live::{self, Sample};

use super::{of, prometheus};
use crate::exit::{Exit, Failure};
use crate::output;

/// The most connections at a time.
const MOST_CLIENTS: usize = 16;
/// The most bytes of a request.
const MOST_BYTES: usize = 8 << 10;
/// The time for a request, and for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is checked whether the program still runs.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The variable that makes the process of [`until`] start another one and end, so that it has no parent.
const DETACH: &str = "PLIMSOLL_TOP_DETACH";

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

fn bound(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|why| {
        let advice = match why.kind() {
            ErrorKind::AddrInUse => {
                ": another program listens there; if it is plimsoll, it serves this program, too"
            }
            ErrorKind::AddrNotAvailable => ": this machine does not have that address",
            ErrorKind::PermissionDenied => ": ports below 1024 are for root",
            _ => "",
        };
        Failure::new(
            Exit::Unreadable,
            format!(
                "--prometheus {address}: {why}{advice}\nchoose another address, such as 127.0.0.1:{}",
                address.port().max(1024).saturating_add(1)
            ),
        )
    })
}

/// Serves until the user ends it.
///
/// # Errors
/// The address cannot be used.
pub(super) fn serve(address: SocketAddr) -> Result<(), Failure> {
    let listener = bound(address)?;
    announce(&listener);
    for client in listener.incoming() {
        accept(client);
    }
    Ok(())
}

fn announce(listener: &TcpListener) {
    if let Ok(address) = listener.local_addr() {
        output::progress(&format!("serving http://{address}/metrics"));
    }
}

/// Starts a process that serves beside this one, until this one ends.
///
/// # Errors
/// The address cannot be used; the process cannot be started.
pub(crate) fn beside(address: SocketAddr) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Unreadable, format!("--prometheus {address}: {why}"));
    let listener = bound(address)?;
    announce(&listener);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["top", "--until", &std::process::id().to_string()]).env(DETACH, "1");
    command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null());
    command.status().map(drop).map_err(failed)
}

/// Serves on the socket that is stdin until a process ends.
///
/// # Errors
/// There is no such socket.
pub(super) fn until(pid: u32) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Unreadable, format!("--until: {why}"));
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    if std::env::var_os(DETACH).is_some() {
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["top", "--until", &pid.to_string()]).env_remove(DETACH);
        command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is the program's.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        return command.spawn().map(drop).map_err(failed);
    }
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).map_err(failed)?;
    while is_running(pid) {
        match listener.accept() {
            Ok((client, _)) => accept(client.set_nonblocking(false).map(|()| client)),
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
    Ok(())
}

/// Whether a process runs: a zombie does not.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the command's name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Answers in a thread; errors concern only the client.
fn accept(client: io::Result<TcpStream>) {
    let Ok(client) = client else { return thread::sleep(LOOK_EVERY) };
    if CLIENTS.load(Ordering::Relaxed) >= MOST_CLIENTS {
        return;
    }
    CLIENTS.fetch_add(1, Ordering::Relaxed);
    let answer = move || {
        let _ = answer(client);
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().name("plimsoll-metrics".to_owned()).spawn(answer).is_err() {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let Some(request) = request(&mut client)? else { return Ok(()) };
    let (status, kind, body) = response(&request, samples);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if request.starts_with("HEAD ") { "" } else { body.as_str() };
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

/// Reads up to the end of the headers; `None` if there is none in time.
fn request(client: &mut TcpStream) -> io::Result<Option<String>> {
    let (until, mut read, mut chunk) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !read.windows(4).any(|it| it == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || read.len() > MOST_BYTES {
            return Ok(None);
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut chunk)? {
            0 => return Ok(None),
            length => read.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&read).into_owned()))
}

/// Status, content type, body.
fn response(request: &str, samples: impl FnOnce() -> Vec<Sample>) -> (&'static str, &'static str, String) {
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            ("200 OK", "text/plain; version=0.0.4", prometheus::render(&samples()))
        }
        ("GET" | "HEAD", "/") => {
            ("200 OK", "text/plain", "plimsoll: the figures are at /metrics\n".to_owned())
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "the figures are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    }
}

/// A sample of each process that answers, asked at the same time.
fn samples() -> Vec<Sample> {
    let asked: Vec<_> =
        live::running().unwrap_or_default().into_iter().map(|pid| thread::spawn(move || of(pid))).collect();
    asked.into_iter().filter_map(|it| it.join().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::text::tests::sample;

    #[test]
    fn metrics_are_served_at_their_path_and_other_requests_are_refused() {
        let of = |request: &str| response(request, || vec![sample()]);
        let (status, kind, body) = of("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((status, kind), ("200 OK", "text/plain; version=0.0.4"));
        assert!(body.contains("plimsoll_allocated_bytes{"), "{body}");
        assert_eq!(of("GET /other HTTP/1.1\r\n\r\n").0, "404 Not Found");
        for request in ["POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n", "rubbish\r\n\r\n"] {
            assert_eq!(of(request).0, "405 Method Not Allowed", "{request}");
        }
    }

    #[test]
    fn this_process_runs_and_one_of_no_number_does_not() {
        assert!(is_running(std::process::id()) && !is_running(u32::MAX));
    }
}
