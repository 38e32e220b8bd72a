"""Calls Python's functions for files, and some of the C library's, on files that were just written, changed, removed or
renamed, and prints each result. The results must be those on the disk.
"""

import ctypes
import filecmp
import glob
import linecache
import mmap
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import zipfile

C = ctypes.CDLL(None, use_errno=True)
HERE = os.getcwd()


def say(name, work):
    try:
        result = work()
    except OSError as why:
        result = f"{type(why).__name__} {why.errno}"
    except Exception as why:
        result = type(why).__name__
    # Names that `tempfile` draws differ from run to run.
    print("RESULT", name, re.sub(r"\btmp[a-z0-9_]{8}", "tmp", str(result).replace(HERE, "HERE")))


def read(path):
    with open(path) as file:
        return file.read()


def at(folder, work):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return work(fd)
    finally:
        os.close(fd)


def inside(folder, work):
    os.chdir(folder)
    try:
        return work()
    finally:
        os.chdir(HERE)


def parts(path):
    return os.path.dirname(path) or ".", os.path.basename(path)


def globbed(pattern):
    class Found(ctypes.Structure):
        _fields_ = [
            ("count", ctypes.c_size_t),
            ("paths", ctypes.POINTER(ctypes.c_char_p)),
            ("rest", ctypes.c_char * 64),
        ]

    found = Found()
    code = C.glob(os.fsencode(pattern), 0, None, ctypes.byref(found))
    names = [found.paths[number].decode() for number in range(found.count)]
    C.globfree(ctypes.byref(found))
    return code, names


def scanned(folder):
    entries = ctypes.POINTER(ctypes.c_void_p)()
    count = C.scandir(os.fsencode(folder), ctypes.byref(entries), None, None)
    names = [ctypes.string_at(entries[number] + 19).decode() for number in range(max(count, 0))]
    return count, sorted(names)


def code(result):
    return ctypes.get_errno() if result == -1 else "done"


def temporary():
    C.tmpfile.restype = ctypes.c_void_p
    stream = C.tmpfile()
    return stream is not None and C.fclose(ctypes.c_void_p(stream))


def loaded():
    """Loads a library that was just written, as an extension that was just compiled."""
    import _ctypes

    shutil.copy(_ctypes.__file__, "made/library.so")
    try:
        return ctypes.CDLL(os.path.abspath("made/library.so")) is not None
    finally:
        os.remove("made/library.so")


def watched(path):
    fd = C.inotify_init()
    found = C.inotify_add_watch(fd, os.fsencode(path), 2)
    os.close(fd)
    return found


