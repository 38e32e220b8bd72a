# What `plimsoll run` does inside the user's Python processes: it applies techniques, records the memory history, serves figures
# to `plimsoll top`, and explains a failure below its traceback. The launcher puts imports.py before this file in one
# sitecustomize.py.

import atexit

WITH = os.environ.get("PLIMSOLL_WITH")  # techniques, as JSON
WATCH = os.environ.get("PLIMSOLL_RUN_WATCH")  # "full", "all" (the stacks of all steps), "light", or nothing
PROGRAM = os.environ.get("PLIMSOLL_RUN_PROGRAM") or "plimsoll"
CHECK = os.environ.get("PLIMSOLL_RUN_CHECK")  # a plan to compare the peak with
LIMIT = int(os.environ.get("PLIMSOLL_RUN_LIMIT") or 0)  # bytes of each GPU for the allocator; 0: all
COMMAND = os.environ.get("PLIMSOLL_RUN_COMMAND") or "COMMAND"  # as the shell reads it
CONTEXT = 845_000_000  # bytes of a GPU outside the allocator: the default of `plimsoll plan --context`
ANSWERS = os.environ.get("PLIMSOLL_RUN_ANSWERS")  # a folder: a file there says that this process is attended to
SNAPSHOTS = os.environ.get("PLIMSOLL_RUN_SNAPSHOTS") or "."
ENTRIES = 100_000  # events in the history, the latest ones


