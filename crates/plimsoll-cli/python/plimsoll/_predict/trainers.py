"""transformers' Trainer under `predict`: after the steps it evaluates once and stops. Callbacks of the program that did not
run in the steps are listed, such as `on_log`, which runs every 500 steps unless the program says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .. import protocol
from ..frames import is_library
from .heavy import Heavy
from .source import Source, scope_of

EVENTS = {"on_log": "logging", "on_save": "save"}  # callbacks that run in some steps, and the prefix of their settings


class Finish(Protocol):
    """The attributes of `Finish` (finish.py) that are needed here."""

    finishing: float
    callbacks: Callbacks


class Growth(Protocol):
    """The attribute of `Growth` (growth.py) that is needed here."""

    total: int | None


class Callbacks:
    """The callbacks of a Trainer, and which of them ran in the steps."""

    def __init__(self, torch: Any) -> None:
        self.heavy = Heavy(torch)
        self.ran: set[str] = set()
        self.rows: list[protocol.Late] | None = None  # the callbacks that run later; None: not looked for yet

    def look(self, handler: Any, args: Any, state: Any) -> None:
        """Finds the program's callbacks that did not run in the steps, run later, and may matter for memory. Called
        while the training ends: the Trainer may not exist any more when the report is written.
        """
        if self.rows is None:
            rows = [
                self.row(getattr(callback, event, None), event, every)
                for event, prefix in EVENTS.items()
                for every in [interval(args, state, prefix)]
                if event not in self.ran and every is not None and state.global_step < every <= state.max_steps
                for callback in handler.callbacks
            ]
            self.rows = [row for row in rows if row]

    def row(self, method: Any, event: str, every: int) -> protocol.Late | None:
        """The row for one method of a callback; none if the method is a library's, or needs no memory."""
        function = getattr(method, "__func__", None)
        if function is None or is_library(function.__code__.co_filename):
            return None
        self.heavy.known.clear()
        source = Source.of(function.__code__, function.__globals__)
        scope: Any = scope_of(source.tree, function.__code__) if source else None
        if source is None or scope is None or not self.heavy.is_function(function, method.__self__, 0):
            return None
        return protocol.Late(
            file=source.file,
            line=scope.lineno,
            end=scope.end_lineno or scope.lineno,
            text=f"{event}, every {every:,} steps",
            steps=every,
            first=False,
            changes=False,
        )


def interval(args: Any, state: Any, prefix: str) -> int | None:
    """How many steps are between two calls; None if the calls do not depend on the number of the step."""
    strategy = getattr(args, f"{prefix}_strategy", None)
    steps = getattr(state, f"{prefix}_steps", None)
    is_counted = str(getattr(strategy, "value", strategy)) == "steps"
    return int(steps) if is_counted and steps and steps >= 1 else None


def trainer(module: Any, finish: Finish, growth: Growth) -> None:
    """Makes transformers' Trainer evaluate once after the steps, and stop without saving."""
    handler = module.CallbackHandler
    for name in ("on_step_end", "on_epoch_end"):
        original = getattr(handler, name)

        def called(self: Any, args: Any, state: Any, control: Any, original: Callable[..., Any] = original) -> Any:
            control = original(self, args, state, control)
            growth.total = state.max_steps if state.max_steps > 0 else growth.total
            if finish.finishing:
                finish.callbacks.look(self, args, state)
                control.should_evaluate = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"
                control.should_save, control.should_training_stop = False, True
            return control

        setattr(handler, name, called)
    call_event = handler.call_event

    def noted(self: Any, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if not finish.finishing:
            finish.callbacks.ran.add(event)
        return call_event(self, event, args, state, control, **kwargs)

    handler.call_event = noted
