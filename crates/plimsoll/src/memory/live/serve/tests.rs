//! Server and client, and misbehaving clients.

use std::io::BufRead;

use plimsoll_tensor::{SimConfig, Tensor};

use super::super::Watcher;
use super::*;

fn device() -> Device {
    let device = Device::sim(SimConfig::new(1 << 30));
    device.set_memory_limit(64 << 20);
    device
}

/// A socket for this test.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-live-{name}-{}.sock", std::process::id()))
}

fn ask(watcher: &mut Watcher) -> Sample {
    watcher.sample().unwrap().expect("the program is still there")
}

#[test]
fn samples_follow_the_program_until_serving_is_over() {
    let (device, path) = (device(), path("follow"));
    let live = serve_at(&device, path.clone()).unwrap();
    let mut watcher = Watcher::connect(&path).unwrap();
    let before = ask(&mut watcher);
    assert_eq!((before.allocated_bytes, before.steps, before.pid), (0, 0, std::process::id()));
    let mut kept = Vec::new();
    for step in 0..10 {
        device.mark_step(step);
        kept.push(Tensor::zeros(&[128], &device).unwrap());
    }
    let after = ask(&mut watcher);
    assert_eq!((after.allocated_bytes, after.reserved_bytes, after.steps), (5120, 2 << 20, 10));
    assert_eq!((after.step_levels[9], after.growth_bytes_per_step), (9 * 512, Some(512.0)));
    assert_eq!((after.by_category["temporary"], after.by_category.values().sum::<u64>()), (5120, 5120));
    assert_eq!((after.limit_bytes, after.largest_cached_bytes), (Some(64 << 20), Some((2 << 20) - 5120)));
    drop(live);
    assert!(!path.exists());
    let gone = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(20));
        watcher.sample().unwrap().is_none()
    });
    assert!(gone, "a watcher sees the end of serving");
}

#[test]
fn a_client_has_the_program_write_a_snapshot() {
    let (device, path) = (device(), path("snapshot"));
    let _live = serve_at(&device, path.clone()).unwrap();
    let _x = Tensor::zeros(&[128], &device).unwrap();
    let mut watcher = Watcher::connect(&path).unwrap();
    let written = watcher.snapshot().unwrap();
    assert!(fs::metadata(&written).unwrap().len() > 0, "{}", written.display());
    // The next answer is a sample again.
    assert_eq!(ask(&mut watcher).allocated_bytes, 512);
    fs::remove_file(written).unwrap();
}

#[test]
fn clients_that_never_read_or_send_garbage_hold_up_neither_the_program_nor_others() {
    let (device, path) = (device(), path("hostile"));
    let _live = serve_at(&device, path.clone()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for filling in [b'\n', 0xff, b'{'] {
            let (path, over) = (&path, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut client) = UnixStream::connect(path) else { continue };
                    client.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                    // This client never reads; when it can no longer send, it reconnects.
                    while !over.load(Ordering::Relaxed) && client.write_all(&[filling; 1 << 16]).is_ok() {}
                }
            });
        }
        let mut watcher = Watcher::connect(&path).unwrap();
        for step in 0..10 {
            let begin = Instant::now();
            for _ in 0..100 {
                drop(Tensor::zeros(&[1024], &device).unwrap());
            }
            device.mark_step(step);
            assert!(
                begin.elapsed() < Duration::from_secs(1),
                "a hundred requests took {:?}",
                begin.elapsed()
            );
            assert_eq!(ask(&mut watcher).steps, step + 1);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn any_line_is_answered_with_one_line() {
    let (device, path) = (device(), path("lines"));
    let _live = serve_at(&device, path.clone()).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    io::BufReader::new(client).read_line(&mut answer).unwrap();
    assert!(answer.starts_with(r#"{"schema":"plimsoll.live/1","pid":"#), "{answer}");
}

#[test]
fn the_number_of_watchers_is_limited() {
    let (device, path) = (device(), path("many"));
    let _live = serve_at(&device, path.clone()).unwrap();
    let mut watchers: Vec<Watcher> = (0..MOST_WATCHERS).map(|_| Watcher::connect(&path).unwrap()).collect();
    watchers.iter_mut().for_each(|watcher| drop(ask(watcher)));
    assert_eq!(Watcher::connect(&path).unwrap().sample().unwrap(), None);
    // After one disconnects, another can connect.
    watchers.pop();
    let is_free = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(20));
        Watcher::connect(&path).unwrap().sample().unwrap().is_some()
    });
    assert!(is_free, "no room for another watcher");
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_dead_ones_is_replaced() {
    let (device, path) = (device(), path("again"));
    let live = serve_at(&device, path.clone()).unwrap();
    let refused = serve_at(&device, path.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    assert!(refused.to_string().contains("already"), "{refused}");
    drop(live);
    // A listener that is closed leaves its socket file behind.
    drop(UnixListener::bind(&path).unwrap());
    let live = serve_at(&device, path.clone()).unwrap();
    assert_eq!(live.path(), path);
    assert_eq!(ask(&mut Watcher::connect(&path).unwrap()).device, "sim");
}

#[test]
fn where_there_is_no_folder_the_error_names_the_path() {
    let refused = serve_at(&device(), PathBuf::from("/nonexistent/1.sock")).unwrap_err();
    assert!(refused.to_string().starts_with("/nonexistent/1.sock: "), "{refused}");
}
