//! Changes to files by a program under `plimsoll predict`: the program sees its own changes, and the disk stays
//! unchanged, for every way to change a file and for both isolations. PyTorch is not needed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use plimsoll_needs::needs;

use plimsoll_standin::process::Stat;

use crate::program::{Folder, json, stderr};

pub(crate) const ISOLATIONS: [&str; 2] = ["overlay", "redirect"];

pub(crate) fn predict(isolation: &str, options: &[&str], folder: &Folder, command: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    program
        .args(["predict", "--json", "--gpu", "T4", "--isolation", isolation])
        .args(options)
        .arg("--")
        .args(command);
    program.current_dir(&folder.0).env("HOME", folder.file("home")).env_remove("XDG_CACHE_HOME");
    program
}

/// The answer of a program that imports no torch.
#[track_caller]
pub(crate) fn answer(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(4), "{}", stderr(output));
    json(output)
}

/// All properties of the files in a folder that a program could change.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let it = fs::symlink_metadata(&path).expect("there");
        let content = match () {
            () if it.is_dir() => String::new(),
            () if it.is_symlink() => format!("{:?}", fs::read_link(&path)),
            () => format!("{:?}", fs::read(&path)),
        };
        let about = format!("{:o} {} {} {} {content}", it.mode(), it.nlink(), it.mtime(), it.mtime_nsec());
        found.insert(path.display().to_string(), about);
        if it.is_dir() {
            found.extend(files(&path));
        }
    }
    found
}

/// Changes files in many ways, each on its own old file, and reports changes that it does not see.
const CHANGES: &str = r##"
import ctypes, glob, gzip, logging, mmap, os, pathlib, shutil, socket, sqlite3, subprocess, sys, tempfile, threading, time
early_remove, early_open = os.remove, open
os.chdir(sys.argv[1])
here = os.getcwd()

def check(name, work, wanted=None):
    try:
        found = work()
        if found != wanted and wanted is not None:
            print("WRONG", name, repr(found), "for", repr(wanted), flush=True)
    except BaseException as why:
        print("FAILED", name, repr(why), flush=True)

def read(name):
    with open(name) as file:
        return file.read()

def old(name):
    assert read(name) == "old", name
    return os.path.join(here, name)

def by_descriptor():
    fd = os.open(old("a01"), os.O_WRONLY | os.O_TRUNC); os.write(fd, b"new"); os.close(fd); return read("a01")

def by_map():
    with open(old("a02"), "r+b") as file, mmap.mmap(file.fileno(), 0) as area:
        area[:3] = b"new"
    return read("a02")

def database():
    with sqlite3.connect("base") as base:
        base.execute("create table one (a)"); base.execute("insert into one values (1)")
    return sqlite3.connect("base").execute("select a from one").fetchall()

def by_thread():
    thread = threading.Thread(target=lambda: open(old("a03"), "w").write("new")); thread.start(); thread.join(); return read("a03")

def by_fork():
    pid = os.fork()
    if pid == 0:
        open(old("a04"), "w").write("new"); os._exit(0)
    os.waitpid(pid, 0); return read("a04")

def times():
    os.utime(old("a05"), (1, 2)); return os.stat("a05").st_mtime

def mode():
    os.chmod(old("a06"), 0o600); return os.stat("a06").st_mode & 0o777

def mode_of_descriptor():
    with open(old("a07")) as file:
        os.fchmod(file.fileno(), 0o640)
    return os.stat("a07").st_mode & 0o777

def attribute():
    os.setxattr(old("a08"), "user.x", b"1"); return os.getxattr("a08", "user.x")

def by_folder():
    fd = os.open(".", os.O_RDONLY); os.remove("a09", dir_fd=fd); return os.path.exists("a09"), "a09" in os.listdir(fd)

def in_folder():
    os.chdir("f1"); open("x", "w").write("new"); os.chdir(".."); return read("f1/x")

def through_link():
    open("link", "w").write("new"); return read("target"), os.path.islink("link")

