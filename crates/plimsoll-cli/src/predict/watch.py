# What `plimsoll predict` does inside the user's Python processes: it watches PyTorch's allocator and the optimizers.
#
# The launcher writes patches.py and this file as one sitecustomize.py into a folder of its own, in front of PYTHONPATH,
# so that every Python below it runs it first: `python -m`, torchrun's ranks, pytest. It is quiet, changes no memory
# figure (patches.py's send_objects does, by some hundred bytes), and ends the program only where it was told to. Each
# process writes `PID.json` (report(), below), and `PID.pickle`, PyTorch's own snapshot: when memory runs out, and when
# the process ends.

import os
import sys
import weakref

FOLDER = os.environ.get("PLIMSOLL_PREDICT_FOLDER")  # where to write
STEPS = int(os.environ.get("PLIMSOLL_PREDICT_STEPS") or 0)  # end after so many optimizer steps; 0: never
STOP = os.path.join(FOLDER or "", "stop")  # once this is there, end
ALONE = bool(os.environ.get("PLIMSOLL_PREDICT_ALONE"))  # one rank of a job, whose others are not there
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 10  # times the steps, for an optimizer that makes none
ENTRIES = 1_000_000  # events that the history keeps, the latest
# Libraries that have kernels of their own, or take memory of the device without asking PyTorch.
LIBRARIES = (
    "apex bitsandbytes cupy deepspeed flash_attn jax mamba_ssm numba.cuda tensorflow transformer_engine vllm xformers"
).split()
# What brings a value from the device to the program; looked for in so many lines before one that failed.
READS = (
    r"\.(item|tolist|cpu|numpy|nonzero|all|any|equal|allclose|isnan|isinf|isfinite)\("
    r"|(?<![\w.])(float|int|bool)\((?!os\.|sys\.|args|[\"'0-9])"
)
NEAR = 10


def users_own():
    # Ours hides a sitecustomize that is there already: it is to run, too, and to go by that name.
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    sys.modules["plimsoll_watch"] = sys.modules[__name__]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class Finder:
    # Hears of the import of a module, and has something done after it.

    def __init__(self, wanted, then):
        self.wanted, self.then, self.inside = wanted, then, False

    def find_spec(self, name, path=None, target=None):
        if name != self.wanted or self.inside:
            return None
        import importlib.util

        self.inside = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.inside = False
        if spec is None or spec.loader is None:
            return None
        original = spec.loader.exec_module

        def exec_module(module):
            del spec.loader.exec_module
            original(module)
            sys.meta_path.remove(self)
            try:
                self.then(module)
            except Exception as why:  # A failure of ours is none of the program's.
                print(f"plimsoll: cannot hook {name} in this process: {why}", file=sys.stderr)

        spec.loader.exec_module = exec_module
        return spec


