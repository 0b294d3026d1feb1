"""A predicted step whose ends are far apart is a range: no step in it is named."""

import pytest

from dptune.predicted import Prediction
from dptune.whatif.ranges import as_range, too_far_apart


def predicted(low_ns: int, high_ns: int, per_sample: float | None = 2.0) -> Prediction:
    missing = {"ns_per_sample": "no samples", "global_batch": "no samples"} if per_sample is None else {}
    batch = None if per_sample is None else 4
    return Prediction(
        changes={"precision.autocast": "bf16"},
        **{"step_ns": low_ns, "low_ns": low_ns, "high_ns": high_ns},
        **{"global_batch": batch, "ns_per_sample": per_sample, "missing": missing},
    )


@pytest.mark.parametrize(
    ("low_ns", "high_ns", "far"),
    [(700, 1300, False), (700, 1301, True), (24, 50, True), (0, 1, True), (0, 0, False), (5, 5, False)],
)
def test_ends_that_allow_any_step_to_be_more_than_30_percent_off_name_none(
    low_ns: int, high_ns: int, far: bool
) -> None:
    """Between 700 and 1,300 the harmonic mean, 910, is 30 % off at either end."""
    assert too_far_apart(low_ns, high_ns) == far
    before = predicted(low_ns, high_ns)
    found = as_range(before, ())
    assert found.is_range == far
    assert (found.low_ns, found.high_ns, found.global_batch) == (low_ns, high_ns, 4)
    if not far:
        assert found is before
        return
    assert found.known("step_ns") is found.known("ns_per_sample") is None
    assert found.central_ns == (low_ns + high_ns) / 2
    assert Prediction.model_validate_json(found.model_dump_json()) == found


def test_why_is_what_the_range_is_of() -> None:
    def why(*changes: str) -> str:
        return as_range(predicted(10, 40), changes).missing["step_ns"]

    assert why("precision.autocast", "ddp.no_sync").endswith(
        "because the speedup of matrix products in this precision depends on their shapes, which were not benchmarked"
    )
    assert why("ddp.comm_hook", "link.gb_per_s", "batch.times").endswith(
        "the effect of batch.times and ddp.comm_hook is estimated, not measured"
    )
    assert why().endswith("the upper end of its interval is more than 1.86x the lower")


def test_without_samples_their_own_reason_stays() -> None:
    found = as_range(predicted(10, 40, None), ())
    assert found.missing["ns_per_sample"] == "no samples"
    assert found.missing["step_ns"].startswith("no single step time is predicted")


def test_a_bound_is_no_range_and_a_step_is_its_own_centre() -> None:
    bound = Prediction.only("only a bound", changes={}, low_ns=10)
    assert not bound.is_range
    assert bound.central_ns is None
    assert predicted(10, 11).central_ns == 10