class Attend:
    def __init__(self, torch):
        self.torch = torch
        self.path = None  # the snapshot of the last request that failed
        self.techniques = None
        self.pid = os.getpid()
        atexit.register(self.end)
        if WITH:
            try:
                self.apply()
            except Exception as why:  # Without them the program would need more memory than it was planned for.
                names = ", ".join(json_of(WITH))
                say(f"error: {names} cannot be applied in this process: {type(why).__name__}: {why}", "without techniques: plimsoll run -- COMMAND")
                os._exit(2)
        if LIMIT:
            torch.cuda._lazy_call(self.limit)
        self.live = self.check = None
        if CHECK:
            self.check = module("check").Check(torch, CHECK, PROGRAM, self.dump if WATCH != "light" and WATCH else None)
        if WATCH:
            self.gauges = module("gauges").Gauges(torch)
            self.live = module("live").Live(self.gauges, self.write)
            torch.cuda._lazy_call(self.start)

    def apply(self):
        import plimsoll_techniques

        self.techniques = plimsoll_techniques
        plimsoll_techniques.install(self.torch)
        plimsoll_techniques.activate(json_of(WITH), self)
        answer("applied")

    def limit(self):
        # PyTorch rounds the bytes down.
        cuda = self.torch.cuda
        for device in range(cuda.device_count()):
            total = cuda.get_device_properties(device).total_memory
            if LIMIT > total:
                say(f"--memory-limit: {cuda.get_device_name(device)} has {total} bytes, fewer than {LIMIT}: no limit")
            else:
                cuda.set_per_process_memory_fraction(min((LIMIT + 0.5) / total, 1.0), device)

    def refused(self, name, reason):
        # Before a parameter has changed: the program ends here.
        say(f"error: {name} cannot be applied to this program: {reason}", f"leave it out: {without(name)}")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(2)

    def unread(self):
        import contextlib

        return contextlib.nullcontext()

    def start(self):
        # CUDA is initialized, and nothing is allocated yet.
        try:
            if WATCH == "light":
                self.torch.cuda.memory._record_memory_history(enabled="state", context=None, stacks="python")
            else:
                self.record(True)
                if WATCH == "full":
                    self.gauges.stacks = module("stacks").Stacks(self.torch, self.record)
            self.torch._C._cuda_attach_out_of_memory_observer(self.on_out_of_memory)
        except Exception as why:  # Not being able to watch must not end the program.
            say(f"this process is not watched: {why}")
        try:
            self.live.serve()
        except Exception as why:
            say(f"no live view of this process: {why}")

    def record(self, with_stacks):
        record = self.torch.cuda.memory._record_memory_history
        options = dict(enabled="all", context="alloc" if with_stacks else None, stacks="python", max_entries=ENTRIES)
        try:
            record(global_record_annotations=True, **options)
        except TypeError:  # an older PyTorch, without that option
            record(**options)

    def on_out_of_memory(self, device, asked, total, free):
        try:
            self.path = self.dump(os.path.join(SNAPSHOTS, f"oom-{self.name()}.pickle"))
        except Exception as why:
            say(f"no snapshot of this moment: {why}")

    def name(self):
        rank = own_rank()
        return f"rank{rank}" if rank else str(os.getpid())

    def write(self):
        # A snapshot that `plimsoll top --snapshot` asks for, under a name that is not taken.
        for nth in range(1, 10_000):
            path = os.path.join(SNAPSHOTS, f"snapshot-{self.name()}-{nth}.pickle")
            if not os.path.exists(path):
                return self.dump(path)
        raise OSError(f"{SNAPSHOTS} has too many snapshots")

    def dump(self, path):
        import pickle

        cuda = self.torch.cuda
        snapshot = cuda.memory._snapshot()
        totals = {str(it): cuda.get_device_properties(it).total_memory for it in range(cuda.device_count())}
        settings = snapshot.setdefault("allocator_settings", {})
        settings["plimsoll_record"] = {"max_entries": ENTRIES, "device_total_bytes": totals}
        with open(f"{path}.unfinished", "wb") as file:
            pickle.dump(snapshot, file, protocol=4)  # PyTorch's viewer reads no newer one.
        os.replace(f"{path}.unfinished", path)
        return path

    def end(self):
        # The interpreter exits. It stores the exception that ended it, whose traceback is printed already.
        if os.getpid() != self.pid:
            return
        if self.live is not None:
            self.live.end()
        failure = getattr(sys, "last_value", None)
        if failure is not None and self.path and "out of memory" in str(failure):
            self.explain()
        elif failure is not None and self.techniques:
            self.blame(failure)
        elif failure is None:
            if self.path:
                say(f"memory ran out, and the program went on; the moment is in {self.path} (plimsoll explain {self.path})")
            self.idle()
        if self.check is not None:
            try:
                say(*self.check.compared())
            except Exception as why:
                say(f"the plan is not checked: {why}")

    def explain(self):
        import subprocess

        try:
            said = subprocess.run([PROGRAM, "explain", self.path], capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError) as why:
            said = f"not explained: {why}"
        verdict = said.strip().split("\n\n")[0]
        if self.gauges.stacks is not None and not self.gauges.stacks.are_on:
            say("this step has no stacks, which make this program's steps longer; with them: plimsoll run --all-stacks -- COMMAND")
        say(verdict, f"all of it: plimsoll explain {self.path}", f"what would make it fit: plimsoll plan {self.gpu()} -- {COMMAND}")

    def gpu(self):
        # The GPU that it runs on, as an option: by its name if `plimsoll` knows that, otherwise by its size. A limit makes it
        # a smaller one.
        import subprocess

        properties = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        size = properties.total_memory if not LIMIT else min(LIMIT + CONTEXT, properties.total_memory)
        by_size = f"--gpu {size >> 20}MiB --cc {properties.major}.{properties.minor}"
        if LIMIT:
            return by_size
        try:
            rows = subprocess.run([PROGRAM, "predict", "--list"], capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError):
            return by_size
        known = (row.split()[0] for row in rows.splitlines() if f"  {properties.name}  " in row)
        name = next(known, None)
        return f"--gpu {name}" if name else by_size

    def blame(self, failure):
        # Whether one of our techniques raised it, or was around it.
        import traceback

        from plimsoll_techniques import context

        name = context.culprit(failure)
        if name is not None:
            return self.accuse(name)
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(failure.__traceback__)]
        if any(it.startswith(context.FROZEN) for it in files):
            names = ", ".join(self.names())
            say(f"the program ran with {names}; to see whether it fails without: plimsoll run -- COMMAND")

    def failed(self, name, failure):
        import traceback

        traceback.print_exception(type(failure), failure, failure.__traceback__)
        self.accuse(name)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)

    def accuse(self, name):
        say(f"error: the failure above comes from the technique {name}", f"leave it out: {without(name)}")

    def idle(self):
        # Techniques that had nothing to do. A launcher of ranks trains nothing itself, nor does the parent of a training process.
        if {"torch.distributed.run", "torch.distributed.launcher.api"} & set(sys.modules) or self.only_starts():
            return
        for row in self.techniques.report() if self.techniques and self.torch.is_grad_enabled() else []:
            if not row["applied"]:
                why = f": {row['detail']}" if row["detail"] else ""
                say(f"{row['name']} had no effect{why}")

    def only_starts(self):
        # Whether this process made no step, and started others.
        multiprocessing = sys.modules.get("multiprocessing.process")
        counter = getattr(multiprocessing, "_process_counter", None)  # private: count(1) before the first
        steps = self.techniques is None or not self.techniques.trains()
        return steps and counter is not None and repr(counter) != "count(1)"

    def names(self):
        return [row["name"] for row in self.techniques.report()]


def own_rank():
    return os.environ.get("RANK") or os.environ.get("PLIMSOLL_OWN_RANK")  # fsdp hides it from the program


def say(*lines):
    rank = own_rank()
    who = f"plimsoll (rank {rank})" if rank else "plimsoll"
    for line in lines:
        print(f"{who}: {line}", file=sys.stderr, flush=True)


def answer(what):
    # That this process is attended to, for the launcher (answers.rs).
    if WITH and ANSWERS:
        try:
            open(os.path.join(ANSWERS, f"{os.getpid()}.{what}"), "w").close()
        except OSError:  # The launcher ends the run then.
            pass


def json_of(text):
    import json

    return json.loads(text)


def without(name):
    # The option without a technique.
    rest = [it if value is None else f"{it}={value}" for it, value in json_of(WITH).items() if it != name]
    return f"plimsoll run --with {','.join(rest)} -- COMMAND" if rest else "plimsoll run -- COMMAND"


answer("loaded")
os.register_at_fork(after_in_child=lambda: answer("loaded"))
sys.meta_path.insert(0, Finder({"torch": lambda torch: Attend(torch)}))
run_users_sitecustomize()
