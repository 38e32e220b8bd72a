"""Makes the program's own torch.compile compile nothing: the model's operators run one by one, and techniques can act
inside the model. Rounding differs from compiled kernels, and dropout draws other masks.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import context


class NoCompile:
    """Makes torch.compile have no effect."""

    name = "no-compile"

    def __init__(self, value: int | None) -> None:
        self.count = 0

    def begin(self) -> None:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # for child processes
        context.is_eager = True
        if "torch._dynamo" in sys.modules:
            # In a process that was forked for this set of techniques, models that were compiled before the fork also
            # run eagerly.
            torch.compiler.set_stance("force_eager")
            self.count += 1
        torch.compile, torch.nn.Module.compile = self.function(torch.compile), self.method(torch.nn.Module.compile)

    def function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.compile`, which returns the model unchanged."""

        @functools.wraps(original)
        def compile(model: Any = None, **kwargs: Any) -> Any:
            # `torch.compile` may also be used as a decorator with arguments.
            self.count += 1
            return (lambda model: model) if model is None else model

        return compile

    def method(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.compile`, which does nothing."""

        @functools.wraps(original)
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            self.count += 1

        return compile

    def report(self) -> dict[str, Any]:
        lines = ["# before Python starts: export TORCHDYNAMO_DISABLE=1"]
        detail = "" if self.count else "the program compiles nothing"
        return dict(applied=bool(self.count), detail=detail, lines=lines if self.count else [])
