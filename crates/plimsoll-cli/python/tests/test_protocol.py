# The recorded messages, as the Python side writes and reads them; `src/protocol/tests.rs` tests the other side.

import json
import pathlib
import re

import pytest

from plimsoll import protocol

RECORDED = pathlib.Path(__file__).parents[2] / "tests/protocol/messages.jsonl"
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool}
MESSAGES = [json.loads(line) for line in RECORDED.read_text().splitlines()]


def check(kind, value, path):
    # Whether a value has the type in an annotation such as `int | None` or `list[Read]`.
    alternatives = [it.strip() for it in re.split(r"\|(?![^\[]*\])", kind)]
    if "Any" in alternatives or (value is None and "None" in alternatives):
        return
    for name in alternatives:
        inner = re.fullmatch(r"(list|dict|tuple)\[(.*)\]", name)
        if inner and inner[1] == "list" and isinstance(value, list):
            for nth, it in enumerate(value):
                check(inner[2], it, f"{path}[{nth}]")
            return
        if inner and isinstance(value, {"dict": dict, "tuple": list, "list": list}[inner[1]]):
            return
        if name in TYPES and isinstance(value, TYPES[name]):
            return
        if isinstance(value, dict) and hasattr(protocol, name):
            fields = getattr(protocol, name).__annotations__
            assert set(value) == set(fields), path
            for field, its in fields.items():
                check(its, value[field], f"{path}.{field}")
            return
    raise AssertionError(f"{path} is {value!r}, not {kind}")


@pytest.mark.parametrize("kind, message", MESSAGES)
def test_a_recorded_message_has_the_fields_and_types_of_its_kind(kind, message):
    check(kind, message, kind)


def test_every_kind_that_is_sent_by_itself_is_recorded():
    assert {kind for kind, _ in MESSAGES} == {"Report", "Request", "Done", "View", "Measured"}


def test_reports_have_this_version():
    assert {message["protocol"] for kind, message in MESSAGES if kind == "Report"} == {protocol.VERSION}


def test_a_message_is_a_dictionary_without_typing_at_run_time():
    assert protocol.Done(status=protocol.UNABLE, beside=False) == {"status": "unable", "beside": False}
