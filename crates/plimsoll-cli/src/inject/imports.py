# The beginning of the sitecustomize.py that every Python process of the program runs first: `HERE`, functions that run after
# the import of a module (`Finder`), our own modules (`module`), and the user's own sitecustomize.

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "plimsoll_techniques"


class Finder:
    # Runs functions after the import of modules. A second finder around the same loader would break the first, so there is
    # only one.
    def __init__(self, then):
        self.then = then  # functions by module
        self.inside = set()

    def find_spec(self, name, path=None, target=None):
        if name.startswith(PACKAGE):
            return own_spec(name)
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
        original = spec.loader.exec_module

        def exec_module(module):
            spec.loader.exec_module = original  # not `del`: another finder of ours may be around it
            original(module)
            then = self.then.pop(name, None)
            try:
                if then is not None:
                    then(module)
            except Exception as why:  # It must not fail the program.
                print(f"plimsoll: cannot hook {name} in this process: {why}", file=sys.stderr)

        spec.loader.exec_module = exec_module
        return spec


def own_spec(name):
    # A module of the techniques. The file name in its frames marks them as not the program's.
    import importlib.machinery
    import importlib.util

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname):
            data = self.get_data(self.path)
            return compile(data, f"<frozen plimsoll {fullname.rpartition('.')[2]}>", "exec", dont_inherit=True)

    place = os.path.join(HERE, PACKAGE)
    if name == PACKAGE:
        file, within = os.path.join(place, "__init__.py"), [place]
    else:
        file, within = os.path.join(place, f"{name.rpartition('.')[2]}.py"), None
    if not os.path.isfile(file):
        return None
    return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file), submodule_search_locations=within)


def module(name, loaded={}):
    # Another file of this folder. The file name in its frames marks them as not the program's.
    import types

    if name not in loaded:
        path = os.path.join(HERE, f"plimsoll_{name}.py")
        made = loaded[name] = types.ModuleType(f"plimsoll_{name}")
        made.module = module
        with open(path) as file:
            exec(compile(file.read(), f"<frozen plimsoll {name}>", "exec"), made.__dict__)
    return loaded[name]


def run_users_sitecustomize():
    # This file hides the user's own sitecustomize, if there is one: run that, too, under its name.
    import importlib.machinery
    import importlib.util

    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    sys.modules["plimsoll_watch"] = sys.modules[__name__]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
