"""The technique ``chunked-loss`` for single models instead of the complete program."""

from __future__ import annotations

import threading
from typing import Any

from .techniques import context
from .techniques.chunked_loss import ChunkedLoss


class OfModels(ChunkedLoss):
    """The technique ``chunked-loss``, limited to calls inside the models that the technique is attached to."""

    def __init__(self, value: int | None) -> None:
        super().__init__(value)
        self.calls = 0  # calls to these models since the last backward pass
        self.local = threading.local()
        context.active.append(self)

    def around(self, root: Any, following: Any, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        before = getattr(self.local, "inside", False)
        self.local.inside = True
        try:
            return following(*args, **kwargs)
        finally:
            self.local.inside = before

    def suits(self, input: Any, weight: Any, owner: Any = None) -> bool:
        """Accepts only layers inside these models."""
        return bool(getattr(self.local, "inside", False)) and super().suits(input, weight, owner)

    def backward(self) -> None:
        calls, self.calls = self.calls, 0
        if calls:  # The backward pass of another model is not refused.
            super().backward()
