"""Memory that grows from step to step, and how many steps the program's loops will make.

The number of steps is read from the source of the loops around the step: `range(N)`, a list, a DataLoader, each with
the values that the program's variables have. None of the program's code is called. A `while` loop has no known
number.
"""

from __future__ import annotations

import ast
import linecache
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import protocol

LEAST = 16 << 10  # bytes a step, below which growth does not matter
ROWS = 6  # steps over which memory that grows is seen to grow
CONFIRM = 200  # steps after which growth is believed: a list may be cleared, a cache may be full
SECONDS = 10.0  # that they may take
AROUND = {"enumerate", "tqdm", "iter", "list", "tuple", "reversed", "sorted", "track", "prefetch"}
LENGTHS = (list, tuple, dict, set, frozenset, range, str, bytes)


def allocated(torch: Any, device: int) -> int:
    """Allocated bytes of a device now."""
    return int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"])


def rises(levels: list[int]) -> list[int]:
    """The rise of each level over the one before."""
    return [after - before for before, after in zip(levels, levels[1:])]


def is_growing(levels: list[int]) -> bool:
    """Whether the last levels never fell, and rose in at least every second step."""
    last = rises(levels[-ROWS - 1 :])
    return len(last) == ROWS and min(last) >= 0 and 2 * sum(it >= LEAST for it in last) >= ROWS


