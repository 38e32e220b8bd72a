"""Examines the test of an `if`: whether its result can change while a loop runs, and when the test will be true.

Only plain values are read (numbers, strings, lengths), and the program's code is never called. A test that consists
only of plain values is evaluated with the values that the parts will have if they keep changing in the same way.
"""

from __future__ import annotations

import ast
import copy
from fractions import Fraction
from types import CodeType, FrameType
from typing import Any

from .lengths import ENDLESS, value_of
from .source import last_name

FURTHEST = 30_000  # up to this step, steps are tried one by one
UNKNOWN = object()  # stands for a value that is not plain: we must not keep the value itself alive
BARE: dict[str, Any] = {"__builtins__": {}}
PLAIN = (int, float, bool, str, type(None))
LEAVES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
REST = (
    ast.expr_context,
    ast.boolop,
    ast.cmpop,
    ast.operator,
    ast.unaryop,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
)
LARGE = (ast.Pow, ast.LShift)  # computing their results may take long
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
# Names that count as counters if their value is not visible, as for a function's arguments.
COUNTERS = set(
    "step epoch iteration iter it i t idx batch_idx global_step iter_num step_num current_step current_epoch n_iter update"
    " episode counter num_updates total_steps_done".split()
)
FILLED = set("buffer memory replay replay_buffer queue pool history".split())
CHANCE = set("random rand randint uniform choice binomial".split())


def leaves(node: ast.AST) -> list[Any]:
    """The parts of a test that have values: names, attributes and calls such as `len(x)`."""
    if isinstance(node, LEAVES):
        return [node]
    return [leaf for child in ast.iter_child_nodes(node) for leaf in leaves(child)]