def about(path):
    folder, name = parts(path)
    P = pathlib.Path(path)
    yield "exists", lambda: (os.path.exists(path), os.path.lexists(path), os.path.isfile(path), os.path.isdir(path))
    yield "islink", lambda: os.path.islink(path)
    yield "realpath", lambda: os.path.realpath(path)
    yield "samefile", lambda: os.path.samefile(path, os.path.abspath(path))
    yield (
        "stat",
        lambda: (oct(os.stat(path).st_mode), os.stat(path).st_uid, os.path.isdir(path) or os.stat(path).st_size),
    )
    yield "lstat", lambda: oct(os.lstat(path).st_mode)
    yield "stat at", lambda: at(folder, lambda fd: oct(os.stat(name, dir_fd=fd).st_mode))
    yield "access", lambda: (os.access(path, os.R_OK), os.access(path, os.W_OK), os.access(path, os.X_OK))
    yield "access at", lambda: at(folder, lambda fd: os.access(name, os.R_OK, dir_fd=fd, effective_ids=True))
    yield "readlink", lambda: os.readlink(path)
    yield "listxattr", lambda: os.listxattr(path) and None
    yield "llistxattr", lambda: os.listxattr(path, follow_symlinks=False) and None
    yield "getxattr", lambda: os.getxattr(path, "user.none")
    yield "lgetxattr", lambda: os.getxattr(path, "user.none", follow_symlinks=False)
    yield "pathconf", lambda: os.pathconf(path, "PC_NAME_MAX")
    yield "statvfs", lambda: os.statvfs(path).f_blocks == os.statvfs(HERE).f_blocks
    yield "disk_usage", lambda: shutil.disk_usage(path).total == shutil.disk_usage(HERE).total
    yield "fstatvfs", lambda: at(path, lambda fd: os.statvfs(fd).f_namemax)
    yield "read", lambda: read(path)
    yield "read by cwd", lambda: read(f"/proc/self/cwd/{path}")
    yield "read by root", lambda: read(f"/proc/self/root{HERE}/{path}")
    yield "read by fd", lambda: at(folder, lambda fd: read(f"/proc/self/fd/{fd}/{name}"))
    yield "read by dev", lambda: at(folder, lambda fd: read(f"/dev/fd/{fd}/{name}"))
    yield "read inside", lambda: inside(folder, lambda: (os.getcwd(), read(name)))
    yield "path", lambda: (P.exists(), P.is_file(), P.is_dir(), P.is_symlink(), P.resolve(), P.owner(), P.group())
    yield "read_text", lambda: P.read_text()
    yield "iterdir", lambda: sorted(it.name for it in P.iterdir())
    yield "glob", lambda: (glob.glob(path), glob.glob(path + "*"), sorted(pathlib.Path(folder).glob("*")))
    yield "rglob", lambda: sorted(pathlib.Path(folder).rglob("in*"))
    yield "listdir", lambda: (name in os.listdir(folder), os.path.isdir(path) and sorted(os.listdir(path)))
    yield "scandir", lambda: sorted((it.name, it.is_dir(), it.is_symlink()) for it in os.scandir(folder))
    yield "listdir of fd", lambda: at(folder, lambda fd: sorted(os.listdir(fd)))
    yield "walk", lambda: sorted((top, sorted(folders), sorted(files)) for top, folders, files in os.walk(folder))
    yield "fwalk", lambda: sorted((top, sorted(files)) for top, _, files, _ in os.fwalk(folder))
    yield "filecmp", lambda: filecmp.cmp(path, path, shallow=False)
    yield "linecache", lambda: (linecache.clearcache(), linecache.getlines(path))
    yield "tarfile", lambda: tarfile.open(tempfile.mktemp(dir=HERE), "w").add(path)
    yield "zipfile", lambda: zipfile.ZipFile(tempfile.mktemp(dir=HERE), "w").write(path)
    yield "mmap", lambda: at(path, lambda fd: mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:])
    yield "cat", lambda: subprocess.run(["cat", path], capture_output=True).stdout
    yield (
        "sh",
        lambda: (
            subprocess.run(
                f"ls -d {path}*; cat < {path}; test -e {path}; echo $?", shell=True, capture_output=True
            ).stdout
        ),
    )
    yield "find", lambda: sorted(subprocess.run(["find", path], capture_output=True).stdout.split())
    yield (
        "cp",
        lambda: (subprocess.run(["cp", "-a", path, path + ".cp"], stderr=-1).returncode, os.path.exists(path + ".cp")),
    )
    yield "c glob", lambda: globbed(path + "*")
    yield "c scandir", lambda: scanned(folder)
    yield "c ftok", lambda: code(C.ftok(os.fsencode(path), 1) != -1 or -1)
    yield "c inotify", lambda: watched(path)