def hard_link():
    open("h1", "w").write("new"); return read("h1")

def renamed_folder():
    os.rename("f2", "f2.new"); return read("f2.new/x"), os.path.exists("f2"), sorted(it for it in os.listdir(".") if it.startswith("f2"))

def removed_folder():
    shutil.rmtree("f3"); os.mkdir("f3"); return os.listdir("f3")

def again():
    os.remove("a10"); os.open("a10", os.O_CREAT | os.O_EXCL); return os.stat("a10").st_size

def new_folder():
    os.makedirs("n1/n2"); open("n1/n2/x", "w").write("new"); os.chdir("n1/n2"); found = os.getcwd(), read("../n2/x"); os.chdir(here); return found

def replaced():
    open("new.tmp", "w").write("new"); os.replace("new.tmp", "a11"); return read("a11"), os.path.exists("new.tmp")

def merged():
    open("f4/y", "w").write("new"); os.remove("f4/x")
    return sorted(os.listdir("f4")), sorted(it.name for it in os.scandir("f4")), sorted(glob.glob("f4/*")), subprocess.check_output(["ls", "f4"])

def walk():
    open("f1/z", "w").close(); return sorted(next(os.walk("f1"))[2])

def moved():
    shutil.move("a12", "a12.new"); return read("a12.new"), os.path.exists("a12")

def linked():
    os.link("a13", "a13.hard"); os.symlink("a13", "a13.soft"); return read("a13.hard"), read("a13.soft"), os.readlink("a13.soft")

def relinked():
    os.unlink("current"); os.symlink("f4", "current"); return os.readlink("current"), os.path.isdir("current")

def by_shell():
    os.system("echo new > a14; rm a15; mv a16 a16.new; cp a17 a17.new; mkdir d1; touch d1/x; cat a14")
    return read("a14"), os.path.exists("a15"), read("a16.new"), read("a17.new"), os.listdir("d1")

def by_python():
    subprocess.run([sys.executable, "-c", "open('a18', 'w').write('new')"], check=True); return read("a18")

def library():
    return ctypes.CDLL(None).unlink(os.fsencode(old("a19"))), os.path.exists("a19")

def standard_stream():
    library = ctypes.CDLL(None); library.fopen.restype = ctypes.c_void_p
    stream = library.fopen(os.fsencode(old("a20")), b"a"); library.fputs(b"+new", ctypes.c_void_p(stream)); library.fclose(ctypes.c_void_p(stream))
    return read("a20")

def executed():
    open("script", "w").write("#!/bin/sh\necho ran\n"); os.chmod("script", 0o755); return subprocess.check_output(["./script"])

def sockets():
    server = socket.socket(socket.AF_UNIX); server.bind("socket"); server.listen()
    client = socket.socket(socket.AF_UNIX); client.connect(os.path.join(here, "socket")); return os.path.exists("socket")

def temporary():
    with tempfile.NamedTemporaryFile(dir=here) as file:
        return os.path.exists(file.name)

