"""Rows by category and name, against asking each row."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.trace import load

WORDS = st.sampled_from(["", "cpu_op", "kernel", "Kernel", "a", "b", "ab"])


def of(folder, kinds):
    """The columns of events with these categories and names, one a nanosecond."""
    events = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at / 1000, "dur": 0.001}
        for at, (category, name) in enumerate(kinds)
    ]
    path = folder / "0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return load([path]).ranks[0].light.columns


@pytest.mark.long
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30), st.none() | st.frozensets(WORDS), st.none() | WORDS)
def test_rows_are_those_that_ask_alike(tmp_path_factory, kinds, categories, part):
    columns = of(tmp_path_factory.mktemp("columns"), kinds)
    named = None if part is None else lambda name: part in name
    expected = [
        at
        for at, (category, name) in enumerate(kinds)
        if (categories is None or category in categories) and (part is None or part in name)
    ]
    assert columns.rows(categories, named).tolist() == expected
    everything = columns.rows()
    if categories is not None:
        asked = columns.of_category(categories, everything)
        assert asked.tolist() == [category in categories for category, _ in kinds]
    if named is not None:
        assert columns.named(named, everything).tolist() == [part in name for _, name in kinds]


@pytest.mark.long
def test_more_names_than_sixteen_bits_can_count(tmp_path):
    count = 1 << 16
    columns = of(tmp_path, [("cpu_op", f"op{at % count}") for at in range(count + 3)])
    assert columns.rows(named=lambda name: name == "op1").tolist() == [1, count + 1]
    assert len(columns.rows()) == count + 3


@pytest.mark.parametrize("categories", [{"kernel"}, None])
def test_names_are_asked_for_once_each_and_only_in_the_categories(tmp_path, categories):
    asked = []
    columns = of(tmp_path, [("kernel", "a"), ("cpu_op", "b"), ("kernel", "a")])
    columns.rows(categories, asked.append)
    assert sorted(asked) == (["a"] if categories else ["a", "b"])


def test_of_some_rows_only_their_names_are_asked_for(tmp_path):
    columns = of(tmp_path, [("kernel", "a"), ("cpu_op", "b"), ("kernel", "ab"), ("kernel", "a")])
    rows, asked = columns.rows({"kernel"}), []
    assert columns.named(lambda name: asked.append(name) or "b" in name, rows).tolist() == [False, True, False]
    assert sorted(asked) == ["a", "ab"]
    assert columns.named(lambda name: True, rows[:0]).tolist() == []


def test_the_names_of_some_rows(tmp_path):
    columns = of(tmp_path, [("kernel", "a"), ("cpu_op", "b"), ("kernel", "c")])
    assert columns.names_of(np.array([2, 0, 2])) == ["c", "a", "c"]
    assert columns.names_of(np.array([], dtype=np.int64)) == []
