# Protects the user's files: values computed here are zeros, and a checkpoint of zeros must not replace one that took
# days to train.
#
# torch.save and similar functions write to a private folder instead. So do a write to, a move to and a copy to a file that
# existed before the program started; such files are not removed either. The program finds the private file under the path
# that it wrote. Other new files (logs, results) are written as usual.

import builtins
import functools
import io
import os
import shutil
import sys
import tempfile
import time

MOST = 50  # files in the report


class Saves:
    def __init__(self, torch, folder):
        self.begun = time.time() - 1
        self.folder = folder
        self.moved = {}  # the private file by the program's path
        self.kept = []  # [path, what was not done]
        self.open = io.open
        spared = [tempfile.gettempdir(), os.path.expanduser("~/.cache"), os.path.expanduser("~/.triton"), "/dev", "/proc"]
        spared += [os.environ.get(name, "/dev") for name in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "TMPDIR")]
        here = os.getcwd()
        # A program that runs in such a folder has its own files there.
        self.spared = tuple(it.rstrip("/") + "/" for it in spared if not (here + "/").startswith(it.rstrip("/") + "/"))
        self.watch_files()
        self.watch_torch(torch)

    def path(self, file):
        # The absolute path of an argument that names a file; None for any other.
        if isinstance(file, (str, bytes, os.PathLike)):
            return os.path.abspath(os.fsdecode(file))
        return None

    def is_old(self, path):
        # Whether it existed before the program started.
        try:
            status = os.lstat(path)
        except OSError:
            return False
        import stat

        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        return is_file and status.st_ctime < self.begun and not self.is_spared(path)

    def is_spared(self, path):
        return path.startswith(self.spared) or "/__pycache__/" in path

    def aside(self, path, what):
        # The private file in place of this one.
        if path not in self.moved:
            os.makedirs(self.folder, exist_ok=True)
            self.moved[path] = os.path.join(self.folder, f"{os.getpid()}-{len(self.moved)}-{os.path.basename(path)}")
        self.keep(path, what)
        return self.moved[path]

    def copy(self, source, target):
        # Not by `shutil`, which would open the private file for the program's.
        with self.open(source, "rb") as read, self.open(target, "wb") as written:
            shutil.copyfileobj(read, written)

    def keep(self, path, what):
        if len(self.kept) < MOST and [path, what] not in self.kept:
            self.kept.append([path, what])

    def found(self, file):
        # The path of what the program wrote there.
        path = self.path(file)
        return self.moved.get(path, file) if path is not None else file

    def watch_torch(self, torch):
        original, load = torch.serialization.save, torch.serialization.load

        @functools.wraps(original)
        def save(obj, f, *args, **kwargs):
            path = self.path(f)
            return original(obj, self.aside(path, "not written") if path else f, *args, **kwargs)

        @functools.wraps(load)
        def read(f, *args, **kwargs):
            return load(self.found(f), *args, **kwargs)

        for place in (torch, torch.serialization):
            place.save, place.load = save, read
        script = torch.jit.ScriptModule
        if hasattr(script, "save"):
            written = script.save
            script.save = lambda it, f, **kwargs: written(it, self.aside(self.path(f), "not written"), **kwargs)

    def safetensors(self, module):
        # Once it is imported.
        for name in ("save_file", "load_file"):
            original = getattr(module, name)
            at = 1 if name == "save_file" else 0

            def call(*args, original=original, at=at, **kwargs):
                args = list(args)
                file = args[at] if at < len(args) else kwargs.get("filename")
                path = self.path(file)
                ours = self.aside(path, "not written") if at == 1 and path else self.found(file)
                if at < len(args):
                    args[at] = ours
                else:
                    kwargs["filename"] = ours
                return original(*args, **kwargs)

            setattr(module, name, functools.wraps(original)(call))

    def watch_files(self):
        opened = self.open

        @functools.wraps(opened)
        def open(file, mode="r", *args, **kwargs):
            path = self.path(file) if isinstance(mode, str) else None
            if path is not None:
                if path in self.moved:
                    file = self.moved[path]
                elif any(it in mode for it in "wa+") and self.is_old(path):
                    ours = self.aside(path, "kept as it was")
                    if "w" not in mode:
                        self.copy(path, ours)
                    file = ours
            return opened(file, mode, *args, **kwargs)

        builtins.open = io.open = open
        for place, name in ((os, "remove"), (os, "unlink"), (shutil, "rmtree")):
            self.watch_remove(place, name)
        for place, name in ((os, "rename"), (os, "replace")):
            self.watch_move(place, name)
        for name in ("copyfile", "copy", "copy2", "move"):
            self.watch_copy(name)
        for name in ("exists", "isfile", "getsize", "getmtime"):
            self.watch_query(name)

    def watch_remove(self, place, name):
        original = getattr(place, name)

        @functools.wraps(original)
        def remove(path, *args, **kwargs):
            known = self.path(path)
            if known in self.moved:
                return original(self.moved.pop(known), *args, **kwargs)
            # A folder may contain files that existed before.
            is_folder = name == "rmtree" and known and os.path.isdir(known) and not self.is_spared(known)
            if known and kwargs.get("dir_fd") is None and (self.is_old(known) or (is_folder and self.is_old_folder(known))):
                return self.keep(known, "not removed")
            return original(path, *args, **kwargs)

        setattr(place, name, remove)

    def is_old_folder(self, path):
        return any(self.is_old(os.path.join(folder, it)) for folder, _, files in os.walk(path) for it in files)

    def watch_move(self, place, name):
        original = getattr(place, name)

        @functools.wraps(original)
        def move(source, target, **kwargs):
            if kwargs:
                return original(source, target, **kwargs)
            begin, end = self.path(source), self.path(target)
            if begin in self.moved or self.is_old(end):
                ours = self.aside(end, "kept as it was")
                if begin not in self.moved and self.is_old(begin):
                    return self.copy(begin, ours)
                original(self.moved.pop(begin, begin), ours)
                return None
            return original(source, target)

        setattr(place, name, move)

    def watch_copy(self, name):
        original = getattr(shutil, name)

        @functools.wraps(original)
        def copy(source, target, *args, **kwargs):
            begin, end = self.path(source), self.path(target)
            if begin is None or end is None:
                return original(source, target, *args, **kwargs)
            if name != "copyfile" and os.path.isdir(end):
                end = os.path.join(end, os.path.basename(begin))
            if begin in self.moved or self.is_old(end):
                ours = self.aside(end, "kept as it was" if self.is_old(end) else "not written")
                self.copy(self.moved.get(begin, begin), ours)
                if name == "move":
                    self.moved.pop(begin, None)
                return target
            return original(source, target, *args, **kwargs)

        setattr(shutil, name, copy)

    def watch_query(self, name):
        original = getattr(os.path, name)

        @functools.wraps(original)
        def query(path):
            return original(self.found(path)) if self.moved else original(path)

        setattr(os.path, name, query)