class Growth:
    """The allocated bytes at the end of each step, and the number of steps of the whole program."""

    def __init__(self, torch: Any, is_library: Callable[[str], bool]) -> None:
        self.torch, self.is_library = torch, is_library
        self.levels: dict[int, list[int]] = {}  # by device: allocated bytes at the end of each step
        self.total: int | None = None  # steps of the whole program; None: unknown
        self.began: float | None = None  # when memory was first seen to grow

    def note(self) -> None:
        """Notes the levels at the end of a step."""
        for device in range(self.torch.cuda.device_count()):
            self.levels.setdefault(device, []).append(allocated(self.torch, device))

    def is_unsure(self) -> bool:
        """Whether the latest steps grew, and more steps would show whether that goes on."""
        return any(self.is_open(device, levels) for device, levels in self.levels.items())

    def is_open(self, device: int, levels: list[int]) -> bool:
        """The same for one device."""
        if len(levels) <= ROWS:
            # In every second step, too.
            last = rises(levels)[-1:] if len(levels) <= 3 else rises(levels)[-2:]
            return max(last, default=0) >= LEAST
        if not is_growing(levels):
            return False
        self.began = self.began or time.monotonic()
        is_patient = len(levels) < CONFIRM and time.monotonic() - self.began < SECONDS
        return is_patient and self.has_room(device, levels)

    def has_room(self, device: int, levels: list[int]) -> bool:
        """Whether the device has memory for some more steps: the step in which it runs out is computed."""
        free, _ = self.torch.cuda.mem_get_info(device)
        unused = self.torch.cuda.memory_reserved(device) - levels[-1]
        return bool(free + unused > 8 * max(rises(levels[-ROWS - 1 :])))

    def rows(self) -> list[protocol.GrowingSteps]:
        """Rows for the report: the devices whose memory grows, and by how much a step."""
        found = []
        for device, levels in self.levels.items():
            if not is_growing(levels):
                continue
            each = sorted(rises(levels[-ROWS:]))[ROWS // 2 - 1]  # a block may take the rest of a larger one with it
            if len(levels) > 2 * ROWS:
                later = levels[len(levels) // 2 :]
                each = (later[-1] - later[0]) // (len(later) - 1)
            if each >= LEAST:
                found.append(protocol.GrowingSteps(device=device, bytes=each, steps=len(levels), total=self.total))
        return found

    def look(self, frame: FrameType, steps: int, given: int) -> None:
        """At the end of a step: `frame` is in the program or in PyTorch, `given` the batches of its loaders so far."""
        if self.total is None:
            try:
                self.total = self.of_loops(frame, steps, given)
            except Exception:
                self.total = None  # source that is read wrongly says nothing

    def of_loops(self, frame: FrameType | None, steps: int, given: int) -> int | None:
        """The number of steps that the loops around a frame make; None if one of them has no number."""
        total: int | None = None
        done: int | None = None
        while frame is not None:
            if not self.is_library(frame.f_code.co_filename):
                for loop in around(frame):
                    if isinstance(loop, ast.While):
                        return None
                    length = length_of(loop.iter, frame)
                    if length is None:
                        return None
                    if total is None:
                        done = counter(loop, frame)
                        done = given if done is None else done
                    total = length * (1 if total is None else total)
            frame = frame.f_back
        if total is None:
            return None
        # With accumulation a step takes several rounds of the innermost loop.
        return max(total * steps // done, steps) if done and done > steps else total


def around(frame: FrameType) -> list[Any]:
    """The loops of the frame's own function around its line, the innermost first."""
    code = frame.f_code
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    own: ast.AST = tree
    if code.co_name != "<module>":
        own = next(
            it
            for it in ast.walk(tree)
            if isinstance(it, scopes)
            and min([it.lineno] + [d.lineno for d in getattr(it, "decorator_list", [])]) == code.co_firstlineno
        )
    found: list[Any] = []
    left = list(ast.iter_child_nodes(own))
    while left:
        node = left.pop()
        if isinstance(node, scopes):
            continue
        if isinstance(node, (ast.For, ast.While)) and node.body[0].lineno <= frame.f_lineno <= (
            node.body[-1].end_lineno or 0
        ):
            found.append(node)
        left += ast.iter_child_nodes(node)
    return sorted(found, key=lambda it: -it.lineno)


def counter(loop: Any, frame: FrameType) -> int | None:
    """How many iterations a loop has begun, if it counts them in a variable."""
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    is_counted = isinstance(loop.iter, ast.Call) and name_of(loop.iter.func) in ("range", "trange", "enumerate")
    if not is_counted or not isinstance(target, ast.Name):
        return None
    now, first = frame.f_locals.get(target.id), 0
    if name_of(loop.iter.func) == "range" and len(loop.iter.args) > 1:
        first = value_of(loop.iter.args[0], frame)
    return now - first + 1 if type(now) is int and type(first) is int else None


def name_of(node: Any) -> str | None:
    """The last name of a function's expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def length_of(node: Any, frame: FrameType) -> int | None:
    """The number of iterations of a loop over this expression; None if it is unknown."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return len(node.elts)
    if not isinstance(node, ast.Call):
        return length(value_of(node, frame))
    name = name_of(node.func)
    if name in ("range", "trange"):
        numbers = [value_of(it, frame) for it in node.args]
        return len(range(*numbers)) if numbers and all(type(it) is int for it in numbers) else None
    if name == "islice" and len(node.args) == 2:
        number = value_of(node.args[1], frame)
        return number if type(number) is int else None
    if name == "zip":
        lengths = [it for it in (length_of(it, frame) for it in node.args) if it is not None]
        return min(lengths, default=None)
    if name in AROUND and node.args:
        return length_of(node.args[0], frame)
    if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute):
        return length(value_of(node.func.value, frame))
    return None


def length(value: Any) -> int | None:
    """The length of a value that a loop runs over; None if it is unknown."""
    from torch.utils.data import DataLoader

    if isinstance(value, LENGTHS):
        return len(value)
    if isinstance(value, DataLoader):
        try:
            return len(value)
        except TypeError:
            return None  # a dataset that has no length
    if "tqdm" in type(value).__module__:
        total = vars(value).get("total")
        return total if type(total) is int else None
    # A wrapper of a loader, as accelerate's.
    inner = vars(value).get("base_dataloader") if hasattr(value, "__dict__") else None
    return None if inner is None else length(inner)


def value_of(node: Any, frame: FrameType) -> Any:
    """The value of an expression in a frame, without calling anything; None if it is unknown."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        of = value_of(node.value, frame)
        kept = getattr(of, "__dict__", {}).get(node.attr)
        return kept if kept is not None else getattr(type(of), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        of, at = value_of(node.value, frame), value_of(node.slice, frame)
        return of[at] if type(of) in (list, tuple, dict) else None
    if isinstance(node, ast.BinOp):
        one, other = value_of(node.left, frame), value_of(node.right, frame)
        if type(one) is not int or type(other) is not int:
            return None
        does = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.FloorDiv: int.__floordiv__}
        return does[type(node.op)](one, other) if type(node.op) in does else None
    if isinstance(node, ast.Call) and len(node.args) == 1:
        name = name_of(node.func)
        if name == "len":
            return length_of(node.args[0], frame)
        inner = value_of(node.args[0], frame)
        return int(inner) if name == "int" and type(inner) in (int, float) else None
    return None
