import json
import shlex
from math import inf, nan

import pytest
from pydantic import ValidationError

from dptune.advice import Advice, Change, Evidence, Location, Saving


@pytest.mark.parametrize(
    ("value", "told"), [(inf, "inf"), (-inf, "-inf"), (nan, "nan"), (2.5, 2.5), (3, 3), ("x", "x")]
)
def test_evidence_can_be_written_as_json_whatever_a_run_holds(value, told):
    written = json.dumps(Evidence(label="first loss", value=value).model_dump(mode="json"), allow_nan=False)
    assert json.loads(written)["value"] == told


@pytest.mark.parametrize(("now", "then"), [(0.1, inf), (nan, 0.1)])
def test_a_change_is_to_a_number(now, then):
    with pytest.raises(ValidationError, match=r"optimizer\.lr cannot be (inf|nan)"):
        Change(knob="optimizer.lr", now=now, then=then)


@pytest.mark.parametrize(
    ("where", "line"), [("a.py:7", 7), ("C:\\a.py:12", 12), ("a.py:999999999", 999_999_999), ("a:b.py:1", 1)]
)
def test_a_location_is_a_file_and_a_line(where, line):
    assert Location.parse(where).line == line


@pytest.mark.parametrize("line", ["", "x", "-1", "²", "٣", "9" * 10, "9" * 5000])
def test_what_is_no_line_is_no_location(line):
    assert Location.parse(f"train.py:{line}") is None


def test_a_change_that_changes_nothing_is_none():
    with pytest.raises(ValueError, match=r"loader\.num_workers is 2 now, and is to become that: it changes nothing"):
        Change(knob="loader.num_workers", now=2, then=2)


def test_what_sets_a_flag_back_is_other_text():
    assert Change(knob="ddp.no_sync", now=False, then=True).paste.startswith("with model.no_sync()")
    assert Change(knob="ddp.no_sync", now=True, then=False).paste == "loss.backward()  # outside of model.no_sync()"


def test_what_is_pasted_into_a_shell_is_one_word_there():
    change = Change(knob="env.NCCL_DEBUG_FILE", now=None, then="a b; rm $HOME 'x'")
    name, _, value = change.paste.removeprefix("export ").partition("=")
    assert (name, shlex.split(value)) == ("NCCL_DEBUG_FILE", ["a b; rm $HOME 'x'"])
    assert Change(knob="env.OMP_NUM_THREADS", now=None, then="4").paste == "export OMP_NUM_THREADS=4"


@pytest.mark.parametrize(
    ("low", "high", "basis", "unknown", "expected"),
    [
        (0.0, 0.5, "bound", False, 0.25),
        (0.0, 0.501, "bound", True, 0.25),
        (0.0, 1.0, "bound", True, 0.25),
        (0.6, 0.9, "bound", True, 0.6),  # at least 60 %
        (0.6, 0.9, "replayed", False, 0.75),
    ],
)
def test_json_keeps_the_bounds_and_marks_what_is_no_saving(low, high, basis, unknown, expected):
    saves = Saving(low_ms=low, high_ms=high, low_share=low, high_share=high, basis=basis, how="made up")
    written = json.loads(saves.model_dump_json())
    assert (written["high_share"], written["large_unknown"]) == (high, unknown)
    assert saves.expected_share == pytest.approx(expected)
    assert Saving.model_validate_json(saves.model_dump_json()) == saves


def test_a_saving_with_another_interval_keeps_its_step_and_its_batch():
    """Of a step of 200 ms with 10 samples, 20 us per 0.1 % and sample; a prediction moves to the nearer end."""
    saves = Saving(
        **{"low_ms": 20, "high_ms": 60, "low_share": 0.1, "high_share": 0.3, "basis": "replayed", "how": "by hand"},
        **{"low_us_per_sample": 2000, "high_us_per_sample": 6000, "predicted_share": 0.25, "global_batch": 10},
    )
    found = saves.with_shares(0.05, 0.2)
    assert (found.low_ms, found.high_ms) == pytest.approx((10, 40))
    assert (found.low_us_per_sample, found.high_us_per_sample) == pytest.approx((1000, 4000))
    assert (found.low_share, found.high_share, found.predicted_share) == (0.05, 0.2, 0.2)
    assert (found.basis, found.global_batch) == ("replayed", 10)
    assert saves.model_copy(update={"low_share": 0.0, "high_share": 0.0}).with_shares(0.0, 0.2).high_share == 0.0


@pytest.mark.parametrize(
    ("changes", "title", "evidence", "place"),
    [
        ([("a.py", 3)], "`f` (b.py:5) is slow", "c.py:7", "a.py:3"),
        ([None, ("a.py", 3)], "slow", "c.py:7", "a.py:3"),
        ([None], "`f` (src/b.py:5) calls g (b.py:9)", "c.py:7", "src/b.py:5"),
        ([], "slow at 3:5", "made at c.py:7, d.py:8", "c.py:7"),
        ([], "slow", "nothing", "None"),
        ([], "slow", "x.py:99999999999", "None"),  # no file has so many lines
    ],
)
def test_the_place_of_advice_is_the_change_else_what_the_title_or_the_evidence_names(changes, title, evidence, place):
    advice = Advice(
        rule="DP605",
        slug="debug-switches",
        kind="risk",
        impact="low",
        title=title,
        why="why",
        changes=[
            Change(knob="loader.num_workers", now=0, then=2, at=at and Location(file=at[0], line=at[1]))
            for at in changes
        ],
        confidence="low",
        evidence=[Evidence(label="at", value=evidence)],
        numerics="same",
        fingerprint="DP605",
    )
    assert str(advice.place) == place


def test_a_range_names_no_share_in_it():
    shares = {"low_ms": 1, "high_ms": 3, "low_share": 0.1, "high_share": 0.3, "how": "by hand"}
    ranged, bound = (Saving(basis=basis, **shares) for basis in ("replayed", "bound"))
    predicted = ranged.model_copy(update={"predicted_share": 0.25})
    assert [saves.is_range for saves in (ranged, bound, predicted)] == [True, False, False]
    assert [saves.central_share for saves in (ranged, bound, predicted)] == [pytest.approx(0.2), None, 0.25]
    words = [saves.part_in_words for saves in (ranged, bound, predicted)]
    assert words == ["10 to 30 %", "up to 30 %", "about 25 %"]
