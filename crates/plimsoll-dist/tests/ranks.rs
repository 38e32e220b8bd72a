//! Collectives over threads and over sockets move the same bytes, for several numbers of ranks.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_dist::store::{Client, Server};
use plimsoll_dist::{Communicator, Content, Environment, Error, JoinOptions, Launcher, Op, StoreHost, World};

/// Runs `f` on each rank of a group of threads.
fn on_threads<T: Send>(size: usize, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::threads(size);
    thread::scope(|scope| {
        let running: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| f(rank))).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

pub(crate) fn environment(rank: usize, size: usize, port: u16) -> Environment {
    Environment {
        launcher: Launcher::Env,
        rank,
        size,
        local_rank: rank,
        local_size: size,
        address: "127.0.0.1".to_owned(),
        port,
        store_host: StoreHost::Launcher,
        run: "/test/".to_owned(),
    }
}

/// Runs `f` on each rank of a group that is connected by sockets, in one process.
fn on_sockets<T: Send>(size: usize, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let server = Server::bind("127.0.0.1:0").expect("a port");
    let (port, f) = (server.address().port(), &f);
    thread::scope(|scope| {
        let join = |rank| {
            scope.spawn(move || {
                let world =
                    World::join(environment(rank, size, port), &JoinOptions::default()).expect("a world");
                f(world.communicator())
            })
        };
        let running: Vec<_> = (0..size).map(join).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

/// Byte `at` of the part that rank `from` sends to rank `to`.
fn byte(from: usize, to: usize, at: usize) -> u8 {
    (from * 91 + to * 37 + at * 11 + at / 251) as u8
}

fn check(ranks: &Communicator, part: usize) -> Result<(), Error> {
    let (rank, size) = (ranks.rank(), ranks.size());
    let mut gathered = vec![0; part * size];
    (0..part).for_each(|at| gathered[rank * part + at] = byte(rank, 0, at));
    ranks.all_gather(&mut gathered, "gathered")?;
    let expected: Vec<u8> = (0..size).flat_map(|from| (0..part).map(move |at| byte(from, 0, at))).collect();
    assert!(gathered == expected, "all_gather of {part} bytes a rank on rank {rank} of {size}");

    let send: Vec<u8> = (0..size).flat_map(|to| (0..part).map(move |at| byte(rank, to, at))).collect();
    let mut received = vec![0; part * size];
    ranks.all_to_all(&send, &mut received, "exchanged")?;
    let expected: Vec<u8> =
        (0..size).flat_map(|from| (0..part).map(move |at| byte(from, rank, at))).collect();
    assert!(received == expected, "all_to_all of {part} bytes a rank on rank {rank} of {size}");

    for root in 0..size {
        let mut bytes: Vec<u8> = (0..part).map(|at| byte(rank, 9, at)).collect();
        ranks.broadcast(&mut bytes, root, "sent")?;
        assert!(
            bytes.iter().enumerate().all(|(at, found)| *found == byte(root, 9, at)),
            "broadcast from {root}"
        );
    }
    ranks.barrier()
}

#[test]
fn collectives_have_the_same_bytes_on_threads() {
    for size in 1..=5 {
        for part in [0, 1, 7, 70_000] {
            on_threads(size, |ranks| check(ranks, part))
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .expect("no error");
        }
    }
}

#[test]
fn collectives_have_the_same_bytes_over_sockets() {
    for size in 2..=4 {
        // The largest part exceeds the system's buffers; even then, no two ranks may deadlock.
        let all = |ranks: &Communicator| {
            [0, 1, 7, 20_000, 6_000_000].into_iter().try_for_each(|part| check(ranks, part))
        };
        on_sockets(size, all).into_iter().collect::<Result<Vec<_>, _>>().expect("no error");
    }
}

#[test]
fn a_duplicate_is_used_by_another_thread_at_the_same_time() {
    // Rank 0 calls the group's collective first, the others that of the duplicate: on the same connections, each would
    // wait for the other.
    let both = |ranks: &Communicator| {
        let [again, others] = [ranks.duplicate()?, ranks.new_group(&[ranks.rank()], "own")?.duplicate()?];
        assert_eq!((again.rank(), again.size(), others.size()), (ranks.rank(), ranks.size(), 1));
        thread::scope(|scope| {
            let (gate, opened) = mpsc::channel();
            let beside = scope.spawn(move || {
                let waits = ranks.rank() == 0;
                if waits {
                    opened.recv().expect("the other thread sends");
                }
                check(&again, 70_000).map(drop)
            });
            if ranks.rank() > 0 {
                thread::sleep(Duration::from_millis(30));
            }
            check(ranks, 7)?;
            // The other thread has ended already, unless this is rank 0.
            let _ = gate.send(());
            beside.join().expect("no panic")
        })
    };
    for size in 2..=4 {
        for errors in [on_threads(size, both), on_sockets(size, both)] {
            errors.into_iter().collect::<Result<Vec<_>, _>>().expect("no error");
        }
    }
}

#[test]
fn ranks_in_different_collectives_are_told_so() {
    let different = |ranks: &Communicator| match ranks.rank() {
        0 => ranks.all_gather(&mut [0; 8], "a"),
        _ => ranks.all_gather(&mut [0; 16], "a"),
    };
    let dtype = |ranks: &Communicator| {
        let dtype = if ranks.rank() == 0 { "float32" } else { "int64" };
        ranks.all_gather(&mut [0; 8], Content { label: "a", dtype })
    };
    for errors in
        [on_threads(2, different), on_sockets(2, different), on_threads(2, dtype), on_sockets(2, dtype)]
    {
        assert!(errors.iter().any(|error| matches!(error, Err(Error::Mismatch { .. }))), "{errors:?}");
        assert!(errors.iter().all(Result::is_err), "{errors:?}");
    }
    let errors = on_threads(2, different);
    assert_eq!(
        errors[0].as_ref().unwrap_err().to_string(),
        "rank 1 is in all_gather 0 of `a` (16 bytes) while this rank is in all_gather 0 of `a` (8 bytes): all ranks must call the \
         same collectives, with the same sizes and types, in the same order"
    );
}

#[test]
fn calls_that_no_rank_can_make_are_refused_and_move_nothing() {
    on_threads(2, |ranks| {
        assert!(matches!(ranks.all_gather(&mut [0; 3], ""), Err(Error::Argument { .. })));
        assert!(matches!(ranks.all_to_all(&[0; 4], &mut [0; 2], ""), Err(Error::Argument { .. })));
        assert!(matches!(ranks.broadcast(&mut [0; 4], 2, ""), Err(Error::Argument { .. })));
        assert_eq!(ranks.record().calls().count(), 0);
        ranks.barrier().expect("both are here");
        assert_eq!(ranks.record().last().map(|call| call.op), Some(Op::Barrier));
    });
}

#[test]
fn records_of_all_ranks_have_one_hash() {
    let hashes = on_threads(3, |ranks| check(ranks, 5).map(|()| ranks.record().hash()).expect("no error"));
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
}

#[test]
fn ranks_with_other_options_are_told_which() {
    let server = Arc::new(Server::bind("127.0.0.1:0").expect("a port"));
    let join = |rank| {
        let port = server.address().port();
        let options = JoinOptions { options: format!("--batch-size {}", 8 + rank), ..JoinOptions::default() };
        thread::spawn(move || World::join(environment(rank, 2, port), &options).map(drop))
    };
    let errors: Vec<String> = [join(0), join(1)]
        .into_iter()
        .map(|rank| rank.join().expect("a rank").unwrap_err().to_string())
        .collect();
    assert!(
        errors[0].contains("rank 1 was started with") && errors[0].contains("--batch-size 9"),
        "{}",
        errors[0]
    );
    assert!(
        errors[1].contains("rank 0 was started with") && errors[1].contains("--batch-size 8"),
        "{}",
        errors[1]
    );
}

#[test]
fn ranks_of_worlds_of_different_sizes_do_not_wait_for_ranks_that_never_come() {
    let server = Arc::new(Server::bind("127.0.0.1:0").expect("a port"));
    let start = Instant::now();
    let join = |rank, size| {
        let port = server.address().port();
        thread::spawn(move || World::join(environment(rank, size, port), &JoinOptions::default()).map(drop))
    };
    let errors: Vec<Error> = [join(0, 2), join(1, 3)]
        .into_iter()
        .map(|rank| rank.join().expect("a rank").expect_err("a world of another size"))
        .collect();
    assert!(matches!(errors[0], Error::WorldSize { rank: 1, theirs: 3, ours: 2, .. }), "{}", errors[0]);
    assert!(matches!(errors[1], Error::WorldSize { rank: 0, theirs: 2, ours: 3, .. }), "{}", errors[1]);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let server = Server::bind("127.0.0.1:0").expect("a port");
    let options = JoinOptions { timeout: Duration::from_millis(300), ..JoinOptions::default() };
    let error = World::join(environment(1, 4, server.address().port()), &options).unwrap_err();
    assert!(matches!(&error, Error::Missing { missing, .. } if *missing == [0, 2, 3]), "{error}");
}

#[test]
fn a_rank_that_introduces_itself_and_does_not_connect_is_named() {
    let server = Server::bind("127.0.0.1:0").expect("a port");
    let port = server.address().port();
    let mut store = Client::connect("127.0.0.1", port, Duration::from_secs(20)).expect("a connection");
    let introduction = format!("b\n7\ncpu\n127.0.0.1:1\n2\n{}\n", env!("CARGO_PKG_VERSION"));
    store.set("/test/rank/1", introduction.as_bytes()).expect("set");
    let options = JoinOptions { timeout: Duration::from_secs(1), ..JoinOptions::default() };
    let error = World::join(environment(0, 2, port), &options).unwrap_err();
    assert!(matches!(&error, Error::Missing { missing, seconds: 1 } if *missing == [1]), "{error}");
}

/// The groups of this rank in a grid with `columns` columns: its column and its row.
fn grid(ranks: &Communicator, columns: usize) -> [Communicator; 2] {
    let (rank, size) = (ranks.rank(), ranks.size());
    let column: Vec<usize> = (rank % columns..size).step_by(columns).collect();
    let row: Vec<usize> = (rank / columns * columns..).take(columns).collect();
    [ranks.new_group(&column, "column"), ranks.new_group(&row, "row")].map(|group| group.expect("a group"))
}

#[test]
fn groups_of_some_ranks_share_the_connections() {
    let run = |ranks: &Communicator| {
        let [column, row] = grid(ranks, 3);
        assert_eq!([column.size(), row.size()], [2, 3]);
        assert_eq!(column.rank() * 3 + row.rank(), ranks.rank());
        for part in [0, 5, 70_000] {
            for group in [ranks, &row, &column, &row] {
                check(group, part)?;
            }
        }
        // A group of a group.
        let pair = row.new_group(&[0, 2], "pair");
        pair.map_or(Ok(()), |pair| check(&pair, 3))
    };
    assert!(on_threads(6, run).into_iter().all(|outcome| outcome.is_ok()));
    assert!(on_sockets(6, run).into_iter().all(|outcome| outcome.is_ok()));
}

#[test]
fn ranks_in_different_groups_notice() {
    let run = |ranks: &Communicator| {
        let [a, b] = ["a", "b"].map(|name| ranks.new_group(&[0, 1], name).expect("a group"));
        if ranks.rank() == 0 { a.barrier() } else { b.barrier() }
    };
    for outcome in on_threads(2, run).into_iter().chain(on_sockets(2, run)) {
        let error = outcome.expect_err("a mismatch");
        assert!(matches!(error, Error::Mismatch { .. } | Error::RankLost { .. }), "{error}");
        assert!(error.to_string().contains("group `"), "{error}");
    }
}

#[test]
fn what_is_no_group_is_refused() {
    let ranks = Communicator::threads(4);
    for wrong in [&[0, 1][..], &[2, 1], &[2, 4], &[2, 2], &[]] {
        let error = ranks[2].new_group(wrong, "wrong").expect_err("refused").to_string();
        assert!(error.contains("on rank 2 of 4: give ranks in ascending order"), "{error}");
    }
    assert_eq!(ranks[2].new_group(&[1, 2], "right").expect("a group").name(), "right");
}
