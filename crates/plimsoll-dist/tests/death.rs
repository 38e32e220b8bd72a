//! If one process is killed, all others name it within 2 s, regardless of what they are doing.

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_dist::store::Server;
use plimsoll_dist::{Environment, JoinOptions, World};

const ME: &str = "death::a_killed_rank_is_named_by_all_others";
const GROUPS: &str = "death::a_killed_rank_is_named_by_the_ranks_of_other_groups";

#[allow(clippy::print_stdout, reason = "how the parent process reads it")]
/// The program of a rank: it calls collectives forever, or only waits for a failure.
fn rank() {
    let environment = Environment::of_process().expect("variables").expect("a launcher");
    let world = World::join(environment, &JoinOptions::default()).expect("a world");
    println!("ready");
    let error = match std::env::var("PLIMSOLL_TEST_BUSY") {
        Ok(_) => world.health().wait().expect("a lost rank").to_string(),
        Err(_) => loop {
            if let Err(error) = world.communicator().all_gather(&mut vec![1; 4 << 20], "weights") {
                break error.to_string();
            }
        },
    };
    println!("error: {}", error.replace('\n', " | "));
}

fn start(rank: usize, size: usize, port: u16, busy: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", ME, "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("PLIMSOLL_TEST_RANK", "1").env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("TORCHELASTIC_RUN_ID", "death").env("TORCHELASTIC_USE_AGENT_STORE", "True");
    command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    if busy {
        command.env("PLIMSOLL_TEST_BUSY", "1");
    }
    command.spawn().expect("a process")
}

/// What a rank prints.
type Said = Lines<BufReader<ChildStdout>>;

/// Waits until all ranks are ready.
fn ready(ranks: &mut [Child]) -> Vec<Said> {
    let said = |rank: &mut Child| BufReader::new(rank.stdout.take().expect("a pipe")).lines();
    let mut all: Vec<Said> = ranks.iter_mut().map(said).collect();
    for said in &mut all {
        assert!(said.by_ref().map(|line| line.expect("a line")).any(|line| line.ends_with("ready")));
    }
    all
}

/// The error that a rank prints.
fn error(said: &mut Said) -> String {
    said.map(|line| line.expect("a line")).find(|line| line.starts_with("error: ")).expect("an error")
}

#[allow(clippy::print_stdout, reason = "how the parent process reads it")]
/// The program of a rank of a group of two, which calls collectives of the group. The first rank hosts the store.
fn rank_of_group() {
    let environment = Environment::of_process().expect("variables").expect("a launcher");
    let world = World::join(environment, &JoinOptions::default()).expect("a world");
    let first = world.environment().rank / 2 * 2;
    let group = world.communicator().new_group(&[first, first + 1], "pair").expect("a group");
    println!("ready");
    let error = loop {
        if let Err(error) = group.all_gather(&mut vec![1; 4096], "weights") {
            break error.to_string();
        }
    };
    println!("error: {}", error.replace('\n', " | "));
}

#[test]
fn a_killed_rank_is_named_by_the_ranks_of_other_groups() {
    if std::env::var("PLIMSOLL_TEST_RANK").is_ok() {
        return rank_of_group();
    }
    for killed in [0, 1, 2, 3, 0, 3] {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", GROUPS, "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::null());
            command.env("PLIMSOLL_TEST_RANK", "1").env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.spawn().expect("a process")
        };
        let mut ranks: Vec<Child> = (0..4).map(start).collect();
        let mut said = ready(&mut ranks);
        thread::sleep(Duration::from_millis(50));
        ranks[killed].kill().expect("killed");
        for rank in (0..4).filter(|rank| *rank != killed) {
            let error = error(&mut said[rank]);
            assert!(error.contains(&format!("rank {killed} (host ")), "rank {rank}: {error}");
        }
        for mut rank in ranks {
            let _ = rank.wait();
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    if std::env::var("PLIMSOLL_TEST_RANK").is_ok() {
        return rank();
    }
    for busy in [false, true] {
        const SIZE: usize = 4;
        let server = Server::bind("127.0.0.1:0").expect("a port");
        let mut ranks: Vec<Child> =
            (0..SIZE).map(|rank| start(rank, SIZE, server.address().port(), busy)).collect();
        let mut said = ready(&mut ranks);
        thread::sleep(Duration::from_millis(100));
        let (pid, start) = (ranks[2].id(), Instant::now());
        ranks[2].kill().expect("killed");
        for rank in [0, 1, 3] {
            let error = error(&mut said[rank]);
            assert!(
                error.contains("rank 2 (host ") && error.contains(&format!("pid {pid}, cpu) is gone: ")),
                "{error}"
            );
            assert!(error.contains("its connection closed"), "{error}");
            assert_eq!(error.contains("this rank was in all_gather"), !busy, "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        for mut rank in ranks {
            let _ = rank.wait();
        }
    }
}
