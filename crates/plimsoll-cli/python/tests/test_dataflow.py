# Tests of the code that depends on a value that a program reads: programs as text, and a tensor whose reads
# are all followed.

import ast
import linecache
import sys

import pytest

from plimsoll import frames
from plimsoll._predict import dataflow, reads, source


class Tensor:
    shape = (7, 9)

    def __init__(self, value):
        self.value, self.uses = value, []

    def item(self):
        frame, frames = sys._getframe(1), []
        while frame is not None and frame.f_code.co_filename.startswith("<program"):
            frames.append(frame)
            frame = frame.f_back
        self.uses.append(dataflow.use(frames))
        return self.value


def used(text, value=3):
    # The kinds and lines of the code that depends on the value of `x`, and whether it must not be zero.
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    x = Tensor(value)
    exec(compile(text, name, "exec"), {"x": x})
    sinks, divides = x.uses[0]
    return [(it.kind, it.line) for it in sinks], divides


@pytest.mark.parametrize(
    "text, sinks, divides",
    [
        ("print(x.item())", [], False),
        ("total = 0\ntotal += x.item()\nprint(f'{total}')", [], False),
        ("n = x.item()\nfor it in range(n):\n    pass", [("size", 2)], False),
        ("data = [1, 2, 3, 4]\nshort = data[: x.item()]", [("size", 2)], False),
        ("if x.item() > 2:\n    made = [0].copy()", [("branch", 1)], False),
        ("count = 0\nif x.item() > 2:\n    count += 1\nprint(count)", [], False),
        ("assert x.item() > 2", [], False),
        ("mean = 10 / x.item()\nprint(mean)", [], True),
        ("def many(n):\n    return list(range(n))\nmany(x.item())", [("size", 2)], False),
        ("def read():\n    return x.item()\nif read():\n    made = [].copy()", [("branch", 3)], False),
        ("kept = []\nkept.append(x.item())\nfor it in kept:\n    bytes(range(it))", [("size", 4)], False),
        ("n = x.item()\nn = 5\nlist(range(n))", [], False),
        # A comprehension has no line, and its variable is not that of the assignment before it.
        ("it = 1\nkept = [x.item()]\nall(it is None for it in kept)", [], False),
        ("it = 1\nkept = [x.item()]\nmade = [list(range(it)) for it in kept]\nlist(range(it))", [("size", 3)], False),
    ],
)
def test_a_value_is_followed_to_what_it_decides(text, sinks, divides):
    if sys.version_info < (3, 11):
        pytest.skip("before Python 3.11 an instruction has no columns, and more is taken to be decided")
    assert used(text) == (sinks, divides)


def test_a_slice_bounds_the_value_that_was_read():
    name, text = "<program of a slice>", "part = data[:, : x.item()]"
    linecache.cache[name] = (len(text), None, [text], name)
    found = []

    class Reads(Tensor):
        def __getitem__(self, _):
            return None

        def __index__(self):
            return 0

        def item(self):
            return self

    class Data:
        shape = (7, 9)

        def __getitem__(self, _):
            frame = sys._getframe(1)
            found.append((dataflow.bound_of(frame, "max"), dataflow.bound_of(frame, "half")))

    exec(compile(text, name, "exec"), {"x": Reads(0), "data": Data()})
    if sys.version_info >= (3, 11):
        assert found == [(9, 4)]


def test_variables_are_looked_up_without_running_the_programs_code():
    class Model:
        layers = 4

        @property
        def secret(self):
            raise AssertionError("this runs the program's code")

    def look(model, expression):
        import ast

        return source.looked_up(ast.parse(expression, mode="eval").body, sys._getframe())

    assert look(Model(), "model.layers") == 4
    assert isinstance(look(Model(), "model.secret"), property)
    assert look(Model(), "model.absent") is None


def test_packages_and_our_own_frames_are_not_the_program():
    assert frames.is_library("/env/lib/site-packages/torch/nn/functional.py")
    assert frames.is_library("<frozen plimsoll watch>")
    assert not frames.is_library("/home/me/train.py")


def fate_in(file, function, operator="to"):
    # The use of a read in a function of this name and file, if its value then decides a branch.
    text = f"def {function}():\n    return read()\nif {function}():\n    made = [0].copy()\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    source.Source.known.pop(file, None)
    found = []

    def read():
        inner = sys._getframe(1)
        found.append(reads.Reads([]).new_site([inner, inner.f_back], operator).fate)

    exec(compile(text, file, "exec"), {"read": read})
    return found[0]


def test_that_a_module_is_moved_decides_nothing():
    module = "/env/lib/site-packages/torch/nn/modules/module.py"
    assert fate_in(module, "convert") == fate_in(module, "_apply") == "shown"
    assert fate_in(module, "_call_impl") == "branch"
    assert fate_in("/home/me/module.py", "convert") == "branch"


def test_half_of_what_an_operator_finds_is_known_only_where_it_searches_a_tensor_that_is_known():
    class Mask:
        dtype = "torch.bool"

        def numel(self):
            return 100

    def extremes(operator):
        site = reads.Site(0, None, None, operator, "size", [])
        return [reads.Reads([]).extreme(site, Mask(), which, 8) for which in ("max", "half")]

    assert extremes("nonzero") == [100, 50]
    for operator in ("_unique2", "unique_consecutive", "unique_dim", "bincount"):
        assert extremes(operator) == [None, None]


def test_a_look_at_a_variable_leaves_what_the_program_has_of_locals():
    def program(loss):
        kept = locals()
        assert source.looked_up(ast.Name("loss"), sys._getframe()) == 3
        return kept

    assert program(3)["loss"] == 3
