//! The server of `--prometheus`: HTTP/1.1 by hyper, one response per connection, no state. Each request asks the processes for
//! their figures. A client has five seconds for its request, and an idle one does not delay others.
//!
//! `plimsoll run --prometheus` turns into the program itself, so a second process is the server. It is not a child of
//! the program, because the program may wait for its children. It ends when the program does.
//!
//! Note [Whose host]. If a site's name suddenly resolves to this machine (DNS rebinding), a page of that site in a browser can
//! send requests here and read the response. So a request's Host must be an address, `localhost` or this machine's name.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use plimsoll::memory::live::{self, Sample};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::process::of;
use super::prometheus;
use crate::exit::{Exit, Failure};
use crate::output;

/// The maximum number of connections. If there are more, the oldest is closed.
const MOST_CLIENTS: usize = 256;
/// The maximum size of a request's head, in bytes.
const MOST_BYTES: usize = 16 << 10;
/// The time limit for a request, and for its response.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to check whether the program is still running.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The environment variable that makes the process of [`until`] start a second process and exit, so that
/// the second one is not a child of the program.
const DETACH: &str = "PLIMSOLL_TOP_DETACH";

fn bound(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|why| {
        let advice = match why.kind() {
            ErrorKind::AddrInUse => {
                ": another program listens there; if that is plimsoll, it also serves this program's figures"
            }
            ErrorKind::AddrNotAvailable => ": this machine does not have that address",
            ErrorKind::PermissionDenied => ": ports below 1024 need root",
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
/// If the address cannot be used.
pub(super) fn serve(address: SocketAddr) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Unreadable, format!("--prometheus {address}: {why}"));
    let listener = bound(address)?;
    announce(&listener);
    runtime().and_then(|runtime| runtime.block_on(accept(listener))).map_err(failed)
}

fn announce(listener: &TcpListener) {
    if let Ok(address) = listener.local_addr() {
        output::progress(&format!("serving http://{address}/metrics"));
    }
}

/// Starts a process that serves concurrently with this one, until this one ends.
///
/// # Errors
/// If the address cannot be used, or the process cannot be started.
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
/// If stdin is not a socket.
pub(super) fn until(pid: u32) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Unreadable, format!("--until: {why}"));
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    if std::env::var_os(DETACH).is_some() {
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["top", "--until", &pid.to_string()]).env_remove(DETACH);
        command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is meant for the program only.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        return command.spawn().map(drop).map_err(failed);
    }
    let listener = TcpListener::from(socket);
    let runtime = runtime().map_err(failed)?;
    runtime.block_on(async {
        let server = tokio::spawn(accept(listener));
        while is_running(pid) && !server.is_finished() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    runtime.shutdown_background();
    Ok(())
}

/// Whether a process is running; a zombie does not count.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the command's name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// Answers each client in its own task; an error affects only that client.
async fn accept(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut clients: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // For example, there are too many open files.
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        clients.retain(|client| !client.is_finished());
        if clients.len() >= MOST_CLIENTS
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        clients.push_back(tokio::spawn(answer(client)));
    }
}

async fn answer(client: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        // Processes answer within seconds. In the meantime, other clients are served.
        let ask = || async { tokio::task::spawn_blocking(samples).await.unwrap_or_default() };
        Ok::<_, Infallible>(response(&request.into_parts().0, ask).await)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false).max_buf_size(MOST_BYTES);
    let connection = http.serve_connection(TokioIo::new(client), service);
    // The time limit also applies to a client that does not read its response.
    let _ = tokio::time::timeout(PATIENCE * 2, connection).await;
}

async fn response<F: Future<Output = Vec<Sample>>>(
    request: &Parts,
    ask: impl FnOnce() -> F,
) -> Response<String> {
    let says = |status: StatusCode, body: &str| (status, "text/plain; charset=utf-8", body.to_owned());
    let is_read = matches!(request.method, Method::GET | Method::HEAD);
    let (status, kind, body) = match (is_read, request.uri.path()) {
        _ if !is_for_us(request) => says(
            StatusCode::MISDIRECTED_REQUEST,
            "use an IP address, localhost or this machine's name: no other host name is served\n",
        ),
        (false, _) => says(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
        (true, "/metrics") => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            (StatusCode::OK, kind, prometheus::render(&ask().await))
        }
        (true, "/") => says(StatusCode::OK, "plimsoll: the metrics are at /metrics\n"),
        (true, _) => says(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if !is_read {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Whether a request has exactly one Host header, which is an address or a name of this machine. See Note [Whose host].
fn is_for_us(request: &Parts) -> bool {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Some(host) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let host = host.host().trim_start_matches('[').trim_end_matches(']');
    let own = rustix::system::uname();
    let names = ["localhost", own.nodename().to_str().unwrap_or("localhost")];
    host.parse::<IpAddr>().is_ok() || names.iter().any(|name| host.eq_ignore_ascii_case(name))
}

/// A sample from each process that answers. All are asked at the same time.
fn samples() -> Vec<Sample> {
    let asked: Vec<_> =
        live::running().unwrap_or_default().into_iter().map(|pid| thread::spawn(move || of(pid))).collect();
    asked.into_iter().filter_map(|it| it.join().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::text::tests::sample;

    fn of(method: &str, path: &str, hosts: &[&str]) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let runtime = runtime().unwrap();
        let answer = runtime
            .block_on(response(&request.body(()).unwrap().into_parts().0, || async { vec![sample()] }));
        (answer.status().as_u16(), answer.into_body())
    }

    #[test]
    fn metrics_are_served_at_their_path_and_other_requests_are_refused() {
        let (status, body) = of("GET", "/metrics?x=1", &["127.0.0.1:9466"]);
        assert!(status == 200 && body.contains("plimsoll_allocated_bytes{"), "{body}");
        assert_eq!(of("GET", "/other", &["localhost"]).0, 404);
        assert_eq!(of("POST", "/metrics", &["localhost"]).0, 405);
    }

    #[test]
    fn other_hosts_are_not_served() {
        let own = rustix::system::uname();
        let own = own.nodename().to_str().unwrap().to_ascii_uppercase();
        for host in ["LOCALHOST:1", "[::1]:9466", "10.1.2.3", own.as_str()] {
            assert_eq!(of("GET", "/metrics", &[host]).0, 200, "{host}");
        }
        for hosts in [
            &["evil.example:9466"][..],
            &["localhost.evil.example"],
            &["localhost", "evil.example"],
            &["a b"],
            &[],
        ] {
            assert_eq!(of("GET", "/metrics", hosts).0, 421, "{hosts:?}");
        }
    }

    #[test]
    fn this_process_runs_and_one_of_no_number_does_not() {
        assert!(is_running(std::process::id()) && !is_running(u32::MAX));
    }
}
