"""The link of all-reduces: fitted, derived from the other collectives of a ring, or with an assumed latency."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.measured import LinkFigures, Missing
from dptune.testing import measured_run
from dptune.whatif.gpu.links import ASSUMED
from dptune.whatif.gpu.program import Program
from dptune.whatif.link import DERIVED, link_figures, link_range

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"


def fitted(kind, alpha_us, algbw, ranks=(0, 1, 2, 3), **more):
    known = {"alpha_us": alpha_us, "algbw_gb_per_s": algbw, "scope": "unknown", "basis": "trace", **more}
    return LinkFigures.only("no", kind=kind, ranks=list(ranks), sizes=[], calls=3, **known)


def of(*links):
    return link_figures(measured_run().model_copy(update={"links": list(links)}))


def test_an_all_reduce_takes_as_long_as_both_of_its_halves():
    """1 MB: 10 + 10 us and 20 + 20 us, and a ring of four sends 1.5 times the bytes of the message."""
    link = of(fitted("reduce_scatter", 10.0, 100.0), fitted("all_gather", 20.0, 50.0))
    assert (link.kind, link.source) == ("all_reduce", DERIVED)
    assert link.alpha_us + 1000 / link.algbw_gb_per_s == pytest.approx(60)
    assert link.busbw_gb_per_s == pytest.approx(1.5 * link.algbw_gb_per_s)
    quickest, slowest = link_range(link)
    assert quickest.bytes_per_ns > 1.3 * link.algbw_gb_per_s > link.algbw_gb_per_s > slowest.bytes_per_ns


def test_the_half_that_is_not_known_is_like_the_other():
    link = of(fitted("all_gather", 20.0, 50.0))
    assert (link.alpha_us, link.algbw_gb_per_s) == (40.0, 25.0)


def test_all_reduces_of_the_run_itself_are_preferred():
    own = fitted("all_reduce", 30.0, 40.0, ranks=(0, 1))
    assert of(fitted("all_gather", 20.0, 50.0), own) is own
    with pytest.raises(Missing, match="latency and bandwidth"):
        of(fitted("p2p", 20.0, 50.0))


def test_too_few_sizes_leave_the_rate_that_an_assumed_latency_gives() -> None:
    """Two buckets of two sizes: the link sends them in the time that they took, with any of the latencies."""
    model = reading.modelled(SAMPLES / "ranks-nccl-ddp")
    assert isinstance(model.model, Program)
    assert model.model.link is not None
    assert model.result([]).link == ASSUMED
    assert len(model.model.other_links) == 2
    alphas = [link.alpha_ns for link in (model.model.link, *model.model.other_links)]
    assert alphas == [40e3, 10e3, 200e3]
    size = model.model.messages[0].message_bytes
    times = [link.alone_ns(size) for link in (model.model.link, *model.model.other_links)]
    assert max(times) < 1.05 * min(times)


@pytest.mark.thorough
@pytest.mark.parametrize("predicts", [False, True])
def test_a_sharded_run_has_a_link_for_all_reduces(real_traces: Path, predicts: bool) -> None:
    path = real_traces / "nanogpt_8xh100"
    model = reading.modelled(path)
    result = model.result([model.predict({"link.gb_per_s": 1e6})] if predicts else [])
    assert result.link == DERIVED
    assert result.floor_ns is not None
    assert [prediction.step_ns <= model.step_ns for prediction in result.predictions] == [True] * predicts