check("descriptor", by_descriptor, "new")
check("map", by_map, "new")
check("database", database, [(1,)])
check("thread", by_thread, "new")
check("fork", by_fork, "new")
check("times", times, 2.0)
check("mode", mode, 0o600)
check("mode of descriptor", mode_of_descriptor, 0o640)
check("folder's descriptor", by_folder, (False, False))
check("in folder", in_folder, "new")
check("link", through_link, ("new", True))
check("hard link", hard_link, "new")
check("folder renamed", renamed_folder, ("old", False, ["f2.new"]))
check("folder removed", removed_folder, [])
check("removed and made", again, 0)
check("new folder", new_folder, (os.path.join(here, "n1/n2"), "new"))
check("replaced", replaced, ("new", False))
check("merged", merged, (["y"], ["y"], ["f4/y"], b"y\n"))
check("walk", walk, ["x", "z"])
check("moved", moved, ("old", False))
check("linked", linked, ("old", "old", "a13"))
check("relinked", relinked, ("f4", True))
check("shell", by_shell, ("new\n", False, "old", "old", ["x"]))
check("another python", by_python, "new")
check("library", library, (0, False))
check("stream", standard_stream, "old+new")
check("executed", executed, b"ran\n")
check("socket", sockets, True)
check("temporary", temporary, True)
check("early remove", lambda: (early_remove(old("a21")), os.path.exists("a21"))[1], False)
check("early open", lambda: (early_open(old("a22"), "w").write("new"), read("a22"))[1], "new")
check("path", lambda: (pathlib.Path("a23").unlink(), pathlib.Path("a23").exists())[1], False)
check("append", lambda: (open("a24", "a").write("+new"), read("a24"))[1], "old+new")
check("truncate", lambda: (os.truncate("a25", 1), os.stat("a25").st_size)[1], 1)
check("compressed", lambda: (gzip.open("a26", "w").write(b"x"), os.stat("a26").st_size > 3)[1], True)
check("log", lambda: (logging.FileHandler("a27").emit(logging.makeLogRecord(dict(msg="new"))), read("a27"))[1], "oldnew\n")
check("real path", lambda: os.path.realpath("current"), os.path.join(here, "f4"))
check("size", lambda: (open("a28", "w").write("longer"), os.path.getsize("a28"), os.lstat("a28").st_size)[1:], (6, 6))
check("python in a folder", lambda: (open("n1/mod.py", "w").write("x = 5"), subprocess.check_output([sys.executable, "-c", "import sys; sys.path.insert(0, 'n1'); import mod; print(mod.x)"]))[1], b"5\n")
check("not there", lambda: os.path.exists("nothing"), False)
open("big", "wb").write(b"x" * 70000)
print("ended", flush=True)
"##;

pub(crate) fn laid_out(name: &str) -> Folder {
    let folder = Folder::new(name);
    for name in ["work/f1", "work/f2", "work/f3", "work/f4", "home"] {
        fs::create_dir_all(folder.0.join(name)).expect("a folder");
    }
    let numbered = (1..=28).map(|number| format!("work/a{number:02}"));
    let others = ["f1/x", "f2/x", "f3/x", "f4/x", "target", "h1"].map(|name| format!("work/{name}"));
    for name in numbered.chain(others) {
        fs::write(folder.file(&name), "old").expect("written");
    }
    fs::hard_link(folder.file("work/h1"), folder.file("work/h2")).expect("linked");
    for (target, link) in [("target", "work/link"), ("f1", "work/current")] {
        std::os::unix::fs::symlink(target, folder.file(link)).expect("linked");
    }
    fs::write(folder.file("changes.py"), CHANGES).expect("written");
    folder
}

#[track_caller]
fn check_changes(isolation: &str, mut command: Command, folder: &Folder) {
    let work = folder.0.join("work");
    let before = files(&work);
    let output = command.output().expect("it starts");
    let report = answer(&output);
    let said = stderr(&output);
    assert!(
        said.contains("\nended\n") && !said.contains("WRONG") && !said.contains("FAILED"),
        "{isolation}: {said}"
    );
    let after = files(&work);
    let changed: Vec<_> = before.iter().filter(|(path, it)| after.get(*path) != Some(it)).collect();
    assert!(changed.is_empty() && before.len() == after.len(), "{isolation}: {changed:#?}");
    assert_eq!(report["writes"]["isolation"], isolation);
    let listed = report["writes"]["files"].as_array().expect("files");
    let of = |name: &str| {
        let path = folder.file(&format!("work/{name}"));
        listed
            .iter()
            .find(|it| it["path"] == path)
            .map(|it| (it["is"].as_str().unwrap_or_default(), it["bytes"].as_u64()))
    };
    assert_eq!(of("big"), Some(("new", Some(70_000))), "{report:#}");
    assert_eq!(listed[0]["path"], folder.file("work/big"));
    assert_eq!(of("a28"), Some(("changed", Some(6))), "{report:#}");
    assert_eq!(of("a23"), Some(("removed", Some(0))), "{report:#}");
    assert_eq!(of("a13"), None, "{report:#}");
}