class Watch:
    # One process. A forked child is a process of its own.

    def __init__(self, torch):
        import atexit
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch = torch
        self.reads = ours("reads").Reads(ours("dataflow"), assumed())
        try:
            self.known = ours("shadows").Known(torch, self.reads.of_thread)
        except Exception:
            self.known = None  # a PyTorch before 2.9, whose kernels cannot be had
        self.finish_up = ours("finish").Finish(torch, ours("dataflow").is_library)
        self.saves = ours("saves").Saves(torch, os.path.join(os.path.dirname(FOLDER), "saves"))
        self.listening = None  # the process that has a thread that waits for an end; a forked one has not
        self.begin()
        self.listen()
        os.register_at_fork(after_in_child=self.begin)
        torch.cuda._lazy_call(self.start)
        register_optimizer_step_post_hook(self.stepped)
        self.watch_optimizers()
        atexit.register(self.end)
        trust_values(torch)
        if ALONE:
            stand_alone(torch)
        elif torch.distributed.is_available():
            send_objects(torch)
        # Children of multiprocessing end this way, and some programs.
        self.leave, os._exit = os._exit, self.exit
        self.report()

    def begin(self):
        self.pid = os.getpid()
        self.started = False
        self.allocator = "native"
        self.visible = []  # CUDA_VISIBLE_DEVICES as it was when CUDA began
        self.state = "running"
        self.failures = 0  # requests that failed for want of memory
        self.failed_step = 0  # in which step the last of them was
        self.is_dumped = False  # at such a failure
        self.steps = weakref.WeakKeyDictionary()  # by optimizer
        self.passes = {}  # backward passes by line, while there is no optimizer
        self.counted = 0  # steps
        self.outside = None  # bytes that PyTorch's allocator did not ask for; None: that cannot be told
        self.after_error = None  # the exception that ended what came after the steps
        self.peaks = {}  # by device: bytes, and in which step they were reached
        self.error = None

    def start(self):
        # CUDA has begun in this process, and nothing is allocated yet.
        self.started = True
        self.visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
        self.allocator = allocator(self.torch)
        if self.allocator != "native":
            # No other keeps a record of its blocks.
            self.listen()
            self.mark("started")
            return self.report()
        memory = self.torch.cuda.memory
        options = dict(enabled="all", context="alloc", stacks="all", max_entries=ENTRIES)
        try:
            memory._record_memory_history(global_record_annotations=True, **options)
        except TypeError:  # a PyTorch of before that option
            memory._record_memory_history(**options)
        self.torch._C._cuda_attach_out_of_memory_observer(self.ran_out)
        self.listen()
        self.mark("started")
        self.report()

    def watch_optimizers(self):
        # Every optimizer is to step before a step counts; a program that has none is followed by its backward passes.
        import functools

        torch, watch = self.torch, self
        begin, backward = torch.optim.Optimizer.__init__, torch.autograd.backward

        @functools.wraps(begin)
        def __init__(self, *args, **kwargs):
            watch.steps.setdefault(self, 0)
            begin(self, *args, **kwargs)

        @functools.wraps(backward)
        def passed(*args, **kwargs):
            watch.passing()
            return backward(*args, **kwargs)

        torch.optim.Optimizer.__init__ = __init__
        torch.autograd.backward = passed

    def stepped(self, optimizer, args, kwargs):
        if self.state != "running":
            return
        self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        made = list(self.steps.values())
        # One that never steps is not waited for, for ever.
        patient = max(made) < PATIENCE * max(STEPS, 3)
        self.proceed(min(it for it in made if it or patient))

    def passing(self):
        # A backward pass begins. Where the rhythm of these lines begins again, a step is done.
        if self.state != "running" or len(self.steps):
            return
        frame, is_library = sys._getframe(2), ours("dataflow").is_library
        while frame.f_back is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        line = frame.f_code, frame.f_lasti
        del frame
        done = min(self.passes.values(), default=0)
        begins = not self.passes or line == next(iter(self.passes))
        if done and begins:
            self.proceed(done)
        self.passes[line] = self.passes.get(line, 0) + 1

    def proceed(self, steps):
        # So many steps are done.
        finish = self.finish_up
        if finish.finishing:
            finish.idle += 1
            if finish.is_up():
                self.stop("stopped", 0)
            return
        if steps <= self.counted:
            return
        self.counted = steps
        self.measure(steps)
        finish.stepped()
        if STEPS and steps >= STEPS:
            if finish.may_go_on():
                finish.begin()
            else:
                self.stop("stopped", 0)
        self.report()

    def ran_out(self, device, asked, total, free):
        self.failures += 1
        self.failed_step = self.count() + 1
        self.measure(self.failed_step)
        for name in ("allocated", "reserved"):
            # Even if it had nothing of it before.
            self.peaks.setdefault((device, name), (0, self.failed_step))
        self.dump()
        self.is_dumped = True
        self.report()

    def listen(self):
        import threading

        if self.listening != self.pid:
            self.listening = self.pid
            threading.Thread(target=self.expire, args=(self.pid,), daemon=True).start()

    def expire(self, pid):
        import time

        while not os.path.exists(STOP):
            time.sleep(0.1)
            if os.getpid() != pid or not os.path.isdir(FOLDER):
                return
            if self.state == "running" and self.finish_up.finishing and self.finish_up.is_up():
                return self.stop("stopped", 0)
        # What only started others, as torchrun does, lets them tell first.
        until = time.time() + 10
        while not self.started and self.marks("done") < self.marks("started") and time.time() < until:
            time.sleep(0.02)
        self.stop("expired", 124)

    def mark(self, what):
        open(os.path.join(FOLDER, f"{self.pid}.{what}"), "w").close()

    def marks(self, what):
        return sum(name.endswith(f".{what}") for name in os.listdir(FOLDER))

    def end(self):
        # The interpreter ends. The exception that ended it, if one did, is known to it.
        if self.state != "running" or os.getpid() != self.pid:
            return
        self.state = "ended"
        failure = getattr(sys, "last_value", None)
        if failure is not None and self.finish_up.finishing and not self.failures:
            # The steps went well: what comes after them is not of a program whose loop was cut short.
            self.state, self.after_error = "stopped", described(failure)
            self.finish(dump=True)
            self.wait_for_others()
            self.leave(0)
        if failure is not None:
            self.state = "failed"
            self.error = described(failure)
            if self.allocator != "native" and "out of memory" in str(failure):
                self.failures, self.failed_step = 1, self.count() + 1
                self.measure(self.failed_step)
        # Where memory ran out and ended the program, the moment of the failure is what matters.
        self.finish(dump=failure is None or not self.is_dumped)

    def exit(self, status):
        self.end()
        self.leave(status)

    def stop(self, state, code):
        # Ends the program where it stands: no `finally`, no handler of its own saves a model of zeros.
        self.state = state
        self.finish(dump=True)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if "multiprocessing.process" in sys.modules:
            for child in sys.modules["multiprocessing.process"].active_children():
                child.terminate()
        self.wait_for_others()
        self.leave(code)

    def wait_for_others(self):
        # A rank that goes first may take a store with it that the others still need.
        import time

        # Those of this machine: others do not write into this folder.
        world = 1 if ALONE else number("LOCAL_WORLD_SIZE") or number("WORLD_SIZE") or 1
        until = time.time() + 10
        while self.marks("done") < world and world > 1 and time.time() < until:
            time.sleep(0.02)

    def finish(self, dump):
        try:
            self.measure(self.count() + 1)
            if self.started and dump:
                self.dump()
            self.report()
            if self.started:
                self.mark("done")
        except Exception as why:
            print(f"plimsoll: the memory of process {self.pid} is not recorded: {why}", file=sys.stderr)

    def count(self):
        # Steps so far.
        return self.counted

    def measure(self, step):
        if not self.started:
            return
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats(device)
            if self.allocator == "native":
                self.measure_outside(device, stats.get("reserved_bytes.all.current", 0))
            taken = 0 if self.allocator == "native" else taken_bytes(device)
            for name in ("allocated", "reserved"):
                peak = stats.get(f"{name}_bytes.all.peak", 0) or taken
                if peak > self.peaks.get((device, name), (0, 0))[0]:
                    self.peaks[device, name] = (peak, step)

    def measure_outside(self, device, reserved):
        # What libraries took behind PyTorch's back, where this process has the GPU to itself.
        context = number("PLIMSOLL_STANDIN_CONTEXT")
        if context is None or (number("WORLD_SIZE") or 1) > 1 or not self.torch.cuda.is_initialized():
            return
        free, total = self.torch.cuda.mem_get_info(device)
        if total - free > 0:
            self.outside = max(self.outside or 0, total - free - context - reserved, 0)

    def gpu(self, device):
        # The machine's number of a device of this process.
        told = self.visible[device].strip() if device < len(self.visible) else ""
        return int(told) if told.isdecimal() else device

    def dump(self):
        if self.allocator != "native":
            return
        path = os.path.join(FOLDER, f"{self.pid}.pickle")
        self.torch.cuda.memory._dump_snapshot(f"{path}.unfinished")
        os.replace(f"{path}.unfinished", path)

    def report(self):
        import json

        torch = self.torch
        devices = []
        for device in sorted({device for device, _ in self.peaks}):
            allocated, reserved = (self.peaks.get((device, name), (0, 0)) for name in ("allocated", "reserved"))
            devices.append(
                dict(
                    device=device,
                    gpu=self.gpu(device),
                    allocated_bytes=allocated[0],
                    allocated_step=allocated[1],
                    reserved_bytes=reserved[0],
                    reserved_step=reserved[1],
                )
            )
        told = dict(
            pid=self.pid,
            rank=number("RANK"),
            alone=ALONE,
            command=sys.argv,
            state=self.state,
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            standin=has_standin(),
            allocator=self.allocator,
            started=self.started,
            steps=self.count(),
            failures=self.failures,
            failed_step=self.failed_step,
            devices=devices,
            cudnn_search=torch.backends.cudnn.benchmark,
            outside_bytes=self.outside,
            libraries=[name for name in LIBRARIES if name in sys.modules],
            error=self.error,
            reads=self.reads.told(),
            problems=self.reads.problems + (self.reads.unused() if self.state != "running" else []),
            cut=bool(self.finish_up.finishing) or self.state == "stopped",
            went_on=bool(self.finish_up.finishing),
            ended=self.state == "ended",
            unseen=self.finish_up.unseen() if self.state == "stopped" else [],
            after_error=self.after_error,
            saves=self.saves.told,
        )
        path = os.path.join(FOLDER, f"{self.pid}.json")
        with open(f"{path}.unfinished", "w") as file:
            json.dump(told, file)
        os.replace(f"{path}.unfinished", path)


