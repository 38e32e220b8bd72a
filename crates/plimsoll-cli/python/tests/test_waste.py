# Which names and attributes are dead at a line, where a line that deletes them can be inserted, and which containers and
# sums nothing uses.

import ast
import sys
import textwrap
import types

import pytest

from plimsoll._waste.attributes import dead
from plimsoll._waste.containers import unread
from plimsoll._waste.insertion import after_last_use
from plimsoll._waste.names import Names
from plimsoll._waste.program import Program
from plimsoll._waste.sums import sums


def place(text, line, name, by_content=False):
    # The line after which `name` can be deleted if the peak is at `line`. None if it is not dead there, or if no place
    # is suitable.
    names = Names(ast.parse(text).body[0], by_content)
    statement = names.at(line)
    if name not in names.dead(statement):
        return None
    found = after_last_use(names, name, statement, text.splitlines())
    return found and found.line


LOOP = """\
def train(data):
    for step in data:
        x = load(step)
        y = x + 1
        z = net(y)
        z.backward()
"""


@pytest.mark.parametrize(
    "text, line, name, after",
    [
        ("def f():\n    x = a()\n    y = b(x)\n    return c(y)", 4, "x", 3),
        ("def f():\n    x = a()\n    y = b(x)\n    c(y)\n    return x", 4, "x", None),
        (LOOP, 6, "x", 4),
        (LOOP, 6, "y", 5),
        (LOOP, 3, "y", 5),
        (LOOP, 6, "z", None),
        (LOOP, 6, "step", 3),
        # It is not assigned again before the next round reads it.
        ("def f(x):\n    while a():\n        b(x)\n        c()", 4, "x", None),
        # Names that a nested function, a generator, a class or `global` may read.
        ("def f():\n    x = a()\n    def g():\n        return x\n    b()\n    return g", 5, "x", None),
        ("def f():\n    x = a()\n    g = (it + x for it in b)\n    c()\n    return g", 4, "x", None),
        ("def f():\n    global x\n    x = a()\n    b(x)\n    c()", 5, "x", None),
        ("def f():\n    x = a()\n    b()\n    return locals()", 3, "x", None),
        ("def f():\n    x = a()\n    def g():\n        x = b()\n        return x\n    c(x)\n    d()", 7, "x", 6),
        ("def f():\n    x = a()\n    def g():\n        nonlocal x\n        x = b()\n    c(x)\n    d()", 7, "x", None),
        ("def f():\n    x = a()\n    def g(y=x):\n        x = b()\n    c(x)\n    d()", 6, "x", None),
        ("def f():\n    x = a()\n    def g():\n        y = [x for x in b]\n        return x\n    c()", 6, "x", None),
        (
            "def f():\n    x = a()\n    def g():\n        x = b()\n        return lambda: x\n    c(x)\n    d()",
            7,
            "x",
            6,
        ),
        # The program deletes the name itself.
        ("def f():\n    x = a()\n    b(x)\n    c()\n    del x", 4, "x", None),
        # An exception handler reads it.
        ("def f():\n    x = a()\n    try:\n        b()\n    except E:\n        c(x)", 4, "x", None),
        ("def f():\n    x = a()\n    try:\n        b(x)\n    finally:\n        c()\n    d()", 7, "x", 6),
        # It may be unassigned.
        ("def f():\n    if a():\n        x = b()\n        c(x)\n    d()", 5, "x", None),
        ("def f():\n    if a():\n        x = b()\n        c(x)\n        d()", 5, "x", 4),
        # Lines after which no line can be inserted.
        ("def f():\n    x = a(); b(x)\n    c()", 3, "x", 2),
        ("def f():\n    x = a()\n    b(x); c()\n    d()", 4, "x", 3),
        ("def f():\n    x = a()\n    b(x); x = c()\n    d(x)", 4, "x", None),
        ("def f():\n    x = a()\n    b(x); return c()", 3, "x", None),
        ("def f():\n    x = a()\n    if c: b(x); d()\n    e()", 4, "x", 3),
        ("def f():\n    x = a()\n    if x: b(x)\n    c()", 4, "x", 3),
        ("def f():\n    with a() as x:\n        y = b(x)\n        c(y)\n    d()", 4, "x", 3),
        ("def f():\n    x = a()\n    x += 1\n    b()", 4, "x", 3),
        ("def f():\n    x, y = a()\n    b(y)", 3, "x", 2),
        ("def f(x):\n    y = g(x)\n    return h(y)", 3, "x", 2),
    ],
)
def test_the_line_behind_the_last_use(text, line, name, after):
    assert place(text, line, name) == after


@pytest.mark.parametrize(
    "use, after",
    [
        ("x.shape", 3),
        ("x.size(0)", 3),
        ("len(x)", 3),
        ("x.sum()", None),
        ("x.sizes", None),
        ("x.size", None),
        ("g(x)", None),
    ],
)
def test_a_shape_is_no_content(use, after):
    text = f"def f():\n    x = a()\n    y = b(x)\n    c(y)\n    return {use}"
    assert place(text, 4, "x") is None
    assert place(text, 4, "x", by_content=True) == after


def program(monkeypatch, tmp_path, text):
    file = tmp_path / "trained.py"
    file.write_text(textwrap.dedent(text))
    module = types.ModuleType("trained")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "trained", module)
    return Program({"trained": str(file)})


METHOD = """
    class Trainer:
        def __init__(self):
            self.big = None

        def step(self, x):
            self.big = load(x)
            y = use(self.big)
            return y
    """