def changes(path):
    folder, name = parts(path)
    P = pathlib.Path(path)
    new = path + ".new"
    result = lambda: (os.path.isfile(new) and read(new), os.path.isdir(new) and sorted(os.listdir(new)))
    yield "copy", lambda: (shutil.copy(path, new), result())
    yield "copy2", lambda: (shutil.copy2(path, new), result())
    yield "copyfile", lambda: (shutil.copyfile(path, new), result())
    yield "copystat", lambda: shutil.copystat(path, new)
    yield "copymode", lambda: shutil.copymode(path, new)
    yield "copytree", lambda: (shutil.copytree(path, path + ".tree"), sorted(os.listdir(path + ".tree")))
    yield "rmtree", lambda: (shutil.rmtree(path + ".tree"), os.path.exists(path + ".tree"))
    yield "archive", lambda: os.path.basename(shutil.make_archive(path + ".a", "zip", path))
    yield "link", lambda: (os.link(path, path + ".link"), read(path + ".link"))
    yield (
        "symlink",
        lambda: (os.symlink(name, path + ".sym"), os.readlink(path + ".sym"), os.path.exists(path + ".sym")),
    )
    yield "copy of a link", lambda: shutil.copy2(path + ".sym", path + ".sym2", follow_symlinks=False)
    yield "utime", lambda: (os.utime(path, (1, 2)), os.stat(path).st_mtime)
    yield "utime ns", lambda: (os.utime(path, ns=(5, 7)), os.stat(path).st_mtime_ns)
    yield "chmod", lambda: (os.chmod(path, 0o700), oct(os.stat(path).st_mode))
    yield "chown", lambda: os.chown(path, -1, -1)
    yield "truncate", lambda: (os.truncate(path, 1), read(path))
    yield "append", lambda: (open(path, "r+").write("XY"), read(path))
    yield "append by cwd", lambda: (open(f"/proc/self/cwd/{path}", "r+").write("Z"), read(path))
    yield "new by cwd", lambda: (open(f"/proc/self/cwd/{path}.by", "w").write("Z"), read(path + ".by"))
    yield "touch", lambda: (P.touch(), P.exists())
    yield "mkfifo", lambda: (os.mkfifo(path + ".fifo"), oct(os.stat(path + ".fifo").st_mode))
    yield "mkdir", lambda: (os.mkdir(path + ".m"), os.listdir(path + ".m"), os.rmdir(path + ".m"))
    yield (
        "makedirs",
        lambda: (os.makedirs(path + ".n/a/b"), os.removedirs(path + ".n/a/b"), os.path.exists(path + ".n")),
    )
    yield (
        "mkdir at",
        lambda: at(folder, lambda fd: (os.mkdir(name + ".x", dir_fd=fd), os.rmdir(name + ".x", dir_fd=fd))),
    )
    yield "temporary", lambda: tempfile.NamedTemporaryFile(dir=folder).write(b"x")
    yield "unnamed", lambda: tempfile.TemporaryFile(dir=folder).write(b"x")
    yield "mkstemp", lambda: os.path.exists(tempfile.mkstemp(dir=folder, prefix="tmp")[1])
    yield "mkdtemp", lambda: os.rmdir(tempfile.mkdtemp(dir=folder))
    yield "TemporaryDirectory", lambda: tempfile.TemporaryDirectory(dir=folder).cleanup()
    yield (
        "sqlite",
        lambda: sqlite3.connect(path + ".db").executescript("pragma synchronous=off; create table a (b)") and None,
    )
    yield "rename", lambda: (os.rename(path, path + ".re"), os.path.exists(path), os.rename(path + ".re", path))
    yield "replace", lambda: (os.replace(path, path + ".re"), os.path.exists(path), os.replace(path + ".re", path))
    yield "move", lambda: (shutil.move(path, path + ".mv"), os.path.exists(path), shutil.move(path + ".mv", path))
    yield "path rename", lambda: (P.rename(path + ".re"), pathlib.Path(path + ".re").rename(path))
    yield "remove at", lambda: at(folder, lambda fd: os.remove(name + ".new", dir_fd=fd))
    yield "remove", lambda: (os.remove(path), os.path.exists(path))
    yield "unlink", lambda: (P.write_text("again"), P.unlink(), P.exists())
    yield "rmtree at the end", lambda: (shutil.rmtree(path), os.path.exists(path))


def main():
    # Each of these changes what the following functions find.
    with open("written", "w") as file:
        file.write("new")
    with open("changed", "w") as file:
        file.write("changed")
    os.remove("removed")
    os.rename("folder", "renamed")
    os.makedirs("made/deep")
    with open("made/in", "w") as file:
        file.write("in")
    os.symlink("written", "to-written")
    os.symlink("nothing", "to-nothing")
    shutil.rmtree("tree")
    names = ["written", "changed", "removed", "renamed/in", "renamed", "folder/in", "made/in", "made", "to-written"]
    for name in [*names, "to-nothing", "tree", "old"]:
        for what, work in about(name):
            say(f"{name}: {what}", work)
    say("c tmpfile", temporary)
    say("c dlopen", loaded)
    for name in [*names, "tree", "old"]:
        for what, work in changes(name):
            say(f"{name}: {what}", work)
    say("at the end", lambda: sorted(os.listdir(".")))


main()