def ours(name, known={}):
    # Another file of ours, beside this one. Its frames are none of the program's.
    import types

    if name not in known:
        path = os.path.join(HERE, f"plimsoll_{name}.py")
        module = known[name] = types.ModuleType(f"plimsoll_{name}")
        module.ours = ours
        with open(path) as file:
            exec(compile(file.read(), f"<frozen plimsoll {name}>", "exec"), module.__dict__)
    return known[name]


def assumed():
    import json

    return json.loads(os.environ.get("PLIMSOLL_PREDICT_ASSUME") or "[]")


def number(name):
    # That of the environment, if there is one.
    told = (os.environ.get(name) or "").strip()
    return int(told) if told.isdecimal() else None


def allocator(torch):
    # What serves PyTorch's requests.
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "none"
    try:
        return torch.cuda.memory.get_allocator_backend()
    except AttributeError:  # a PyTorch of before there were others
        return "native"


def taken_bytes(device):
    # The most that this process had of a device, by the device's own count.
    import ctypes

    taken = getattr(ctypes.CDLL(None), "plimsoll_standin_most_bytes", None)
    if taken is None:
        return 0
    taken.restype, taken.argtypes = ctypes.c_uint64, [ctypes.c_int]
    return taken(device)


def has_standin():
    import ctypes

    return hasattr(ctypes.CDLL(None), "plimsoll_standin_version")


