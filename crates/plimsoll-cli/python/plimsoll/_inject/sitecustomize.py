"""The first code of ours that runs in every Python process of a program under `plimsoll predict` or `plimsoll run`.

The program `plimsoll` unpacks this file into a private folder that comes first in PYTHONPATH. The package PACKAGE next
to it contains the modules of the wheel that a command needs, under a name that no installed package has. So the user's
environment does not need the wheel. This file and its imports must be fast, because processes that never import PyTorch
run them too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

VERB = "predict"  # the program `plimsoll` writes its command here: "predict" or "run"
VERSION = ""  # the program `plimsoll` writes its version here
PACKAGE = "plimsoll_injected"
FROZEN = "<frozen plimsoll "  # prefix of our frames' file names, which distinguishes our frames from the user's
HERE = os.path.dirname(os.path.abspath(__file__))


class Package:
    """Finds the modules of the package next to this file."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's location, and a loader that gives its frames the file name `<frozen plimsoll NAME>`."""
        top, *names = name.split(".")
        if top != PACKAGE:
            return None
        import importlib.machinery
        import importlib.util

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                data = self.get_data(self.path)
                return compile(data, f"{FROZEN}{fullname.rpartition('.')[2]}>", "exec", dont_inherit=True)

        place = os.path.join(HERE, PACKAGE, *names)
        if not names:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [place]
            return spec
        is_package = os.path.isdir(place)
        file = os.path.join(place, "__init__.py") if is_package else f"{place}.py"
        if not os.path.isfile(file):
            return None
        within = [place] if is_package else None
        return importlib.util.spec_from_file_location(
            name, file, loader=Loader(name, file), submodule_search_locations=within
        )


def begin() -> None:
    """Starts the command (`predict` or `run`) in this process, and then runs the user's own sitecustomize."""
    import importlib

    sys.meta_path.insert(0, Package)
    imports: Any = importlib.import_module(f"{PACKAGE}._inject.imports")
    imports.VERSION = VERSION
    importlib.import_module(f"{PACKAGE}._{VERB}.start").begin()
    imports.run_users_sitecustomize(HERE)


if __name__ == "sitecustomize":
    begin()
