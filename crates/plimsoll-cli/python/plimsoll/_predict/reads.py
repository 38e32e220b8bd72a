"""The values that the program reads from the device: where it reads them, and what it uses them for. The simulated GPU
(plimsoll-standin) calls a hook for every copy of an unknown value to the host. The program gets zeros unless the hook
replaces them, for example by 1 if the program divides by the value.

A read is identified by its line and call stack (a site). How its value is used is determined once per site
(dataflow.py). Some operators themselves read a value: for example, the number of elements that `nonzero` found is the
size of its result.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .. import protocol
from .._inject.sitecustomize import FROZEN
from ..frames import is_library
from . import dataflow
from .source import Sink

if TYPE_CHECKING:
    Line = tuple[str, int, str]  # a file, the number, and the function

FRAMES = 4  # the number of innermost frames that identify a site
MOST = 500  # sites in the report
# PyTorch's operators that return a value, or a copy of it, to Python: code that uses the result of the call uses the
# value.
RETURNING = set(
    "item to copy_from _local_scalar_dense copy_ _to_copy to_dtype_layout to_device to_dtype to_other clone contiguous equal is_nonzero"
    " allclose _is_all_true _is_any_true cpu pin_memory _copy_from".split()
)
# Operators that read to check an argument, or to get a value on which no size depends.
CHECKING = set(
    "multinomial normal bernoulli histc quantile nanquantile _assert_async cholesky cholesky_ex inv inverse lstsq"
    " ctc_loss _ctc_loss nll_loss embedding_renorm_ cumprod logdet slogdet lstm gru rnn_tanh rnn_relu".split()
)
# A bool that these operators read says whether an argument is valid (in PyTorch before 2.15).
PASSING = ("repeat_interleave",)
# These operators read how many results they have.
COUNTING = set("nonzero _unique2 unique_consecutive unique_dim nms".split())
BOUNDED = ("nonzero", "nms")  # those of the COUNTING operators whose results are elements of a known tensor
# Code in these files only stores or prints values that it reads.
SHOWING = (
    "/torch/_tensor_str.py /torch/serialization.py /torch/distributed/checkpoint/ /safetensors/ /logging/__init__.py"
    " /torch/utils/tensorboard/ /tensorboard/ /tensorboardX/ /wandb/ /mlflow/ /torch/storage.py /torch/multiprocessing/"
).split()
# In this file and these functions, `Module.to`, `cpu` and similar methods copy parameters and buffers: their values
# decide nothing.
MODULE, CONVERTING = "/torch/nn/modules/module.py", ("convert", "<lambda>", "_apply")
GENERATION = "/transformers/generation/"
# When these functions read a size, they get the maximum of the size: sequences are as long as possible, and every
# candidate of an assistant model is accepted. With zeros, assisted generation would never accept a token, and never
# end.
LONGEST = ("_beam_search", "_assisted_decoding")
HISTORY = "/torch/optim/lbfgs.py"  # warnings.py reports the vectors that L-BFGS keeps
EVERYWHERE = 0  # a line number of --assume that stands for all lines whose values decide sizes
OPERATOR = re.compile(r"_ZN2at4_ops(\d+)")
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t)  # the hook of plimsoll-standin


class Site:
    """A line that reads a value, with one call stack: how the value is used, and the value that the program gets in its
    place.
    """

    def __init__(
        self, number: int, place: Line | None, via: Line | None, operator: str | None, fate: str, sinks: list[Sink]
    ) -> None:
        self.number, self.place, self.via, self.operator = number, place, via, operator
        self.fate, self.sinks, self.count, self.even = fate, sinks, 0, False
        self.value: Any = None
        self.matched: list[tuple[str, int]] = []  # the lines of --assume that name this site
        self.is_used = False  # whether the program got the assumed value
        self.is_everywhere = False  # whether the value is assumed at all lines
        self.divides = False  # whether the program divides by the value
        self.bounds: tuple[Any, Any] | None = None  # the smallest and largest value within the bounds

    def is_given(self) -> bool:
        """Whether the site's value comes from --assume or is the maximum of the value, and is not merely a 1 in place
        of a zero.
        """
        return bool(self.matched) or self.is_everywhere or self.value == "max"

    def taken(self) -> tuple[Any, Any] | None:
        """The range of the values that the program got without --assume; None if all were zero."""
        return (self.value, self.value) if self.is_used and not self.is_given() else self.bounds

    def row(self) -> protocol.Read:
        """The site as a row of the report."""
        file, line, function = self.place or (None, None, None)
        return protocol.Read(
            file=file,
            line=line,
            function=function,
            text=line_of(self.place),
            via=self.via and protocol.Place(file=self.via[0], line=self.via[1], text=line_of(self.via)),
            operator=self.operator,
            fate=self.fate,
            sinks=[
                protocol.Sink(kind=it.kind, file=it.file, line=it.line, text=line_of((it.file, it.line)))
                for it in self.sinks
            ],
            count=self.count,
            assumed=self.value if self.is_used and self.is_given() else None,
            taken=self.taken(),
            generates=self.via is not None and GENERATION in self.via[0],
            even=self.even,
        )


def line_of(place: tuple[Any, ...] | None) -> str:
    """The text of a source line."""
    import linecache

    return linecache.getline(place[0], place[1]).strip()[:160] if place else ""


class Reads:
    """All reads of this process. `assumed` are the values of `--assume`: file, line, value."""

    def __init__(self, assumed: list[tuple[str, int, Any]]) -> None:
        self.assumed = assumed  # [(file, line, value)]
        self.sites: dict[tuple[Any, ...], Site] = {}
        self.codes: list[CodeType] = []  # keeps the code objects, because sites identify them by address
        self.of_thread = threading.local()
        self.used: set[tuple[str, int]] = set()  # assumptions for lines that read nothing themselves
        self.problems: list[str] = []  # assumptions that could not be applied
        self.library = ctypes.CDLL(None)
        if not hasattr(self.library, "plimsoll_standin_on_read"):
            return
        self.listener = LISTENER(self.on_read)
        self.library.plimsoll_standin_on_read(self.listener)
        import atexit

        atexit.register(self.stop)

    def stop(self) -> None:
        """From now on, the program gets zeros."""
        if hasattr(self.library, "plimsoll_standin_on_read"):
            self.library.plimsoll_standin_on_read(LISTENER())

    def on_read(self, to: int, _from: int, count: int) -> None:
        """The hook that plimsoll-standin calls after it has copied zeros to the host. A failure here must not end the
        program.
        """
        state = self.of_thread
        if getattr(state, "busy", False) or sys is None:
            return
        state.busy = True
        try:
            pending = getattr(state, "pending", None)
            if pending is not None:
                # Called for an operator that counts elements whose number is known.
                if count in (4, 8):
                    ctypes.memmove(to, pending.to_bytes(count, sys.byteorder), count)
                if not getattr(state, "even", False) and not getattr(state, "bounded", False):
                    return
            if getattr(state, "known", False):
                return
            site = self.site(sys._getframe(1))
            if site is None:
                return
            site.count += 1
            if getattr(state, "even", False):
                site.even = True
            elif count == 1 and site.operator in PASSING:
                ctypes.memset(to, 1, 1)
            elif site.value is not None and (site.is_given() or not getattr(state, "bounded", False)):
                assumed = self.bytes_of(site, count)
                if assumed is not None:
                    site.is_used, state.assumed = True, site.is_given()
                    ctypes.memmove(to, assumed, count)
            if not getattr(state, "assumed", False):
                bound = getattr(state, "bound", None)
                site.bounds = bound if site.count == 1 else widened(site.bounds, bound)
        except Exception as why:
            print(f"plimsoll: cannot trace a read of the device: {why!r}", file=sys.stderr)
        finally:
            state.busy = False

    def site(self, frame: FrameType | None) -> Site | None:
        """The site of a read in this frame; None if there are too many."""
        frames: list[FrameType] = []
        while frame is not None and len(frames) < 40:
            if not frame.f_code.co_filename.startswith(FROZEN):
                frames.append(frame)
            frame = frame.f_back
        operator = getattr(self.of_thread, "operator", None)
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames[:FRAMES]) + (operator,)
        if key not in self.sites:
            if len(self.sites) >= MOST:
                return None
            is_collecting = gc.isenabled()
            gc.disable()  # a collection here would free the program's reference cycles early
            self.codes += [frame.f_code for frame in frames[:FRAMES]]
            try:
                self.sites[key] = self.new_site(frames, operator)
            finally:
                if is_collecting:
                    gc.enable()
        return self.sites[key]

    def new_site(self, frames: list[FrameType], operator: str | None) -> Site:
        """Determines how a value that is read here for the first time is used."""
        place: Callable[..., Any] = lambda it: (it.f_code.co_filename, it.f_lineno, it.f_code.co_name)
        own = next((it for it in frames if not is_library(it.f_code.co_filename)), None)
        via = frames[0] if frames and frames[0] is not own else None
        operator = operator or self.operator()
        sinks, divides = [], False
        if any(part in it.f_code.co_filename for it in frames[:12] for part in SHOWING):
            fate = "shown"
        elif frames and is_conversion(frames[0]):
            fate = "shown"
        elif operator in CHECKING or (operator or "").startswith(("linalg_", "_linalg_")):
            fate = "shown"
        elif operator is not None and operator not in RETURNING:
            fate, at = "size", own or via
            sinks = [Sink("size", at.f_code.co_filename, at.f_lineno)] if at else []
        elif not frames:
            fate = "unknown"
        else:
            sinks, divides = dataflow.use(frames)
            kinds = [it.kind for it in sinks]
            fate = next((kind for kind in ("size", "branch", "unknown") if kind in kinds), "shown")
        if fate == "size" and frames and frames[0].f_code.co_filename.endswith(HISTORY):
            fate = "branch"  # a separate warning reports the size of the history of L-BFGS
        site = Site(len(self.sites), own and place(own), via and place(via), operator, fate, sinks)
        if frames and frames[0].f_code.co_name in LONGEST and GENERATION in frames[0].f_code.co_filename:
            site.value = "max"
        elif divides:
            site.value, site.divides = 1, True
        is_open = fate == "size" and not (via and GENERATION in via.f_code.co_filename)
        for file, line, value in self.assumed:
            if line == EVERYWHERE and is_open:
                site.value, site.is_everywhere = value, True
            if any(it.f_lineno == line and is_file(it.f_code.co_filename, file) for it in frames[:12]):
                site.value = value
                site.matched.append((file, line))
        return site

    def operator(self) -> str | None:
        """The outermost of PyTorch's operators below the program's Python code. The wrappers of shadows.py may be in
        between: each wrapper has one Python frame that C code called (`dispatched`), which is a separate entry on the C
        stack.
        """
        room = 1 << 16
        text = ctypes.create_string_buffer(room)
        written = self.library.plimsoll_standin_stack(text, room)
        names = text.raw[:written].decode(errors="replace").splitlines()
        frame: FrameType | None = sys._getframe(1)
        ours = 0
        while frame is not None and frame.f_code.co_filename.startswith(FROZEN):
            ours += frame.f_code.co_name == "dispatched"
            frame = frame.f_back
        begun, inside = False, False
        found: str | None = None
        for name in names:
            begun = begun or name.startswith(("cudaMemcpy", "cuMemcpy"))
            is_python = begun and name.startswith(("_PyEval_EvalFrame", "_PyFunction_Vectorcall"))
            if is_python and not inside:
                ours -= 1
                if ours < 0:
                    break
            inside = is_python or (inside and name.startswith(("Py", "_Py")))
            match = OPERATOR.match(name) if begun else None
            if match:
                at = match.end()
                found = name[at : at + int(match.group(1))]
        return found and without_overload(found)

    def bytes_of(self, site: Site, count: int) -> bytes | None:
        """The assumed value of a site as `count` bytes, in the dtype of the tensor that is read. None if the value does
        not fit or is unknown.
        """
        import struct

        tensor = getattr(self.of_thread, "tensor", None)
        value = site.value
        if value in ("max", "half"):
            value = self.extreme(site, tensor, value, count)
            if value is None and site.divides:
                value = 1
            elif value is None:
                self.problem(site, f"`{site.value}` is unknown there: give a number")
                return None
        if site.operator in COUNTING:
            if site.operator in BOUNDED and tensor is not None:
                value = min(value, tensor.numel())
            return int(value).to_bytes(count, sys.byteorder) if count in (4, 8) else None
        kind: Any = str(tensor.dtype).removeprefix("torch.") if tensor is not None else None
        size = tensor.element_size() if tensor is not None else count
        floats = dict(float64="d", float32="f", float16="e")
        try:
            if kind == "bfloat16":
                one = struct.pack("f", float(value))[2:]
            elif kind in floats or (kind is None and count == 4 and site.operator in RETURNING):
                one = struct.pack(floats.get(kind, "f"), float(value))
            elif kind == "bool":
                one = bytes([bool(value)])
            else:
                one = int(value).to_bytes(size if size in (1, 2, 4, 8) else 8, sys.byteorder, signed=True)
        except (OverflowError, struct.error):
            self.problem(site, f"{value} does not fit in {kind or f'{count} bytes'}")
            return None
        return (one * (count // len(one) + 1))[:count]

    def extreme(self, site: Site, tensor: Any, which: str, count: int) -> Any:
        """The largest plausible value at a site, or half of it, as `which` says. None if that is unknown."""
        if tensor is None:
            return None
        if str(tensor.dtype) == "torch.bool" and site.operator in RETURNING:
            return True if which == "max" else site.count % 2
        if site.operator in RETURNING:
            return dataflow.bound_of(outer(), which)
        if site.operator not in BOUNDED:
            # The tensor is a number that the operator computed, so it does not bound the result.
            bound = getattr(self.of_thread, "bound", None)
            return bound and bound[1]
        return tensor.numel() if which == "max" else tensor.numel() // 2

    def problem(self, site: Site, text: str) -> None:
        """Records that a value of `--assume` could not be applied."""
        file, line, _ = site.place or site.via or ("", 0, "")
        text = f"--assume {os.path.basename(file)}:{line}: {text}"
        if text not in self.problems:
            self.problems.append(text)

    def given(self, place: tuple[str, int] | None) -> Any:
        """The value of --assume for a line that reads nothing itself, such as one that creates an optimizer."""
        for file, line, value in self.assumed:
            if place and line == place[1] and is_file(place[0], file):
                self.used.add((file, line))
                return value
        return None

    def unused(self) -> list[str]:
        """Assumptions for lines that read nothing."""
        used = self.used | {(file, line) for site in self.sites.values() for file, line in site.matched}
        return [
            f"--assume {file}:{line}: no unknown value was read there"
            for file, line, _ in self.assumed
            if line != EVERYWHERE and (file, line) not in used
        ]

    def rows(self) -> list[protocol.Read]:
        """Rows for the report. Sites with the same line and different call stacks share a row."""
        rows: dict[tuple[Any, ...], protocol.Read] = {}
        for site in list(self.sites.values()):
            row = site.row()
            via = row["via"]
            place = (via["file"], via["line"]) if via else (None, None)
            key = row["file"], row["line"], *place, row["operator"], row["fate"]
            if key in rows:
                rows[key]["count"] += row["count"]
                rows[key]["even"] = rows[key]["even"] or row["even"]
                rows[key]["taken"] = widened(rows[key]["taken"], row["taken"])
                rows[key]["sinks"] += [it for it in row["sinks"] if it not in rows[key]["sinks"]]
            else:
                rows[key] = row
        return list(rows.values())


def widened(one: tuple[Any, Any] | None, other: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    """The smallest range that contains both ranges. None stands for zeros."""
    if one is None and other is None:
        return None
    (least, most), (low, high) = one or (0, 0), other or (0, 0)
    return min(least, low), max(most, high)


def without_overload(name: str) -> str:
    """The operator's name without its overload: `repeat_interleave` for `repeat_interleave_self_Tensor`."""
    aten, parts = sys.modules["torch"].ops.aten, name.split("_")
    for end in range(len(parts), 0, -1):
        short = "_".join(parts[:end])
        if short and hasattr(aten, short):
            return short
    return name


def outer() -> FrameType:
    """The innermost frame outside our code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(FROZEN):
        frame = frame.f_back
    assert frame is not None
    return frame


def is_conversion(frame: FrameType) -> bool:
    """Whether the code of this frame moves or converts a module."""
    return frame.f_code.co_filename.endswith(MODULE) and frame.f_code.co_name in CONVERTING


def is_file(path: str, wanted: str) -> bool:
    """Whether a path ends with the file name that `--assume` gives."""
    return path == wanted or path.endswith("/" + wanted.removeprefix("./"))