def described(failure):
    # The exception, the innermost line that is not of a package, and whether a value was read close before it.
    import linecache
    import re
    import traceback

    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(failure.__traceback__)]
    own = [it for it in frames if not is_library(it[0].co_filename)] or frames
    reads = False
    for code, line in frames:
        lines = linecache.getlines(code.co_filename)[max(code.co_firstlineno - 1, line - NEAR) : line]
        reads = reads or (not is_library(code.co_filename) and any(re.search(READS, text) for text in lines))
    code, line = own[-1] if own else (None, None)
    return dict(
        kind=type(failure).__name__,
        text=str(failure)[:2000],
        file=code and code.co_filename,
        line=line,
        reads=reads,
    )


def is_library(path):
    places = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__))
    return any(place in path for place in places)


if FOLDER and os.path.isdir(FOLDER):
    WATCH = []
    sys.meta_path[:0] = [
        Finder("torch", lambda torch: WATCH.append(Watch(torch))),
        Finder("transformers.generation.utils", end_generation),
        Finder("transformers.trainer_callback", lambda it: ours("finish").trainer(it, WATCH[0].finish_up)),
        Finder("safetensors.torch", lambda it: WATCH[0].saves.safetensors(it)),
        Finder("torch._inductor.runtime.cache_dir_utils", keep_inductor),
        Finder("triton.knobs", keep_triton),
    ]
users_own()