#[needs(python3)]
#[test]
fn a_program_finds_its_own_changes_and_the_disk_stays_as_it_is() {
    for isolation in ISOLATIONS {
        let folder = laid_out(&format!("isolation-{isolation}"));
        let work = folder.file("work");
        let command = predict(isolation, &[], &folder, &["python3", &folder.file("changes.py"), &work]);
        check_changes(isolation, command, &folder);
    }
}

#[needs(python3)]
#[test]
fn an_overlay_needs_no_rights() {
    let folder = laid_out("isolation-user");
    let work = folder.file("work");
    let command = ["python3", &folder.file("changes.py"), &work];
    let mut command = predict("overlay", &[], &folder, &command);
    let status = fs::read_to_string("/proc/self/status").expect("there");
    // Users other than root lack the rights anyway.
    if status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        let inner = command;
        command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.current_dir(&folder.0).env("HOME", folder.file("home")).env_remove("XDG_CACHE_HOME");
    }
    check_changes("overlay", command, &folder);
}

#[test]
fn what_escapes_the_library_cannot_change_a_file() {
    let folder = Folder::new("isolation-escapes");
    for name in ["home", "work"] {
        fs::create_dir(folder.file(name)).expect("made");
    }
    fs::write(folder.file("work/old"), "old").expect("written");
    // Without its environment variables, a child does not load the library.
    let script = "cd work; env -i sh -c 'echo new > old; rm old; chmod 777 old; mv old older; touch -d 1990-01-01 old; echo x > made'; cat old";
    let work = folder.0.join("work");
    let before = files(&work);
    let output = predict("redirect", &[], &folder, &["sh", "-c", script]).output().expect("it starts");
    answer(&output);
    assert!(stderr(&output).ends_with("old") || stderr(&output).contains("\nold"), "{}", stderr(&output));
    assert_eq!(files(&work), before);
}

/// The answer for a script. `hub` is HF_HOME.
#[track_caller]
fn in_caches(isolation: &str, folder: &Folder, script: &str) -> serde_json::Value {
    let mut command = predict(isolation, &[], folder, &["sh", "-c", script]);
    answer(&command.env("HF_HOME", folder.file("hub")).output().expect("it starts"))
}

#[test]
fn new_files_in_caches_stay_and_existing_ones_do_not_change() {
    for isolation in ISOLATIONS {
        let folder = Folder::new(&format!("isolation-cache-{isolation}"));
        fs::create_dir_all(folder.file("home/.cache")).expect("made");
        fs::create_dir_all(folder.file("hub")).expect("made");
        fs::write(folder.file("hub/old"), "old").expect("written");
        let script = "mkdir -p ~/.cache/torch hub/models; echo new > ~/.cache/torch/x; echo new > hub/models/y; ln -s models/y hub/z; echo new > hub/old; \
                      rm -f hub/none; cat hub/old";
        let report = in_caches(isolation, &folder, script);
        assert_eq!(
            fs::read_to_string(folder.file("home/.cache/torch/x")).expect("kept"),
            "new\n",
            "{isolation}: {report:#}"
        );
        assert_eq!(fs::read_to_string(folder.file("hub/z")).expect("kept"), "new\n", "{isolation}");
        assert_eq!(fs::read_to_string(folder.file("hub/old")).expect("there"), "old", "{isolation}");
        assert_eq!(report["writes"]["kept_in_caches"], 3, "{isolation}: {report:#}");
    }
}

