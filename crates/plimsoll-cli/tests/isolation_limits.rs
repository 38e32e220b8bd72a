//! Cases in which `plimsoll predict` cannot keep writes off the disk, and the disk space that a program sees
//! and may use.

use std::fs;
use std::process::{Command, Output};

use plimsoll_needs::needs;

use crate::isolation::{ISOLATIONS, answer, laid_out, predict};
use crate::program::{Folder, stderr};

/// Makes the system calls that an overlay and Landlock need fail, then executes the command.
const REFUSED: &str = r##"
import ctypes, os, platform, struct, sys
unshare = 97 if platform.machine() == "aarch64" else 272
steps = [(0x20, 0, 0, 0), (0x15, 1, 0, unshare), (0x15, 0, 1, 444), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(text))
library = ctypes.CDLL(None, use_errno=True)
assert library.prctl(38, 1, 0, 0, 0) == 0 and library.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"##;

#[needs(python3)]
#[test]
fn where_no_write_can_be_kept_off_the_disk_the_program_is_not_run() {
    let folder = laid_out("isolation-refused");
    fs::write(folder.file("refused.py"), REFUSED).expect("written");
    let mut command = Command::new("python3");
    command.args([
        &folder.file("refused.py"),
        env!("CARGO_BIN_EXE_plimsoll"),
        "predict",
        "--gpu",
        "T4",
        "--",
    ]);
    command.args(["sh", "-c", "echo new > work/a01"]).current_dir(&folder.0).env("HOME", folder.file("home"));
    let output = command.output().expect("it starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("overlay: ") && said.contains("redirect: ") && said.contains("--allow-writes"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(folder.file("work/a01")).expect("there"), "old");
}

#[needs(python3)]
#[test]
fn a_program_finds_the_free_space_of_the_disk() {
    let folder = laid_out("isolation-space");
    let script = "import os, shutil, sys\nat = shutil.disk_usage('.').total, os.statvfs(os.open('.', 0)).f_blocks\nprint('space', *at, file=sys.stderr)";
    let of = |output: Output| -> Option<String> {
        stderr(&output).lines().find(|line| line.starts_with("space ")).map(str::to_owned)
    };
    let on_the_disk =
        of(Command::new("python3").args(["-c", script]).current_dir(&folder.0).output().expect("it starts"));
    assert!(on_the_disk.is_some());
    for isolation in ISOLATIONS {
        let mut command = predict(isolation, &["--scratch", "64MiB"], &folder, &["python3", "-c", script]);
        assert_eq!(of(command.output().expect("it starts")), on_the_disk, "{isolation}");
    }
}

#[needs(python3)]
#[test]
fn a_program_that_writes_more_than_the_scratch_is_told_that_there_is_no_space() {
    let program = "
import errno, time
with open('sparse', 'wb') as file:
    file.seek(10 << 20)
    file.write(b'end')
try:
    for part in range(200):
        with open(f'big{part}', 'wb') as file:
            file.write(b'x' * (1 << 17))
        time.sleep(0.02)
except OSError as why:
    print('no space' if why.errno == errno.ENOSPC else why, flush=True)
";
    for isolation in ISOLATIONS {
        let folder = Folder::new(&format!("isolation-scratch-{isolation}"));
        fs::create_dir(folder.file("home")).expect("made");
        let output = predict(isolation, &["--scratch", "2MiB"], &folder, &["python3", "-c", program])
            .output()
            .expect("it starts");
        let report = answer(&output);
        assert!(stderr(&output).contains("\nno space\n"), "{isolation}: {}", stderr(&output));
        assert_eq!(report["writes"]["scratch_full"], true, "{isolation}: {report:#}");
        let largest = &report["writes"]["files"][0];
        assert_eq!(
            (&largest["path"], &largest["bytes"]),
            (&folder.file("sparse").into(), &((10 << 20) + 3).into())
        );
        assert_eq!(folder.names(), ["home"]);
    }
}

/// Changes another program's file in /dev/shm in every possible way. Uses shared memory, locks, queues and its own
/// workers.
const SHARED: &str = r##"
import ctypes, multiprocessing, multiprocessing.shared_memory as shared, os, sys
old = sys.argv[1]

def check(name, found, wanted):
    if found != wanted:
        print("WRONG", name, repr(found), flush=True)

def tried(work):
    try:
        return work()
    except OSError as why:
        return type(why).__name__

def syscall():
    libc = ctypes.CDLL(None, use_errno=True)
    number = 56 if os.uname().machine == "aarch64" else 257
    fd = libc.syscall(number, -100, old.encode(), os.O_RDWR)
    return "opened" if fd >= 0 and os.write(fd, b"raw") else "refused"

def child(name, lock, queue):
    memory = shared.SharedMemory(name)
    with lock:
        memory.buf[0] += 1
    memory.close()
    queue.put(os.getpid())

if __name__ == "__main__":
    check("content", open(old).read(), "old")
    open(old, "w").write("new")
    check("open", open(old).read(), "new")
    memory = shared.SharedMemory(os.path.basename(old))
    memory.buf[:3] = b"shm"
    check("memory", open(old).read(), "shm")
    memory.close()
    if os.environ["PLIMSOLL_ISOLATION"] == "redirect":
        check("system call", syscall(), "refused")
    memory.unlink()
    check("unlink", os.path.exists(old), False)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        memory, lock, queue = shared.SharedMemory(create=True, size=4096), context.Lock(), context.Queue()
        workers = [context.Process(target=child, args=(memory.name, lock, queue)) for _ in range(2)]
        [it.start() for it in workers], [it.join() for it in workers]
        check(method, (memory.buf[0], len({queue.get() for _ in workers})), (2, 2))
        memory.close(), memory.unlink()
        with context.Pool(2) as pool:
            check("pool", pool.map(abs, [-1, -2]), [1, 2])
    print("DONE", flush=True)
"##;

#[needs(python3)]
#[test]
fn a_program_uses_shared_memory_and_changes_none_of_another_program() {
    let folder = laid_out("isolation-shared");
    fs::write(folder.file("shared.py"), SHARED).expect("written");
    for isolation in ISOLATIONS {
        let old = format!("/dev/shm/plimsoll-test-{isolation}-{}", std::process::id());
        fs::write(&old, "old").expect("written");
        let mut command =
            predict(isolation, &[], &folder, &["python3", folder.file("shared.py").as_str(), old.as_str()]);
        let output = command.env("PLIMSOLL_ISOLATION", isolation).output().expect("it starts");
        let (said, left) = (stderr(&output), fs::read_to_string(&old));
        fs::remove_file(&old).expect("there");
        assert!(said.contains("DONE") && !said.contains("WRONG"), "{isolation}: {said}");
        assert_eq!(left.ok().as_deref(), Some("old"), "{isolation}");
        answer(&output);
    }
}