class Condition:
    """The test of one `if`. `counted` are the variables of the loops around the step, and `passing` the variables of
    loops within a step.
    """

    def __init__(self, test: ast.expr, counted: set[str], passing: set[str]) -> None:
        self.test, self.counted, self.passing = test, counted, passing
        self.leaves = {ast.unparse(leaf): leaf for leaf in leaves(test)}
        self.first: tuple[int, dict[str, Any]] | None = None  # the first examined step, and the values at its end
        self.last: tuple[int, dict[str, Any]] | None = None
        self.is_steady = True  # whether the values changed evenly so far
        self.names = [f"v{nth}" for nth in range(len(self.leaves))]
        self.code = self.compiled()
        self.ahead: dict[bool, tuple[bool, int | None]] = {}  # what `next` returned, by the wanted result of the test

    def compiled(self) -> CodeType | None:
        """The test with a name in place of each part that has a value. None if it contains other operations."""
        names = dict(zip(self.leaves, self.names))

        class Named(ast.NodeTransformer):
            def generic_visit(self, node: ast.AST) -> ast.AST:
                if isinstance(node, LEAVES):
                    return ast.copy_location(ast.Name(names[ast.unparse(node)], ast.Load()), node)
                return super().generic_visit(node)

        named = Named().visit(copy.deepcopy(self.test))
        allowed = (*REST, ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Set)
        if any(not isinstance(it, allowed) or isinstance(it, LARGE) for it in ast.walk(named)):
            return None
        return compile(ast.Expression(named), "<test>", "eval")

    def look(self, frame: FrameType, step: int) -> None:
        """Records the values at the end of a step."""
        found = {text: value_of(leaf, frame) for text, leaf in self.leaves.items()}
        values = {text: it if type(it) in PLAIN else UNKNOWN for text, it in found.items()}
        if self.first is None:
            self.first = step, values
        elif self.last is not self.first:
            self.is_steady = self.is_steady and self.expected(step) == values
        self.last = self.first if self.last is None else (step, values)

    def course(self) -> dict[str, tuple[Any, Fraction]] | None:
        """The latest value of each part, and its growth per step. None if any of these is unknown."""
        if self.first is None or self.last is None:
            return None
        (began, before), (now, after) = self.first, self.last
        found: dict[str, tuple[Any, Fraction]] = {}
        for text, value in after.items():
            if type(value) not in PLAIN:
                return None
            if value == before[text]:
                found[text] = value, Fraction(0)
            elif type(value) is int and type(before[text]) is int and now > began:
                found[text] = value, Fraction(value - before[text], now - began)
            else:
                return None
        return found

    def expected(self, step: int) -> dict[str, Any] | None:
        """The values at the end of a step, if they keep changing as they did between the first and the last examined
        step. None if they are unknown.
        """
        course = self.course()
        if course is None or self.last is None:
            return None
        steps = step - self.last[0]
        return {text: value + int(each * steps) if each else value for text, (value, each) in course.items()}

    def holds(self, values: dict[str, Any]) -> bool | None:
        """Whether the test is true with these values; None if this is unknown."""
        if self.code is None or any(type(it) not in PLAIN for it in values.values()):
            return None
        try:
            return bool(eval(self.code, BARE, dict(zip(self.names, values.values()))))
        except Exception:
            return None  # a comparison of a number and None, a division by zero

    def next(self, wanted: bool, total: int | None) -> tuple[bool, int | None]:
        """Returns whether it is known when the test's result will be `wanted`, and the number of that step. The number
        is None if no such step is among the `total` steps.
        """
        if self.last is None or not self.is_steady or not self.has_changed():
            return False, None
        known = self.ahead.get(wanted)
        if known is None or (known[1] or FURTHEST) <= self.last[0]:
            known = self.ahead[wanted] = self.search(wanted, total)
        return known

    def search(self, wanted: bool, total: int | None) -> tuple[bool, int | None]:
        """Returns the same as `next`, without remembering the result: tries each step."""
        course = self.course()
        if course is None or self.last is None or self.holds(self.last[1]) is None:
            return False, None
        now = self.last[0]
        values = dict(zip(self.names, (value for value, _ in course.values())))
        moving = [(name, value, each) for name, (value, each) in zip(self.names, course.values()) if each]
        near = range(now + 1, min(total or FURTHEST, FURTHEST) + 1)
        for step in (*near, *(it for it in self.far(course) if it <= (total or it))):
            for name, value, each in moving:
                values[name] = value + each.numerator * (step - now) // each.denominator
            try:
                if bool(eval(self.code, BARE, values)) == wanted:  # type: ignore[arg-type]
                    return True, step
            except Exception:
                return False, None
        return True, None

    def far(self, course: dict[str, tuple[Any, Fraction]]) -> list[int]:
        """The steps after FURTHEST at which a part of the test equals a number in the test."""
        now = self.last[0] if self.last else 0
        constants = {it.value for it in ast.walk(self.test) if isinstance(it, ast.Constant) and type(it.value) is int}
        constants |= {value for value, each in course.values() if type(value) is int and not each}
        moving = [(value, each) for value, each in course.values() if each]
        steps = {
            now + int((number + beside - value) / each)
            for number in constants
            for beside in (-1, 0, 1)
            for value, each in moving
        }
        return sorted(step for step in steps if FURTHEST < step < ENDLESS)

    def has_changed(self) -> bool:
        """Whether a value has changed from step to step."""
        if self.first is None or self.last is None:
            return False
        return any(type(value) in PLAIN and value != self.first[1].get(text) for text, value in self.last[1].items())

    def can_change(self) -> bool:
        """Whether the test can change while the program runs. A test of configuration values cannot."""
        compares = any(isinstance(it, ast.Compare) and isinstance(it.ops[0], ORDER) for it in ast.walk(self.test))
        compares = compares or any(isinstance(getattr(it, "op", None), ast.Mod) for it in ast.walk(self.test))
        return self.has_changed() or any(self.is_open(leaf, compares) for leaf in self.leaves.values())

    def is_open(self, leaf: Any, compares: bool) -> bool:
        """Whether one part of the test can change, because it is a random number, a counter, or a container that fills
        up.
        """
        if isinstance(leaf, ast.Call):
            name = last_name(leaf.func)
            if name == "len":
                return compares and self.last is None and last_name(leaf.args[0]) in FILLED
            return name in CHANCE or any(
                isinstance(it, ast.Name) and (it.id in self.counted or it.id in COUNTERS)
                for argument in leaf.args
                for it in ast.walk(argument)
            )
        if not compares or not isinstance(leaf, (ast.Name, ast.Attribute)) or last_name(leaf) in self.passing:
            return False
        if isinstance(leaf, ast.Name) and leaf.id in self.counted:
            return True
        is_seen = self.last is not None and isinstance(leaf, ast.Attribute)
        return last_name(leaf) in COUNTERS and not is_seen
