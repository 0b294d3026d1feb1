"""What to do next where a trace has no steps."""

from __future__ import annotations

import pytest

from dptune.advise import disturbance
from dptune.advise.unjudgeable import is_why, unjudgeable
from dptune.finding import Finding
from dptune.measure.steps.repeating import NO_BACKWARD
from dptune.measure.steps.sources import NO_LAUNCHES
from dptune.trace.kineto.body import SECOND


def without_steps(why: str = "") -> list[Finding]:
    return [Finding(code="steps-missing", level="unjudgeable", text=f"no steps were found{why}")]


def test_the_command_names_the_only_trace() -> None:
    said = unjudgeable(without_steps(), [], ["my traces/a.json"]).next
    assert "`dptune report 'my traces/a.json' --full`" in said
    assert "after each optimizer step" in said


def test_few_steps_of_inference_are_not_recorded_with_dptune_profile() -> None:
    few = [Finding(code="steps-few", level="unjudgeable", text="only 1 steady step was recorded; a verdict needs 3")]
    assert "`dptune profile --light 5 train.py`" in unjudgeable(few, []).next
    said = unjudgeable(few, [], inference=True).next
    assert said.startswith("This looks like inference")
    assert "dptune profile" not in said
    assert "`active`" in said


@pytest.mark.parametrize("code", ["steps-few", disturbance.BUSY])
def test_a_sure_risk_is_named_by_what_to_do_before_the_next_recording(make_advice, code: str) -> None:
    fault = [Finding(code=code, level="unjudgeable", text="something is wrong")]
    risk = make_advice("XX102", kind="risk", saves=None, numerics="changes", changes=[], confidence="medium")
    risk = risk.model_copy(update={"remedy": "Copy the tensors."})
    said = unjudgeable(fault, [risk])
    assert said.rule == "XX102"
    assert said.next.startswith("XX102: Copy the tensors. Then ")
    assert unjudgeable(fault, []).next[1:] in said.next
    doubtful = unjudgeable(fault, [risk.model_copy(update={"confidence": "low"})])
    assert (doubtful.rule, "XX102" in doubtful.next) == ("", False)


def test_steps_without_launches_need_a_recording_of_these_and_no_call_of_step() -> None:
    said = unjudgeable(without_steps(f": no operation can be assigned to a step: {NO_LAUNCHES}"), []).next
    assert said == "Record again with every activity of the profiler on, or with `dptune profile train.py`."


def test_several_traces_are_not_named() -> None:
    assert "`dptune report --full`" in unjudgeable(without_steps(), [], ["a.json", "b.json"]).next


def test_inference_has_no_optimizer_steps() -> None:
    said = unjudgeable(without_steps(f": {NO_BACKWARD}"), [], ["a.json"]).next
    assert "no verdict on training" in said
    assert "after each step" in said
    assert "optimizer" not in said
    assert "`dptune report a.json --full`" in said


@pytest.mark.parametrize(
    ("end", "remedy"), [("", "A trace file is truncated. Copy it again"), (SECOND, "Write one trace per rank")]
)
def test_that_a_trace_breaks_off_is_the_reason_for_what_its_end_would_hold(end: str, remedy: str) -> None:
    lacks = Finding(code="communication-missing", level="unjudgeable", text="rank 0: no communication was recorded")
    cut = Finding(code="trace-partial", level="partial", text=f"a.json breaks off after 12 events, at byte 900{end}")
    said = unjudgeable([lacks, cut], [], ["a.json"])
    assert said.why == f"{cut.text}."
    assert said.next.startswith(remedy)
    assert is_why(cut, said.why)
    assert not is_why(lacks, said.why)
    assert is_why(lacks, unjudgeable([lacks, cut], [], ["a.json", "b.json"]).why)  # of which one is whole
