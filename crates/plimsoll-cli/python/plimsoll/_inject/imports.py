"""Runs our functions after a module has been imported, and the user's own sitecustomize after ours."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


VERSION = ""  # the version of the program that started this process


class OtherVersionError(ImportError):
    """The version of the wheel in this Python differs from the version of the program that started this process."""


class Finder:
    """Runs functions after modules have been imported. A second instance that wraps the same loader would break the
    first instance, so only one is created.
    """

    def __init__(self, then: Mapping[str, Callable[[Any], object]]) -> None:
        self.then = dict(then)  # functions by module name
        self.inside: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's spec as the other finders find it, with a loader that calls our function once the module
        is loaded.
        """
        if name not in self.then or name in self.inside:
            return None
        import importlib.util

        self.inside.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.inside.discard(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = original  # not `del`: another finder of ours may wrap it
            original(module)
            then = self.then.pop(name, None)
            try:
                if then is not None:
                    then(module)
            except OtherVersionError:
                raise
            except Exception as why:  # A failure here must not end the program.
                print(f"plimsoll: cannot hook {name} in this process: {why}", file=sys.stderr)

        loader.exec_module = exec_module
        return spec


def hook(then: Mapping[str, Callable[[Any], object]]) -> None:
    """Calls each function with its module once the program has imported that module."""
    sys.meta_path.insert(0, Finder({**then, "plimsoll": check_version}))


def check_version(module: ModuleType) -> None:
    """Called when the program imports the wheel's package: rejects a package with a different version. Sources that are
    not installed as a wheel have no version.
    """
    import importlib.metadata

    try:
        installed = importlib.metadata.version("plimsoll-gpu")
    except importlib.metadata.PackageNotFoundError:
        return
    # Python writes pre-release versions differently.
    if VERSION.replace(".", "").isdecimal() and installed != VERSION:
        raise OtherVersionError(
            f"this Python has plimsoll-gpu {installed}, but the program `plimsoll` that runs it is {VERSION}:"
            f" pip install ./crates/plimsoll-cli in a checkout of that version, or use the program of the installed package: python -m plimsoll"
        )


def run_users_sitecustomize(here: str) -> None:
    """Runs the user's own sitecustomize, under its name. The sitecustomize in the folder `here` hides it."""
    import importlib.machinery
    import importlib.util

    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