@pytest.mark.parametrize(
    "more, found",
    [
        ("", ["self.big"]),
        ("print(trainer.small)", ["self.big"]),
        ("print(trainer.big)", []),
        ("getattr(trainer, name)", []),
        ("getattr(trainer, 'small')", ["self.big"]),
        ("getattr(trainer, 'big')", []),
        ("vars(trainer)", []),
        ("print(trainer.__dict__)", []),
        ("model.eval()", ["self.big"]),
        ("torch.save(trainer, path)", []),
        ("torch.save({'model': model.state_dict()}, path)", ["self.big"]),
        ("import pickle", []),
        ("class Other(Trainer):\n        def step(self, x):\n            return self.big", []),
        ("class Other:\n        @property\n        def big(self):\n            return 1", []),
        ("hook = lambda it: it.big", []),
        ("del trainer.big", []),
        ("trainer.big += 1", []),
        ("trainer.big = None", ["self.big"]),
    ],
)
def test_an_attribute_is_dead_if_only_its_method_reads_it(monkeypatch, tmp_path, more, found):
    assert [it.text for it in dead(program(monkeypatch, tmp_path, METHOD + more))] == found


@pytest.mark.parametrize(
    "body, found",
    [
        ("self.big = load(x)\n            y = use(self.big)\n            return y", 4),
        ("self.big = load(x)\n            return use(self.big)", None),
        ("y = use(self.big)\n            self.big = load(x)", None),
        ("if x:\n                self.big = load(x)\n            y = use(self.big)\n            return y", None),
        ("self.big = load(x)\n            y = lambda: self.big\n            return y", None),
        ("self.big = load(x)\n            self = y = use(self.big)\n            return y", None),
        ("self.big = load(x)\n            self.step(y)\n            return y", None),
    ],
)
def test_the_line_behind_the_last_use_of_an_attribute(monkeypatch, tmp_path, body, found):
    text = "class Trainer:\n    def step(self, x):\n" + textwrap.indent(
        textwrap.dedent("            " + body), "        "
    )
    rows = [it.insertion([]) for it in dead(program(monkeypatch, tmp_path, text))]
    assert [it and it.line for it in rows if it] == ([found] if found else [])


@pytest.mark.parametrize(
    "text, found",
    [
        ("rows = []\nrows.append(f(x))", {"rows": "f(x)"}),
        ("rows = {}\nrows[1] = x", {"rows": "pass"}),
        ("rows = []\nrows.append(x)\nprint(len(rows))", {}),
        ("rows = []\nrows.append(x)\nother = rows", {}),
        ("rows = []\nrows.append(x)\nrows.append(y)", {}),
        ("rows = []\nrows.append(x)\nimport __main__", {}),
        ("rows = []\nrows.append(x)\nsys.modules[name]", {}),
        ("rows = []\nrows.append(x)\nglobals()", {}),
        ("rows = []\nrows.append(x)\ndef f():\n    return rows", {}),
        ("rows = []\ndef f():\n    rows.append(x)", {"rows": "pass"}),
        ("rows = load()\nrows.append(x)", {}),
        ("def f(rows):\n    rows = []\n    rows.append(x)", {}),
        ("def f():\n    rows = []\n    rows.append(x)\n    return rows", {}),
        ("def f():\n    rows = []\n    def g():\n        rows.append(x)\n    return g", {}),
        ("def f():\n    rows = []\n    for x in y:\n        rows.append(x)\n    return y", {"rows": "pass"}),
        (
            "class A:\n    def __init__(self):\n        self.rows = []\n    def f(self, x):\n        self.rows.append(x)",
            {"rows": "pass"},
        ),
        ("class A:\n    rows = []\n    def f(self, x):\n        self.rows.append(x)", {}),
    ],
)
def test_a_container_is_unread_if_one_statement_adds_to_it_and_nothing_else_uses_it(monkeypatch, tmp_path, text, found):
    assert {it.name: it.text for it in unread(program(monkeypatch, tmp_path, text))} == found


@pytest.mark.parametrize(
    "use, is_found",
    [
        ("print(total / 3)", True),
        ("return total.item()", True),
        ("return total / 3", False),  # nothing here calls the function
        ("total.backward()", False),
        ("(total * 2).backward()", False),
        ("scaler.scale(total).backward()", False),
        ("accelerator.backward(total)", False),
        ("torch.autograd.grad(total, x)", False),
        ("mean = total / 3\n    print(f'{mean:.2f}')", True),
        ("mean = total / 3\n    mean.backward()", False),
        ("log({'loss': float(total)})", True),
        ("unknown(total)", False),
        ("rows.append(total)\n    sum(rows).backward()", False),
        ("rows.append(total)\n    print(sum(rows))", True),
        ("self.loss = total", True),
        ("self.loss = total\n    self.loss.backward()", False),
        ("[it.backward() for it in [total]]", False),
        ("yield total", False),
    ],
)
def test_a_sum_keeps_graphs_for_nothing_if_no_backward_pass_uses_it(monkeypatch, tmp_path, use, is_found):
    text = f"def train():\n    total = 0\n    for x in data:\n        total += net(x)\n    {use}"
    found = [it.edited()[1] for it in sums(program(monkeypatch, tmp_path, text)) if it.target.id == "total"]
    assert found == (["total += net(x).detach()"] if is_found else [])


@pytest.mark.parametrize(
    "use, edited", [("print(sum(total()))", ["rows.append((x * 2).detach())"]), ("sum(total()).backward()", [])]
)
def test_a_sum_that_a_function_returns_is_followed_to_its_callers(monkeypatch, tmp_path, use, edited):
    text = f"def total():\n    rows = []\n    rows.append(x * 2)\n    return rows\n{use}"
    assert [it.edited()[1] for it in sums(program(monkeypatch, tmp_path, text))] == edited
