//! The store: our client with our server, and each with PyTorch's own TCPStore.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_dist::store::{Client, Server};
use plimsoll_needs::needs;

const SOON: Duration = Duration::from_secs(20);

fn server() -> Server {
    Server::bind("127.0.0.1:0").expect("a port")
}

fn client(server: &Server) -> Client {
    Client::connect("127.0.0.1", server.address().port(), SOON).expect("a connection")
}

/// Checks what every store must do, ours and PyTorch's.
fn check(store: &mut Client) {
    store.set("/a", b"1\0x").expect("set");
    assert_eq!(store.get("/a", SOON).expect("get").as_deref(), Some(&b"1\0x"[..]));
    assert!(store.has("/a").expect("has") && !store.has("/b").expect("has"));
    assert_eq!((store.add("/n", 2).expect("add"), store.add("/n", -5).expect("add")), (2, -3));
    assert_eq!(store.get("/n", SOON).expect("get").as_deref(), Some(&b"-3"[..]));
    assert_eq!(store.set_first("/first", b"me").expect("set_first"), b"me");
    assert_eq!(store.set_first("/first", b"you").expect("set_first"), b"me");
    let start = Instant::now();
    assert_eq!(store.get("/never", Duration::from_millis(100)).expect("get"), None);
    assert!(start.elapsed() >= Duration::from_millis(100));
    // The connection still works.
    assert_eq!(store.get("/a", SOON).expect("get").as_deref(), Some(&b"1\0x"[..]));
}

#[test]
fn our_client_and_our_server_agree() {
    let server = server();
    check(&mut client(&server));
}

#[test]
fn a_waiting_client_is_told_when_the_key_comes() {
    let server = server();
    let (mut waiting, mut setting) = (client(&server), client(&server));
    waiting.start_waiting("/late").expect("wait");
    assert!(!waiting.is_there(Duration::from_millis(20)).expect("no answer"));
    setting.set("/late", b"").expect("set");
    assert!(waiting.is_there(SOON).expect("an answer"));
    let waits = thread::spawn(move || waiting.get("/later", SOON));
    thread::sleep(Duration::from_millis(20));
    setting.set("/later", b"now").expect("set");
    assert_eq!(waits.join().expect("a thread").expect("get").as_deref(), Some(&b"now"[..]));
}

#[test]
fn numbers_from_many_clients_add_up() {
    let server = server();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut store = client(&server);
                (0..100).for_each(|_| drop(store.add("/n", 1)));
            });
        }
    });
    assert_eq!(client(&server).add("/n", 0).expect("add"), 800);
}

#[test]
fn a_server_that_goes_away_is_an_error_and_no_hang() {
    let server = server();
    let mut store = client(&server);
    store.set("/a", b"").expect("set");
    store.start_waiting("/never").expect("wait");
    drop(server);
    let error = store.is_there(SOON).unwrap_err().to_string();
    assert!(error.contains("it closed the connection"), "{error}");
    // A server that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let mut store = Client::connect("127.0.0.1", port, SOON)
        .and_then(|store| store.answer_within(Duration::from_millis(50)))
        .expect("a connection");
    let error = store.add("/n", 1).unwrap_err().to_string();
    assert!(error.contains("it does not answer"), "{error}");
    let error = Client::connect("127.0.0.1", 1, Duration::from_millis(50)).unwrap_err().to_string();
    assert!(
        error.contains("127.0.0.1:1") && error.contains("is rank 0, or its launcher, running there?"),
        "{error}"
    );
}

#[test]
fn what_is_not_the_protocol_ends_its_own_connection_only() {
    let server = server();
    let mut good = client(&server);
    let hello = [&[0u8][..], &0x3C85_F7CE_u32.to_le_bytes()].concat();
    let huge = [&hello[..], &[1], &u64::MAX.to_le_bytes()].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), [&hello[..], &[99]].concat(), huge, vec![0, 1, 2, 3, 4]]
    {
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        stream.write_all(&bytes).expect("sent");
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed");
    }
    good.set("/a", b"1").expect("set");
    assert!(good.has("/a").expect("has"));
}

/// Starts `pytorch_store.py`, next to this file, with a Python that has PyTorch.
fn pytorch(mode: &str, port: u16) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch_store.py");
    let mut command = Command::new(std::env::var("PLIMSOLL_PYTORCH").expect("needs pytorch"));
    command.arg(script).arg(mode).arg(port.to_string());
    command
}

#[needs(pytorch)]
#[test]
fn pytorchs_client_joins_our_server() {
    let server = server();
    let mut store = client(&server);
    store.set("/ours", b"from rust").expect("set");
    let output = pytorch("client", server.address().port()).output().expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(store.get("/theirs", SOON).expect("get").as_deref(), Some(&b"from python"[..]));
}

#[needs(pytorch)]
#[test]
fn our_client_joins_pytorchs_server() {
    let free = server().address().port();
    let mut python = pytorch("server", free).stdin(Stdio::piped()).spawn().expect("python");
    let mut store = Client::connect("127.0.0.1", free, Duration::from_secs(60)).expect("a connection");
    check(&mut store);
    assert_eq!(store.get("/theirs", SOON).expect("get").as_deref(), Some(&b"from python"[..]));
    store.set("/ours", b"from rust").expect("set");
    assert!(python.wait().expect("python").success());
}
