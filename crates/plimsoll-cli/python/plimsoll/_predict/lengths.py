"""The number of iterations of the loops around a step, read from their source: `range(N)`, a list, a DataLoader, or a
`while i < N` that counts `i` up, each with the current values of the program's variables. The program's code is never
called. The number of iterations of any other `while` loop is unknown.
"""

from __future__ import annotations

import ast
import math
from types import FrameType
from typing import Any, NamedTuple

from .source import Source, last_name, looked_up, own_nodes, scope_of

AROUND = {"enumerate", "tqdm", "iter", "list", "tuple", "reversed", "sorted", "track", "prefetch"}
LOADERS: dict[tuple[str, int], int | None] = {}  # the batches of the loader that a line of the program reads
ENDLESS = 10**12  # at least this many steps mean a loop without end, such as `range(sys.maxsize)`
# Functions whose iterators are longer or shorter than the loader that they read.
REPEATS = {"cycle", "ncycles", "repeat", "chain", "from_iterable", "islice", "zip_longest"}
LENGTHS = (list, tuple, dict, set, frozenset, range, str, bytes)


class Pace:
    """How many iterations of the innermost loop a step takes. With gradient accumulation, that is several; and the first
    step may come late, for example once a replay buffer has enough entries.
    """

    def __init__(self) -> None:
        self.first: tuple[int, int] | None = None  # the first known steps and iterations

    def scaled(self, total: int, steps: int, done: int | None, is_last: bool = False) -> int:
        """Converts `total` iterations to steps, after this many steps and iterations. With `is_last`, these are all
        iterations of the program, so those before the first step count once.
        """
        if not done or done <= steps:
            return total
        self.first = self.first or (steps, done)
        more, passed = steps - self.first[0], done - self.first[1]
        if more <= 0 or passed <= 0:
            return max(total * steps // done, steps)
        return max(steps + (total - done) * more // passed if is_last else total * more // passed, steps)


def epochs(loops: list[tuple[Any, FrameType]]) -> int | None:
    """How often the first of these nested loops runs, which come with their frames, the innermost first; None if the length
    of an outer loop is unknown.
    """
    total = 1
    for loop, own in loops[1:]:
        length = length_of_loop(loop, own)
        if length is None:
            return None
        total *= length
    return total


def around(frame: FrameType) -> list[Any]:
    """The loops of the frame's own function around its line, the innermost first."""
    source = Source.of(frame.f_code, frame.f_globals)
    scope = source and scope_of(source.tree, frame.f_code)
    loops = (it for it in own_nodes(scope) if isinstance(it, (ast.For, ast.While))) if scope else ()
    found = [it for it in loops if it.body[0].lineno <= frame.f_lineno <= (it.body[-1].end_lineno or 0)]
    return sorted(found, key=lambda it: -it.lineno)


def length_of_loop(loop: Any, frame: FrameType) -> int | None:
    """The number of iterations of a loop; None if it is unknown."""
    if not isinstance(loop, ast.While):
        length, most = length_of(loop.iter, frame), breaks_at(loop, frame)
        if length is None and not calls(loop.iter) & REPEATS:
            # A loader that has no name, as in `for x in DataLoader(…)`.
            lines = (
                (frame.f_code.co_filename, it) for it in range(loop.lineno, max(loop.body[0].lineno, loop.lineno + 1))
            )
            length = next((LOADERS[it] for it in lines if it in LOADERS), None)
        return length if most is None else min(most, most if length is None else length)
    counted = counted_while(loop)
    if counted is None:
        return None
    most, first = value_of(counted.test.comparators[0], frame), start(loop, counted.name, frame)
    return -(-(most - first) // counted.each) if type(most) is int and first is not None else None


def calls(node: ast.AST) -> set[str]:
    """The names of the functions that an expression calls."""
    return {last_name(it.func) for it in ast.walk(node) if isinstance(it, ast.Call)}


def breaks_at(loop: Any, frame: FrameType) -> int | None:
    """The number of iterations of a `for` loop over a range that ends with `if i >= N: break`; None if no statement of the
    loop has this form.
    """
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
    kinds = {ast.Eq: 0, ast.GtE: 0, ast.Gt: 1}
    for at, it in enumerate(loop.body):
        test = it.test if isinstance(it, ast.If) and isinstance(it.body[-1], ast.Break) else None
        if not isinstance(test, ast.Compare) or type(test.ops[0]) not in kinds or not isinstance(target, ast.Name):
            continue
        now = counter(loop, frame)
        left, most = ast.unparse(test.left), value_of(test.comparators[0], frame)
        more = {target.id: 0, f"{target.id} + 1": 1}.get(left)
        if now is None or more is None or type(most) is not int or len(test.ops) != 1:
            continue
        # A break before the step ends the loop without this step.
        is_before = it.lineno < frame.f_lineno
        return most - more + kinds[type(test.ops[0])] + (not is_before)
    return None


def start(loop: ast.While, name: ast.Name, frame: FrameType) -> int | None:
    """The value of a counter where its loop begins, from the last assignment before it; None if it is unknown."""
    source = Source.of(frame.f_code, frame.f_globals)
    scope = source and scope_of(source.tree, frame.f_code)
    found: list[Any] = []
    for it in own_nodes(scope) if scope else ():
        if isinstance(it, ast.Assign) and it.lineno < loop.lineno:
            found += [value for target in it.targets for to, value in pairs(target, it.value) if is_name(to, name.id)]
    value = value_of(max(found, key=lambda it: it.lineno), frame) if found else None
    return value if type(value) is int else None


def pairs(target: Any, value: Any) -> list[tuple[Any, Any]]:
    """The targets of an assignment with their values: two for `a, b = 1, 2`."""
    is_each = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    return list(zip(target.elts, value.elts)) if is_each else [(target, value)]


class Counted(NamedTuple):
    """A `while` loop whose variable counts up."""

    test: ast.Compare
    name: ast.Name
    each: int
    line: int  # where it counts


def counted_while(loop: ast.While) -> Counted | None:
    """The counter of a loop such as `while i < N: …; i += 1`, if nothing else in the loop assigns it."""
    test = loop.test
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or len(test.ops) != 1:
        return None
    name = test.left
    adds = [it for it in loop.body if isinstance(it, ast.AugAssign) and is_name(it.target, name.id)]
    names = [it for it in ast.walk(loop) if isinstance(it, ast.Name) and it.id == name.id]
    stores = [it for it in names if isinstance(it.ctx, ast.Store)]
    if not isinstance(test.ops[0], ast.Lt) or len(adds) != 1 or len(stores) != 1 or not isinstance(adds[0].op, ast.Add):
        return None
    each = adds[0].value.value if isinstance(adds[0].value, ast.Constant) else None
    return Counted(test, name, each, adds[0].lineno) if type(each) is int and each > 0 else None


def is_name(node: Any, name: str) -> bool:
    """Whether a node is this name."""
    return isinstance(node, ast.Name) and node.id == name


def counter(loop: Any, frame: FrameType) -> int | None:
    """The number of iterations that a loop has begun, if it counts them in a variable."""
    if isinstance(loop, ast.While):
        counted = counted_while(loop)
        if counted is None:
            return None
        now, first = looked_up(counted.name, frame), start(loop, counted.name, frame)
        is_counted = frame.f_lineno > counted.line
        is_known = type(now) is int and first is not None
        return (now - first) // counted.each + (not is_counted) if is_known else None
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "trange", "enumerate")
    if not is_counted or not isinstance(target, ast.Name):
        return None
    now, first = looked_up(target, frame), 0
    if last_name(loop.iter.func) == "range" and len(loop.iter.args) > 1:
        first = value_of(loop.iter.args[0], frame)
    return now - first + 1 if type(now) is int and type(first) is int else None


def length_of(node: Any, frame: FrameType) -> int | None:
    """The number of iterations of a loop over this expression; None if it is unknown."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return len(node.elts)
    if not isinstance(node, ast.Call):
        return length(value_of(node, frame))
    name = last_name(node.func)
    if name in ("range", "trange"):
        numbers = [value_of(it, frame) for it in node.args]
        return len(range(*numbers)) if numbers and all(type(it) is int for it in numbers) else None
    if name == "islice" and len(node.args) == 2:
        number = value_of(node.args[1], frame)
        return number if type(number) is int else None
    if name == "zip":
        lengths = [it for it in (length_of(it, frame) for it in node.args) if it is not None]
        return min(lengths, default=None)
    if name == "product" and node.args and not node.keywords:
        lengths = [it for it in (length_of(it, frame) for it in node.args) if it is not None]
        return math.prod(lengths) if len(lengths) == len(node.args) else None
    if name == "split" and isinstance(node.func, ast.Attribute):  # of scikit-learn's KFold
        folds = vars(of).get("n_splits") if hasattr(of := value_of(node.func.value, frame), "__dict__") else None
        return folds if type(folds) is int else None
    if name in AROUND and node.args:
        return length_of(node.args[0], frame)
    if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute):
        return length(value_of(node.func.value, frame))
    return None


def length(value: Any) -> int | None:
    """The length of an object over which a loop runs; None if the length is unknown."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(value, LENGTHS):
        return len(value)
    if isinstance(value, (DataLoader, Dataset)):
        try:
            return len(value)
        except Exception:
            return None  # the dataset has no length
    if "tqdm" in type(value).__module__:
        total = vars(value).get("total")
        return total if type(total) is int else None
    # A wrapper of a loader, such as accelerate's.
    inner = vars(value).get("base_dataloader") if hasattr(value, "__dict__") else None
    return None if inner is None else length(inner)


def value_of(node: Any, frame: FrameType) -> Any:
    """The value of an expression in a frame, computed without calling anything; None if the value is unknown."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return looked_up(node, frame)
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
        name = last_name(node.func)
        if name == "len":
            return length_of(node.args[0], frame)
        inner = value_of(node.args[0], frame)
        return int(inner) if name == "int" and type(inner) in (int, float) else None
    return None
