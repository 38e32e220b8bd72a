# Tries several sets of techniques from one run of the program: where it uses CUDA for the first time, its imports, and often its
# model, are behind it. There the process waits for requests and runs the rest of the program in a fork for each.
#
# A request is N.json in the folder: the set, and the folder for the reports. N.done has the exit status. `end` ends the
# process. PyTorch's fork handlers, which would forbid CUDA in the child, do not run; without glibc's `_Fork`, or with a process group
# that is made before the first use of CUDA, nothing is served, and each set takes a run of its own.

import ctypes
import json
import os
import signal
import sys
import time

EXPIRED = "expired"  # the status of a child that was killed because it took too long


class Serve:
    def __init__(self, torch, watch, folder):
        self.torch, self.watch, self.folder = torch, watch, folder
        self.pid = os.getpid()
        self.library = ctypes.PyDLL(None)
        world = os.environ.get("WORLD_SIZE") or "1"
        if not hasattr(self.library, "_Fork") or world != "1":
            return
        import plimsoll_techniques

        self.techniques = plimsoll_techniques
        plimsoll_techniques.install(torch)
        original = torch._C._cuda_init

        def _cuda_init():
            torch._C._cuda_init = original
            if os.getpid() == self.pid and not self.has_group() and self.is_first():
                self.requests()
            return original()

        torch._C._cuda_init = _cuda_init

    def is_first(self):
        # Several processes of the program may use CUDA: the first serves.
        try:
            os.close(os.open(os.path.join(self.folder, "serving"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def requests(self):
        number = 0
        while not os.path.exists(os.path.join(self.folder, "end")):
            path = os.path.join(self.folder, f"{number}.json")
            if not os.path.isdir(self.folder):
                break
            if not os.path.exists(path):
                time.sleep(0.01)
                continue
            with open(path) as file:
                request = json.load(file)
            child = self.fork()
            if child == 0:
                return self.begin(request)
            status = self.wait(child, request["limit_s"])
            done = os.path.join(self.folder, f"{number}.done")
            with open(f"{done}.unfinished", "w") as file:
                file.write(str(status))
            os.replace(f"{done}.unfinished", done)
            number += 1
        # A parent may wait for an answer of this process, which does not come.
        open(sys.modules["plimsoll_watch"].STOP, "w").close()
        self.watch.state = "stopped"
        self.watch.leave(0)

    def wait(self, child, limit_s):
        begun = time.monotonic()
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() - begun > limit_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return EXPIRED
            time.sleep(0.005)

    def fork(self):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        python = ctypes.pythonapi
        # A child that is asked to hand over the interpreter's lock, before it knows that it has no other threads, waits forever.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        time.sleep(0.02)
        python.PyOS_BeforeFork()
        child = self.library._Fork()
        (python.PyOS_AfterFork_Child if child == 0 else python.PyOS_AfterFork_Parent)()
        sys.setswitchinterval(interval)
        return child

    def begin(self, request):
        # In the child: the program goes on with this set.
        module = sys.modules["plimsoll_watch"]
        module.FOLDER = request["reports"]
        module.RECORDS = False
        os.environ["PLIMSOLL_STANDIN_NOTICES"] = request["reports"]
        self.torch.set_num_threads(1)  # The threads of the parent's pool are not in the child.
        if not request["shows"]:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
        if request["ranks"] > 1:
            self.be_a_rank(module, request["ranks"])
        limit = request["limit_bytes"]
        if limit:
            # Not by `_lazy_call`, which waits for a lock that this thread holds: `_lazy_init` is on its stack.
            self.torch.cuda._queued_calls.append((lambda: self.limit(limit), []))
        self.watch.techniques = self.techniques
        self.techniques.activate(request["set"], self.watch)
        self.watch.listening = None
        self.watch.listen()

    def has_group(self):
        # A process group's threads, which free what it has sent and which its end waits for, would not be in a child.
        distributed = self.torch.distributed
        return distributed.is_available() and distributed.is_initialized()

    def be_a_rank(self, module, number):
        # The first of this many, without the others.
        place = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=number, LOCAL_WORLD_SIZE=number, MASTER_PORT=29500)
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", PLIMSOLL_RANKS="1")
        module.ALONE = True
        module.stand_alone(self.torch)

    def limit(self, bytes):
        cuda = self.torch.cuda
        for device in range(cuda.device_count()):
            cuda.set_per_process_memory_fraction(bytes / cuda.get_device_properties(device).total_memory, device)
