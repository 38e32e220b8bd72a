"""The hooks of `plimsoll predict` inside the user's Python processes: they watch PyTorch's allocator and the
optimizers.

Every Python process of the program that imports PyTorch has them (start.py): `python -m`, torchrun's ranks, pytest.
The hooks print nothing, do not change the memory figures (except patches.py's send_objects, by a few hundred bytes),
and stop the program only after the requested steps. Each process writes `PID.json` (see report()) and, when memory runs
out and when the process ends, `PID.pickle`, PyTorch's own snapshot.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NoReturn

from .. import protocol
from .._holding.falling import Falling
from .._holding.growing import Growing
from .._waste.peak import Peak
from ..allocator import allocated, backend, dump_snapshot, levels, record_history
from ..frames import is_library
from . import compiled, marks, network, patches, settings, sparse, view
from . import device as standin
from .failure import described
from .finish import Finish
from .graphs import Graphs
from .growth import Growth
from .host import AFTER, STEP, Host, ours
from .late import Late
from .optimizers import Hosted, shares_parameters
from .reads import Reads
from .settings import number
from .shadows import Known
from .states import States
from .timing import Timing
from .varying import Varying
from .warnings import Warnings

STOP = os.path.join(settings.FOLDER, protocol.STOP)  # once it exists, processes exit; forks too
PATIENCE = 10  # an optimizer that never steps is ignored after this many times the requested steps
QUIET = 6  # reserved bytes have settled if they did not grow for this many steps
LATEST = 60  # the number of steps after which to stop waiting for settled reserved bytes
ENTRIES = 1_000_000  # the number of latest events in the history


class Watch:
    """The watcher of one process. In a forked child, all counts begin at zero."""

    has_no_values = True  # tells techniques that the device computes no values

    def __init__(self, torch: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch = torch
        self.techniques: Any = None
        self.places: list[tuple[str, str]] = []  # folders of the program's files, in a fork that serves a trial
        self.reads = Reads(json.loads(os.environ.get("PLIMSOLL_PREDICT_ASSUME") or "[]"))
        try:
            self.known: Known | None = Known(torch, self.reads.of_thread)
        except Exception:
            self.known = None  # PyTorch before 2.9 has no `get_kernel`
        self.timing = Timing(self.reads, self.known, self.stop)
        self.finish_up = Finish(torch)
        self.states, self.late, self.varying = States(torch, lambda: self.steps), Late(torch), Varying()
        self.growth, self.growing, self.falling = Growth(torch, self.states), Growing(torch), Falling(torch)
        self.warnings, self.graphs = Warnings(torch, self.reads), Graphs(torch, self.count)
        self.hosted = Hosted(torch)
        sparse.torch_save(torch)
        self.host = Host(torch)
        self.peak: Peak | None = None
        self.listening: int | None = None  # the process whose thread waits for the stop file: forks do not copy it
        self.begin()
        self.listen()
        os.register_at_fork(after_in_child=self.begin)
        torch.cuda._lazy_call(self.start)
        register_optimizer_step_post_hook(self.stepped)
        self.watch_optimizers()
        atexit.register(patches.end_groups, torch, os.getpid())  # runs after the next line's
        atexit.register(self.end)
        patches.trust_values(torch)
        if settings.WITH:
            self.apply(torch, settings.WITH)
        if settings.PLAN:
            from .serve import Serve

            self.served = Serve(torch, self, settings.PLAN, STOP)
        if settings.ALONE:
            patches.stand_alone(torch)
        elif torch.distributed.is_available():
            patches.send_objects(torch)
        # Children of multiprocessing exit this way, and so do some programs.
        self.leave: Callable[[int], NoReturn] = os._exit
        os._exit = self.exit
        self.report()

    def begin(self) -> None:
        """Sets all counts to zero, at the start and in a forked child."""
        self.pid = os.getpid()
        self.started, self.allocator = False, "native"
        self.visible: list[str] = []  # CUDA_VISIBLE_DEVICES when CUDA was initialized
        self.state, self.stopping = "running", False
        self.failures = self.failed_step = 0  # requests that ran out of memory; the step of the last of them
        self.status, self.is_dumped = 0, False  # the status that it exits with; whether a failed request was recorded
        self.steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by optimizer
        self.passes: dict[tuple[CodeType, int], int] = {}  # backward passes by line, while there is no optimizer
        self.counted = 0  # the number of steps so far
        self.outside: int | None = None  # bytes that were allocated outside PyTorch's allocator; None: unknown
        self.after_error: protocol.Thrown | None = None  # the exception that ended the code after the steps
        self.peaks: dict[tuple[int, str], tuple[int, int]] = {}  # by device: bytes, and the step
        self.peaks_of_steps: dict[tuple[int, str], tuple[int, int]] = {}  # of the steps, if code runs after them
        self.requested: dict[int, int] = {}  # by device: all bytes that were ever requested of the allocator
        self.retries: dict[int, int] = {}  # by device: how often the allocator released cached memory
        self.error: protocol.Thrown | None = None
        self.refusal: protocol.Refusal | None = None  # the technique that cannot be applied, and the reason

    def apply(self, torch: Any, wanted: str) -> None:
        """Applies the techniques of `--with`."""
        from .. import techniques

        self.techniques = techniques
        techniques.install(torch)
        techniques.activate(json.loads(wanted), self)

    def refused(self, name: str, reason: str) -> None:
        """Ends the process because a technique cannot be applied."""
        self.refusal = protocol.Refusal(technique=name, reason=reason)
        self.stop("refused", 0)

    def failed(self, name: str, failure: BaseException) -> None:
        """Ends the process because a technique raised an exception."""
        self.error = described(failure, name)
        self.stop("failed", 1)

    @contextlib.contextmanager
    def unread(self) -> Iterator[Any]:
        """A context in which copies of unknown values to the host do not count as the program's reads."""
        state = self.reads.of_thread
        before = getattr(state, "unread", False), getattr(state, "known", False)
        state.unread = state.known = True
        try:
            yield
        finally:
            state.unread, state.known = before

    def start(self) -> None:
        """Called when CUDA is initialized in this process and nothing is allocated yet."""
        self.started = True
        self.visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
        self.allocator = backend(self.torch)
        if self.allocator != "native":
            # Only the native allocator records its blocks.
            self.listen()
            marks.mark(protocol.STARTED)
            return self.report()
        if settings.RECORDS:
            record_history(self.torch, stacks="all", max_entries=ENTRIES)
        self.torch._C._cuda_attach_out_of_memory_observer(self.on_out_of_memory)
        if settings.RECORDS:
            self.listen()
        if settings.PLAN is None if settings.RECORDS else settings.LOOKS:
            self.look()
        marks.mark(protocol.STARTED)
        self.report()

    def look(self) -> None:
        """Looks for memory at the peak that is not read again."""
        if settings.ranks() == 1:
            self.peak = Peak(self.torch, self.steps)
            self.peak.start()

    def watch_optimizers(self) -> None:
        """Counts steps. A step counts once every optimizer has stepped, except those that wrap another optimizer;
        without an optimizer, backward passes are counted.
        """
        torch, watch = self.torch, self
        begin, backward = torch.optim.Optimizer.__init__, torch.autograd.backward

        @functools.wraps(begin)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            watch.steps.setdefault(self, 0)
            watch.warnings.made(self, sys._getframe(1))
            watch.late.begin()
            watch.finish_up.made(sys._getframe(1))
            begin(self, *args, **kwargs)

        @functools.wraps(backward)
        def counted(*args: Any, **kwargs: Any) -> Any:
            watch.backward_begins()
            return backward(*args, **kwargs)

        torch.optim.Optimizer.__init__ = __init__
        torch.autograd.backward = counted

    def stepped(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called after an optimizer's step."""
        if self.state != "running" or self.hosted.is_one(optimizer):
            return
        step = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        self.host.stepped(optimizer, step)
        if self.peak is not None:
            self.peak.gradients.stepped(optimizer)
            self.falling.stepped(optimizer, step, max(levels(self.torch), default=0))
        steps = [n for it, n in self.steps.items() if n or not shares_parameters(it, optimizer)]
        is_waiting = max(steps) < PATIENCE * max(settings.STEPS, 3)  # for optimizers that have not stepped
        self.count_steps(min(it for it in steps if it or is_waiting))

    def backward_begins(self) -> None:
        """Called as a backward pass begins. The next call of `backward` at the first such line ends a step."""
        self.host.enter(STEP)
        if self.peak is not None:
            self.peak.backward(sys._getframe(2))
        if self.state != "running" or len(self.steps):
            return
        self.late.begin()
        frame = sys._getframe(2)
        while frame.f_back is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        line = frame.f_code, frame.f_lasti
        del frame
        done = min(self.passes.values(), default=0)
        begins = not self.passes or line == next(iter(self.passes))
        if done and begins:
            self.count_steps(done)
        self.passes[line] = self.passes.get(line, 0) + 1

    def count_steps(self, steps: int) -> None:
        """Called when this many steps are done."""
        if self.timing.is_on:
            self.counted = steps
            return self.timing.stepped(steps)
        finish = self.finish_up
        if finish.finishing:
            if not finish.goes_on(sys._getframe(1), self.growth.scopes):
                self.stop("stopped", 0)
            return
        if steps <= self.counted:
            return
        self.counted = steps
        self.measure(steps)
        finish.stepped(self.growth.scopes)
        # While batches vary, levels may rise only because batches get larger.
        self.growth.note(self.peaks, varies=self.varying.began is not None, given=finish.given)
        self.varying.note(self.requested, self.peaks, self.states.unfrozen)
        if finish.runs_on:
            return self.begin_rest() if finish.ran_on(steps, self.growth.total) else None
        self.late.ends_early = finish.may_go_on()
        self.late.stepped(steps, sys._getframe(1))
        is_last = 0 < settings.STEPS <= steps and self.has_settled(steps) and not finish.is_unsure(self.growth)
        if is_last:
            self.growth.look(sys._getframe(1), steps, finish.given)
            total, grows = self.growth.total, bool(self.growth.growing())
            is_last = not self.late.waits(steps, total) and not self.varying.waits(total, grows)
        if settings.PLAN is None:
            self.growth.survey(self.growing, sys._getframe(1), steps, is_last)
        if is_last and not settings.STOPS and finish.may_go_on():
            self.begin_rest()
        elif is_last and not finish.can_run_on(sys._getframe(1), steps, self.growth.total, self.growth.scopes):
            self.stop("stopped", 0)
        self.report()

    def begin_rest(self) -> None:
        """Called when the steps are done and the code after them begins."""
        self.peaks_of_steps = dict(self.peaks)
        self.late.end()
        self.finish_up.begin()
        self.host.enter(AFTER)

    def has_settled(self, steps: int) -> bool:
        """Whether the reserved bytes have stopped growing: because of fragmentation, they may grow for many steps."""
        grown = max((step for (_, name), (_, step) in self.peaks.items() if name == "reserved"), default=0)
        return not settings.SETTLES or steps >= min(grown + QUIET, LATEST)

    def on_out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """Called when a request has failed: records the peak, and writes a snapshot of this moment."""
        self.failures += 1
        if settings.BEYOND and self.failures == settings.AFTER:
            standin.extend(settings.BEYOND)
        self.failed_step = self.count() + 1
        self.measure(self.failed_step)
        if settings.PLAN is None:
            self.growing.ran_out(device, allocated(self.torch, device))
        for name in ("allocated", "reserved"):
            self.peaks.setdefault((device, name), (0, self.failed_step))  # even for a device without memory so far
        with ours():
            self.dump()
        self.is_dumped = True
        self.report()

    def listen(self) -> None:
        """Starts this process's thread that waits for the stop file."""
        if self.listening != self.pid:
            self.listening = self.pid
            threading.Thread(target=self.expire, args=(self.pid,), daemon=True).start()

    def expire(self, pid: int) -> None:
        """Runs in the waiting thread: ends the process when the stop file exists or the time for the rest is up."""
        while not os.path.exists(STOP):
            time.sleep(0.1)
            if os.getpid() != pid or not os.path.isdir(settings.FOLDER):
                return
            finish = self.finish_up
            if self.state == "running" and (finish.finishing or finish.runs_on):
                if finish.finishing:
                    finish.note_level()
                if finish.is_up():
                    finish.look(sys._current_frames().get(threading.main_thread().ident or 0), self.growth.scopes)
                    return self.stop("stopped", 0)
        # A process that only started others, like torchrun, waits for their reports.
        until = time.time() + 10
        while not self.started and marks.marks(protocol.DONE) < marks.marks(protocol.STARTED) and time.time() < until:
            time.sleep(0.02)
        self.stop("expired", 124)

    def end(self) -> None:
        """Called at interpreter exit. Stores the exception that ended the process, if an exception did."""
        if self.state != "running" or os.getpid() != self.pid:
            return marks.wait_while(lambda: self.stopping)  # the waiting thread ends this process
        self.state = "ended"
        failure = getattr(sys, "last_value", None)
        if failure is not None and (self.finish_up.finishing or self.timing.is_on) and not self.failures:
            # The steps succeeded, and the code after them failed, perhaps because its loop was shortened.
            self.state, self.after_error = "stopped", described(failure)
            self.finish(dump=True)
            marks.wait_for_others()
            self.leave(0)
        if failure is not None:
            self.state = "failed"
            self.error = described(failure)
            if self.allocator != "native" and "out of memory" in str(failure):
                self.failures, self.failed_step = 1, self.count() + 1
                self.measure(self.failed_step)
        # If memory ran out and ended the program, keep the snapshot of that moment.
        self.finish(dump=failure is None or not self.is_dumped)

    def exit(self, status: int) -> NoReturn:
        """Replaces `os._exit`: writes the report first."""
        self.status = status if isinstance(status, int) else 1
        self.end()
        self.leave(status)

    def stop(self, state: str, code: int) -> None:
        """Exits without running the program's `finally` blocks or handlers, which might save a model of zeros."""
        self.state = state
        self.stopping = threading.current_thread() is not threading.main_thread()
        code = code if self.finish(dump=True) else code or 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if "multiprocessing.process" in sys.modules:
            for child in sys.modules["multiprocessing.process"].active_children():
                child.terminate()
        marks.wait_for_others()
        self.leave(code)

    def finish(self, dump: bool) -> bool:
        """Makes the last measurement, report and, with `dump`, snapshot. Never raises. Returns whether they were written."""
        try:
            self.measure(self.count() + 1)
            self.host.end()
            if self.started and dump:
                self.dump()
            self.report()
            if self.started:
                self.host.weigh()
                marks.mark(protocol.DONE)
            return True
        except Exception as why:
            print(f"plimsoll: the memory of process {self.pid} is not recorded: {why}", file=sys.stderr)
            return False

    def count(self) -> int:
        """The number of steps so far."""
        return self.counted

    def measure(self, step: int) -> None:
        """Records peaks that are higher than before as peaks of this step."""
        if not self.started:
            return
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats(device)
            self.retries[device] = stats.get("num_alloc_retries", 0)
            self.requested[device] = stats.get("allocated_bytes.all.allocated", 0)
            if self.allocator == "native":
                self.measure_outside(device, stats.get("reserved_bytes.all.current", 0))
            taken = 0 if self.allocator == "native" else standin.taken_bytes(device)
            for name in ("allocated", "reserved"):
                peak = stats.get(f"{name}_bytes.all.peak", 0) or taken
                if peak > self.peaks.get((device, name), (0, 0))[0]:
                    self.peaks[device, name] = (peak, step)
        self.host.events()

    def measure_outside(self, device: int, reserved: int) -> None:
        """Records the bytes that libraries requested from CUDA directly."""
        requested = standin.requested_bytes(device)
        if requested is not None and self.torch.cuda.is_initialized():
            self.outside = max(self.outside or 0, requested - reserved)

    def gpu(self, device: int) -> int:
        """The index of one of this process's devices among all GPUs of the machine."""
        visible = self.visible[device].strip() if device < len(self.visible) else ""
        return int(visible) if visible.isdecimal() else device

    def dump(self) -> None:
        """Writes PyTorch's snapshot."""
        if self.allocator != "native" or not settings.RECORDS:
            return
        dump_snapshot(self.torch, os.path.join(settings.FOLDER, f"{self.pid}.pickle"), list(self.steps))

    def report(self) -> None:
        """Writes this process's report: protocol.py has its fields."""
        torch = self.torch
        devices: list[protocol.Peaks] = []
        requested, outside, refused = standin.outside(torch.cuda.device_count() if self.started else 0)
        for device in sorted({device for device, _ in self.peaks}):
            peaks = [self.peaks.get((device, name), (0, 0)) for name in ("allocated", "reserved")]
            of_steps = [self.peaks_of_steps.get((device, name), (0, 0)) for name in ("allocated", "reserved")]
            allocated, reserved = peaks
            devices.append(
                protocol.Peaks(
                    device=device,
                    gpu=self.gpu(device),
                    allocated_bytes=allocated[0],
                    allocated_step=allocated[1],
                    reserved_bytes=reserved[0],
                    reserved_step=reserved[1],
                    grows_by=max(later[0] / max(steps[0], 1) - 1 for later, steps in zip(peaks, of_steps)),
                    requested_bytes=requested.get(device, 0),
                    outside_bytes=sum(row["bytes"] for row in outside if row["device"] == device),
                )
            )
        finish = self.finish_up
        is_cut = self.state == "stopped" or bool(finish.finishing and (finish.cut or not finish.is_whole))
        fields = protocol.Report(
            protocol=protocol.VERSION,
            pid=self.pid,
            rank=number("RANK"),
            alone=settings.ALONE,
            command=sys.argv,
            state=self.state,
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            standin=standin.has_standin(),
            allocator=self.allocator,
            started=self.started,
            steps=self.count(),
            failures=self.failures,
            status=self.status,
            failed_step=self.failed_step,
            retries=sum(self.retries.values()),
            devices=devices,
            cudnn_search=torch.backends.cudnn.benchmark,
            outside_bytes=self.outside,
            outside=outside,
            refused=refused,
            compile_caches=compiled.compile_caches(),
            compiles=compiled.compiles(),
            libraries=standin.libraries(),
            error=self.error,
            reads=self.reads.rows(),
            problems=self.reads.problems + (self.reads.unused() if self.state != "running" else []),
            cut=is_cut,
            went_on=bool(finish.finishing),
            whole=finish.is_whole,
            ended=self.state == "ended",
            late=finish.late(self.late.rows(self.growth.total, self.count())) if is_cut else [],
            after=finish.after if self.state == "stopped" else [],
            unseen=finish.unseen() if self.state == "stopped" else [],
            after_error=self.after_error,
            breaks=self.growth.find_break(self.reads.sites.values(), self.count(), self.state),
            growth=finish.growth(self.growth, self.growing.found),
            climbs=[] if finish.is_whole else self.growth.climbs(),
            varying=[] if finish.is_whole else self.varying.rows(finish.steps_left(self.growth)),
            batches=finish.batches.row() if finish.batches else None,
            holders=self.growing.rows(),
            loops=finish.cut_loops(),
            grew=self.state == "stopped" and finish.grew(self.growth),
            warnings=self.warnings.rows(self.growth.total if is_cut else self.count()),
            graphs=[] if self.passes else self.graphs.rows(self.state == "ended", trains=bool(len(self.steps))),
            falls=self.falling.rows() if self.state != "running" else [],
            waste=self.peak.report() if self.peak is not None else [],
            trains=bool(self.counted or len(self.steps) or self.passes or self.graphs.asked),
            captures=self.warnings.captures,
            techniques=self.techniques.report() if self.techniques else [],
            refusal=self.refusal,
            written=view.written(self.places) if self.state != "running" else [],
            hosts=sorted(network.KNOWN),
        )
        path = os.path.join(settings.FOLDER, f"{self.pid}.json")
        with open(f"{path}.unfinished", "w") as file:
            json.dump(fields, file)
        os.replace(f"{path}.unfinished", path)