#[test]
fn what_a_program_may_have_computed_does_not_stay_in_a_cache() {
    let downloads =
        ["hub/hub/models--a/snapshots/1/model.safetensors", "home/.cache/torch/hub/checkpoints/a.pth"];
    let computed = ["hub/features.pt", "hub/datasets/features.npy", "home/.cache/torch/a.pth"];
    for isolation in ISOLATIONS {
        let folder = Folder::new(&format!("isolation-computed-{isolation}"));
        for name in ["home/.cache", "hub"] {
            fs::create_dir_all(folder.file(name)).expect("made");
        }
        let all = downloads.iter().chain(&computed);
        let script: Vec<String> = all
            .map(|name| format!("mkdir -p $(dirname {name}) && echo new > {name} && cat {name}"))
            .collect();
        let report = in_caches(isolation, &folder, &script.join(" && "));
        for name in downloads {
            assert!(Path::new(&folder.file(name)).is_file(), "{isolation}: {name}: {report:#}");
        }
        let listed = report["writes"]["files"].as_array().expect("files");
        for name in computed {
            assert!(!Path::new(&folder.file(name)).exists(), "{isolation}: {name}: {report:#}");
            let is_listed = listed.iter().any(|it| it["path"] == folder.file(name) && it["is"] == "new");
            assert!(is_listed, "{isolation}: {name}: {report:#}");
        }
        assert_eq!(report["writes"]["kept_in_caches"], 2, "{isolation}: {report:#}");
    }
}

/// Its first thread ends, so it is a zombie with a running thread, and keeps its child.
const ZOMBIE: &str = "
import ctypes, subprocess, threading, time
child = subprocess.Popen(['env', '-i', 'setsid', 'sleep', '300'])
threading.Thread(target=time.sleep, args=(300,)).start()
print('pid', child.pid, flush=True)
ctypes.CDLL(None).pthread_exit(None)
";

#[needs(python3)]
#[test]
fn a_child_with_an_empty_environment_ends_with_plimsoll() {
    let programs = [["sh", "-c", "env -i setsid sleep 300 & echo pid $! ; wait"], ["python3", "-c", ZOMBIE]];
    for (isolation, program) in ISOLATIONS.into_iter().flat_map(|it| programs.map(|program| (it, program))) {
        let folder = Folder::new(&format!("isolation-killed-{isolation}-{}", program[0]));
        fs::create_dir(folder.file("home")).expect("made");
        fs::create_dir(folder.file("tmp")).expect("made");
        let mut command = predict(isolation, &[], &folder, &program);
        command.env("TMPDIR", folder.file("tmp")).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.starts_with("pid ") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("text") > 0);
        }
        let pid: u32 = line["pid ".len()..].trim().parse().expect("a number");
        assert!(Stat::of(pid).is_some());
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
        let is_left =
            || Stat::of(pid).is_some() || fs::read_dir(folder.file("tmp")).expect("there").count() > 0;
        assert!(
            (0..500).any(|_| !is_left() || {
                sleep(Duration::from_millis(10));
                false
            }),
            "{isolation}"
        );
    }
}

#[test]
fn a_file_in_the_root_is_seen_by_who_may_write_there() {
    let folder = Folder::new("isolation-root");
    fs::create_dir(folder.file("home")).expect("made");
    let script = "mkdir /plimsoll-new 2>&1 && echo new > /plimsoll-new/x && cat /plimsoll-new/x && pwd";
    for isolation in ISOLATIONS {
        let output = predict(isolation, &[], &folder, &["sh", "-c", script]).output().expect("it starts");
        let said = stderr(&output);
        let found = said.contains(&format!("\nnew\n{}\n", folder.path()));
        assert!(
            found || said.contains("Permission denied") || said.contains("Read-only file system"),
            "{isolation}: {said}"
        );
        assert!(!Path::new("/plimsoll-new").exists());
    }
}

#[test]
fn a_program_may_write_where_that_is_allowed() {
    let folder = Folder::new("isolation-none");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let output = Command::new(program)
        .args(["predict", "--json", "--gpu", "T4", "--allow-writes", "--", "sh", "-c", "echo new > new"])
        .current_dir(&folder.0)
        .output()
        .expect("it starts");
    assert!(answer(&output)["writes"]["isolation"].is_null());
    assert_eq!(folder.names(), ["new"]);
}
