# The program's own torch.compile compiles nothing: its operators run one by one, and techniques can act inside of the model. Rounding
# differs from that of compiled kernels, and dropout draws other masks.

import functools
import os
import sys

import torch

from . import context


class NoCompile:
    name = "no-compile"

    def __init__(self, value):
        self.count = 0

    def begin(self):
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # in its child processes
        context.is_eager = True
        if "torch._dynamo" in sys.modules:
            # What was compiled before, in a process that was forked for this set, is not called that way.
            torch.compiler.set_stance("force_eager")
            self.count += 1
        torch.compile, torch.nn.Module.compile = self.function(torch.compile), self.method(torch.nn.Module.compile)

    def function(self, original):
        @functools.wraps(original)
        def compile(model=None, **kwargs):
            # Also as a decorator with arguments.
            self.count += 1
            return (lambda model: model) if model is None else model

        return compile

    def method(self, original):
        @functools.wraps(original)
        def compile(module, *args, **kwargs):
            self.count += 1

        return compile

    def report(self):
        lines = ["# before Python starts: export TORCHDYNAMO_DISABLE=1"]
        detail = "" if self.count else "the program compiles nothing"
        return dict(applied=bool(self.count), detail=detail, lines=lines if self.count else [])
