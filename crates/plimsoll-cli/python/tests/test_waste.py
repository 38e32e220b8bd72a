# Which names are dead at a line, and where a line that deletes them can be inserted.

import ast

import pytest

from plimsoll._waste.insertion import after_last_use
from plimsoll._waste.names import Names


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
        # The program deletes the name itself.
        ("def f():\n    x = a()\n    b(x)\n    c()\n    del x", 4, "x", None),
        # An exception handler reads it.
        ("def f():\n    x = a()\n    try:\n        b()\n    except E:\n        c(x)", 4, "x", None),
        ("def f():\n    x = a()\n    try:\n        b(x)\n    finally:\n        c()\n    d()", 7, "x", 6),
        # It may be unassigned.
        ("def f():\n    if a():\n        x = b()\n        c(x)\n    d()", 5, "x", None),
        ("def f():\n    if a():\n        x = b()\n        c(x)\n        d()", 5, "x", 4),
        # Lines after which no line can be inserted.
        ("def f():\n    x = a(); b(x)\n    c()", 3, "x", None),
        ("def f():\n    x = a()\n    b(x); c()\n    d()", 4, "x", None),
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
