"""A short run of the fuzzer (`make fuzz` is the long one): on pieces of the smaller traces."""

import pytest

from .mutate import SEED, Source, Tally, run

INPUTS = 600


def test_no_damage_leads_to_a_wrong_figure(tmp_path, real_traces):
    source = Source.cut(largest_bytes=150_000, every=2)
    assert len(source.sound) > 15
    tally = Tally()
    for _ in run(source, range(INPUTS), SEED, tmp_path / "t.json", tally):
        pass
    assert tally.wrong == []
    assert tally.decoded > 0.3 * INPUTS
    assert tally.planted > 0.15 * INPUTS
    assert tally.compared_cells > 100_000
    assert len(tally.refusals) >= 5
    assert tally.partial > 0.1 * INPUTS


def test_the_fuzzer_sees_a_wrong_figure(tmp_path, real_traces, monkeypatch):
    """That it would: with a reader that is a nanosecond off."""
    from dptune.trace import builder

    honest = builder.all_nanoseconds
    monkeypatch.setattr(builder, "all_nanoseconds", lambda texts: None if (ns := honest(texts)) is None else ns + 1)
    tally = Tally()
    for _ in run(Source.cut(largest_bytes=60_000, every=4), range(30), SEED, tmp_path / "t.json", tally):
        pass
    assert any("ts_ns" in wrong for each in tally.wrong for wrong in each["wrong"])


@pytest.mark.parametrize("number", range(3))
def test_an_input_depends_on_its_number_alone(real_traces, number):
    source = Source([b'{"traceEvents": [{"ph": "X", "ts": 5, "dur": 7}]}'], [b"[1, 2]"])
    assert source.made(SEED, number) == source.made(SEED, number)
    assert source.made(SEED, number) != source.made(SEED, number + 1)
