"""Code of the training loop that did not run in the first steps: the arms (branches) of an `if` whose test changes as
the loop runs, in the loop's body and in functions that it calls, and the code that an outer loop runs after the inner
loop. Code that ran only before the optimizer's first step counts as well, because it has not run since the optimizer's
state was allocated.

lines.py records which lines ran, and conditions.py can often predict when a test will be true. If steps are cheap, the
run continues until these arms have run a few times; those that still have not run are listed (`rows`).
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from .. import frames, protocol
from . import settings
from .behind import Behind, behind
from .conditions import Condition
from .heavy import Heavy, Names
from .lengths import around
from .lines import Lines
from .ramps import Ramp, ramps
from .source import Source, block_of, looked_up, own_nodes, scope_of

BUDGET = 1.5  # seconds of CPU time for further steps, if it is known that they reach an arm that has not run
BLIND = 0.7  # the same, if that is not known
WAITING = 2.5  # the limit for wall-clock time is this many times the CPU time limit, for a program that waits
ENOUGH = 3  # an arm has run often enough after this many steps
REACH = 5.0  # seconds of CPU time for further steps, to reach a change of a size
SOME = 3  # after this many changes of a size, no more are reached
RAMP_STEPS, RAMP_SECONDS = 48, 1.0  # the most steps, and CPU time, if sizes may depend on the number of the step
LAG = 2  # steps between an arm's run and the measurement of what it keeps: at first, a variable may hold the memory
AFTER = 8  # steps after an arm's first run in which growth that it causes becomes visible
MOST = 20  # the maximum number of rows
LEAVING = (ast.Continue, ast.Break, ast.Return)


class Arm:
    """One branch of an `if`: the statements that run if its test is `wanted`."""

    def __init__(
        self, code: CodeType, file: str, condition: Condition | Behind, wanted: bool, statements: list[Any]
    ) -> None:
        self.code, self.file, self.condition, self.wanted, self.statements = code, file, condition, wanted, statements
        self.line, self.end = statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
        self.is_before_step = False
        # If the test and the arm are on the same line, only the test's value shows whether the arm ran.
        self.is_inline = self.line == condition.test.lineno
        self.held = 0  # steps at whose end the test had the wanted value
        self.is_heavy: bool | None = None
        self.began: int | None = None  # the step in which the arm first ran
        self.count = self.latest = 0  # in how many steps the arm ran, and the last of them

    def ran(self, lines: Lines) -> int:
        """The number of steps in which this arm is known to have run. 0 if it ran only in the first step."""
        if self.is_inline:
            return self.held
        ran = lines.ran(self.code, self.line)
        return ran.steps if ran.last else 0

    def is_due(self, step: int) -> bool:
        """Whether this arm will run between this step and the next."""
        last = self.condition.last
        return last is not None and last[0] == step and not self.is_before_step and self.is_so(last[1])

    def is_so(self, values: dict[str, Any]) -> bool:
        """Whether this arm would run if the variables had these values. False if that is unknown."""
        holds = self.condition.holds(values)
        return holds is not None and holds == self.wanted

    def text(self) -> str:
        """Says when this arm runs, as the source says it: `if step % 100 == 0`."""
        if isinstance(self.condition, Behind):
            return self.condition.text()
        test = self.condition.test
        return f"if {ast.unparse(test if self.wanted else ast.UnaryOp(ast.Not(), test))}"


class Late:
    """The arms of this process, and how many further steps to run for them."""

    def __init__(self, torch: Any) -> None:
        self.lines, self.heavy = Lines(), Heavy(torch)
        self.arms: list[Arm] | None = None  # None: not looked for yet
        self.ends_early = False  # whether finish.py ends the training loop early
        self.ramps: list[Ramp] | None = None  # sizes that change late
        self.computes = False  # whether the loops compute with the number of the step
        self.ends: list[float] = []  # the process's CPU time at the end of each of the latest steps
        self.began: tuple[float, float] | None = None  # CPU time and wall-clock time at which the further steps begin

    def begin(self) -> None:
        """Called when the program creates an optimizer, or begins a backward pass."""
        if settings.STEPS and not settings.PLAN:
            self.lines.start()

    def stepped(self, step: int, frame: FrameType) -> None:
        """Called when a step is done."""
        self.ends = [*self.ends[-3:], time.process_time()]
        if self.ramps is None and step + 1 >= settings.STEPS and settings.STEPS:
            try:
                self.ramps = ramps(list(frames.of_program(frame)), step)
            except Exception:
                self.ramps = []  # misread source must not fail the program
        if not self.lines.is_known():
            return
        self.lines.begin(step)
        # A function counts as called by the loop if it ran after the first step.
        if step + 1 < settings.STEPS or len(self.ends) < 2:
            return
        try:
            stack = list(frames.of_program(frame))
            if self.arms is None:
                self.arms = list(self.find(stack))
            for arm in self.arms:
                self.look(arm, stack, step)
            if step >= settings.STEPS and not any(arm.is_heavy for arm in self.arms):
                self.lines.stop()  # lines are no longer needed
        except Exception:
            self.lines.stop()  # misread source must not fail the program

    def end(self) -> None:
        """Called when the steps are done: stops tracing, unless an arm that may matter has not run yet."""
        if not any(arm.is_heavy and not arm.ran(self.lines) for arm in self.arms or ()):
            self.lines.stop()

    def find(self, stack: list[FrameType]) -> Iterator[Arm]:
        """The arms in the loops around the step, and in the functions that ran in these loops."""
        counted: set[str] = set()
        loops = [(frame, around(frame)) for frame in stack]
        for loop in (it for _, found in loops for it in found):
            counted |= targets(loop)
            counted |= {
                it.target.id
                for it in ast.walk(loop)
                if isinstance(it, ast.AugAssign) and isinstance(it.target, ast.Name)
            }
        self.computes = any(
            computes_with(loop, {it for it in counted if type(looked_up(ast.Name(it), frame)) is int})
            for frame, found in loops
            for loop in found
        )
        outer = True  # whether the frame is outside all loops, so that its code runs once
        inside: dict[CodeType, Any] = {}
        for frame, found in reversed(loops):
            if found or not outer:
                inside[frame.f_code] = found[-1] if outer else None
                outer = False
        # If the loop ends early (finish.py), the code after it runs anyway.
        around_step = [] if self.ends_early else [(frame, loop) for frame, found in loops for loop in found]
        for frame, loop, statements in behind(around_step):
            if is_own(frame.f_code.co_filename):
                yield Arm(frame.f_code, frame.f_code.co_filename, Behind(loop), True, statements)
        on_stack = {frame.f_code for frame in stack}
        for code, lines in self.lines.all().items():
            is_called = code not in on_stack and any(ran.last > 0 for ran in lines.values())
            if (code in inside or is_called) and is_own(code.co_filename):
                yield from self.of(code, inside.get(code), counted)

    def of(self, code: CodeType, loop: Any, counted: set[str]) -> Iterator[Arm]:
        """The arms in one loop, or in a complete function."""
        source = Source.of(code, {})
        scope = loop if loop is not None else source and scope_of(source.tree, code)
        if scope is None or source is None:
            return
        nodes = list(own_nodes(scope))
        passing = {name for it in nodes for name in targets(it)} - counted
        for node in nodes:
            if not isinstance(node, ast.If):
                continue
            condition = Condition(node.test, counted, passing)
            yield Arm(code, source.file, condition, True, node.body)
            if node.orelse and not (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
                yield Arm(code, source.file, condition, False, node.orelse)
            elif not node.orelse and isinstance(node.body[-1], LEAVING):
                block, _ = block_of(source.parents, node)
                rest = block[block.index(node) + 1 :] if block is not None else []
                if rest:
                    yield Arm(code, source.file, condition, False, rest)

    def look(self, arm: Arm, stack: list[FrameType], step: int) -> None:
        """At the end of a step, records whether an arm ran, and the values of its test."""
        if isinstance(arm.condition, Behind):
            arm.condition.count(stack)
        frame = next((it for it in stack if it.f_code is arm.code), None)
        if frame is not None:
            if arm.condition.last is None or arm.condition.last[0] != step:
                arm.condition.look(frame, step)
            arm.is_before_step = arm.end < frame.f_lineno
            arm.held += arm.condition.last is not None and arm.is_so(arm.condition.last[1])
        count = arm.ran(self.lines)
        if count > arm.count:
            arm.count, arm.latest = count, step
            arm.began = arm.began or step
        if arm.is_heavy is None and step >= settings.STEPS and not self.is_shown(arm):
            self.heavy.known.clear()
            names = frame or names_of(arm.code, stack)
            arm.is_heavy = arm.condition.can_change() and self.heavy.are(arm.statements, names)

    def is_shown(self, arm: Arm) -> bool:
        """Whether an arm has run often enough."""
        return arm.ran(self.lines) >= ENOUGH

    def waits(self, step: int, total: int | None) -> bool:
        """Whether to run one more step."""
        now = time.process_time()
        if self.began is None:
            self.began = now, time.monotonic()
        # Ranks of a job must agree on the number of steps.
        if not (settings.FURTHER or settings.REACHES) or settings.ranks() > 1:
            return False
        spent = max(now - self.began[0], (time.monotonic() - self.began[1]) / WAITING)
        if settings.FURTHER and self.computes and step < RAMP_STEPS and spent < RAMP_SECONDS and step != total:
            return True
        pace = min((after - before for before, after in zip(self.ends, self.ends[1:])), default=BUDGET)
        if any(self.reaches(ramp, step, (REACH - spent) / max(pace, 1e-6)) for ramp in self.ramps or ()):
            return True
        if not settings.FURTHER or not self.lines.is_known():
            return False
        if self.arms is None:
            return settings.STEPS > 1
        if spent > BUDGET:
            return False
        left = (BUDGET - spent) / max(pace, 1e-6)
        is_blind = spent > BLIND
        return any(self.waits_for(arm, step, total, left, is_blind) for arm in self.arms)

    def reaches(self, ramp: Ramp, step: int, left: float) -> bool:
        """Whether to run one more step because a size will change or has just changed, with time for `left` more steps."""
        if left > 0 and ramp.reached(step) > ramp.reached(step - LAG - 1):
            return True
        at = ramp.next(step)
        return at is not None and ramp.reached(step) < SOME and at + LAG - step <= left

    def waits_for(self, arm: Arm, step: int, total: int | None, left: float, is_blind: bool) -> bool:
        """Whether to run one more step for one arm, with time for `left` more steps. With `is_blind`, only if it is
        known when the arm runs.
        """
        if not arm.is_heavy:
            return False
        if arm.began is not None and settings.STEPS < arm.began and step < arm.began + AFTER:
            return True
        is_new = arm.condition.last is not None and arm.condition.last is arm.condition.first
        if is_new or arm.is_due(step) or (0 < arm.count <= ENOUGH and step < arm.latest + LAG):
            return True
        if self.is_shown(arm):
            return False
        is_known, at = arm.condition.next(arm.wanted, total)
        if is_known:
            return at is not None and at - step <= left
        return not is_blind and not arm.is_inline

    def rows(self, total: int | None, step: int) -> list[protocol.Late]:
        """The arms that did not run and may matter for memory, and the sizes that change after this step."""
        found: dict[tuple[str, int], protocol.Late] = {}
        for ramp in self.ramps or ():
            at = ramp.next(step)
            if at is not None and (total is None or at <= total):
                row = protocol.Late(
                    file=ramp.file, line=ramp.line, end=ramp.line, text=ramp.text, steps=at, first=False, changes=True
                )
                found.setdefault((ramp.file, ramp.line), row)
        for arm in self.arms or () if self.lines.is_known() else ():
            if not arm.is_heavy or arm.ran(self.lines) or not self.lines.ran(arm.code, arm.condition.test.lineno).steps:
                continue
            is_known, at = arm.condition.next(arm.wanted, total)
            if (is_known and at is None) or (arm.is_inline and not is_known):
                continue
            steps = None if at is None else at + (not arm.is_before_step)
            first = not arm.is_inline and self.lines.ran(arm.code, arm.line).steps > 0
            row = protocol.Late(
                file=arm.file, line=arm.line, end=arm.end, text=arm.text(), steps=steps, first=first, changes=False
            )
            found.setdefault((arm.file, arm.line), row)
        return sorted(found.values(), key=lambda it: (it["steps"] is None, it["steps"], it["line"]))[:MOST]


def targets(loop: ast.AST) -> set[str]:
    """The variables of a `for` loop."""
    target = loop.target if isinstance(loop, ast.For) else None
    return {it.id for it in ast.walk(target) if isinstance(it, ast.Name)} if target else set()


def computes_with(loop: ast.AST, counted: set[str]) -> bool:
    """Whether a loop computes with one of these counters, or uses it as an index, other than for a test or a text: sizes
    may depend on it.
    """
    left: list[ast.AST] = [loop]
    while left:
        node = left.pop()
        if isinstance(node, (ast.Compare, ast.JoinedStr)):
            continue
        is_text = isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and type(node.left.value) is str
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) and not is_text else []
        parts += [node.slice] if isinstance(node, ast.Subscript) else []
        if any(isinstance(it, ast.Name) and it.id in counted for it in parts):
            return True
        left.extend(ast.iter_child_nodes(node))
    return False


def is_own(file: str) -> bool:
    """Whether this file was written by a person, not by a compiler."""
    return os.path.exists(file) and not file.startswith(os.environ.get("PLIMSOLL_PREDICT_CACHES") or "\0")


def names_of(code: CodeType, stack: list[FrameType]) -> Names:
    """The names visible in a function that is not on the stack: the names of its module, and `self` of a method."""
    modules = (vars(it) for it in list(sys.modules.values()) if hasattr(it, "__dict__"))
    module = next((it for it in modules if it.get("__file__") == code.co_filename), {})
    values = [looked_up(ast.Name(name), frame) for frame in stack for name in frame.f_code.co_varnames[:1]]
    kinds = [it for it in module.values() if isinstance(it, type)]
    owner = next((it for it in values if any(defines(kind, code) for kind in type(it).__mro__)), None)
    owner = owner if owner is not None else next((it for it in kinds if defines(it, code)), None)
    return Names({} if owner is None else {code.co_varnames[0]: owner}, module, code)


def defines(kind: type, code: CodeType) -> bool:
    """Whether a class has a method with this code."""
    return getattr(vars(kind).get(code.co_name), "__code__", None) is code
