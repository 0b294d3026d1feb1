"""Every column and table of the real traces, against json.loads and Decimal (plain.py)."""

import json

import pytest

from dptune.trace.kineto import body, text
from dptune.trace.kineto.decode import decode

from .plain import differences, read

SMALL_BYTES = 8_000_000  # of text: what is read again in every way there is
FEWEST_EVENTS, FEWEST_CELLS = 2_400_000, 19_500_000


def by_small_blocks(patch):
    for module in (text, body):
        patch.setattr(module, "BLOCK_BYTES", 70_000)


def by_tolerant_structs(patch):
    patch.setattr(body, "_TYPED", body._TOLERANT)
    patch.setattr(body.Builder, "typed", lambda _self, _events: False)


def one_by_one(patch):
    patch.setattr(body.Body, "_at_once", lambda _self: False)


WAYS = (by_small_blocks, by_tolerant_structs, one_by_one)


def entries(real_traces):
    return [each for each in json.loads((real_traces / "MANIFEST.json").read_text()) if each["torch_trace"]]


@pytest.mark.thorough
def test_every_column_of_every_event(real_traces, record_property):
    """One test for all files, so that it can say how much was compared (`pytest -rP` shows it)."""
    wrong, events, cells = {}, 0, 0
    for entry in entries(real_traces):
        path = real_traces / entry["file"]
        trace = decode(path)
        differ, compared = differences(trace, read(path))
        if differ or trace.partial:
            wrong[entry["file"]] = [*differ, trace.partial]
        events += trace.events
        cells += compared
    record_property("events", events)
    record_property("cells", cells)
    print(f"{events:,} events and {cells:,} cells compared")
    assert wrong == {}
    assert events == sum(entry["events"] for entry in entries(real_traces)) > FEWEST_EVENTS
    assert cells > FEWEST_CELLS


def test_every_column_of_some_of_the_smaller_ones(real_traces):
    small = [each for each in entries(real_traces) if each["uncompressed_bytes"] <= SMALL_BYTES]
    assert len(small) > 55
    for entry in small[::12]:
        path = real_traces / entry["file"]
        differ, compared = differences(decode(path), read(path))
        assert not differ, entry["file"]
        assert compared


@pytest.mark.thorough
def test_every_way_of_decoding_gives_the_same(real_traces, monkeypatch):
    small = [each for each in entries(real_traces) if each["uncompressed_bytes"] <= SMALL_BYTES]
    assert len(small) > 55
    wrong = {}
    for entry in small:
        path = real_traces / entry["file"]
        plain = read(path)
        for way in WAYS:
            with monkeypatch.context() as patch:
                way(patch)
                if differ := differences(decode(path), plain)[0]:
                    wrong[entry["file"], way.__name__] = differ
    assert wrong == {}
