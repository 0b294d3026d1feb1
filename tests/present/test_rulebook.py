from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptune.knobs import KNOBS, PATCHED
from dptune.measured import Figures, Measured
from dptune.present.ink import paint
from dptune.present.sections import rulebook
from dptune.rule import Rule, Threshold
from dptune.whatif.bounds import BOUNDS as OF_CPUS
from dptune.whatif.cpu import changes as on_cpus
from dptune.whatif.gpu import changes as on_gpus
from dptune.whatif.memory import changes as of_memory

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).parents[2] / "sample_traces"

RULE = Rule(
    code="DP999",
    name="slow-thing",
    family="host",
    kind="time",
    summary="something is slow",
    since="0.1",
    thresholds=(Threshold("warning_share", 0.05, "five in a hundred is felt"),),
    preview=True,
)
DOC = """Something is slow.

## What it measures

The share of `thing` in the step,
on every rank.

- first cause
  goes on
- second cause

## What to change

```python
if slow:
    faster()
```

    plain = code()
"""


def explained(limits: dict[str, float]) -> str:
    return paint(rulebook.explained(RULE, DOC, limits, "dptune 0.1", 60), colour=False)


def test_a_rule_is_explained_under_its_own_headings() -> None:
    page = explained({})
    assert page.startswith("DP999 slow-thing\nSomething is slow.\n")
    assert "\nWhat it measures\n  The share of `thing` in the step, on every rank.\n" in page
    assert "  - first cause goes on\n  - second cause\n" in page
    assert "    if slow:\n        faster()\n" in page
    assert "    plain = code()\n" in page
    assert "##" not in page
    assert "```" not in page
    assert "it runs only when it is selected" in page


def test_a_threshold_has_its_value_and_its_reason() -> None:
    assert "  warning_share = 0.05\n      five in a hundred is felt\n" in explained({})
    assert "warning_share = 0.2 (yours; dptune's own is 0.05)" in explained({"warning_share": 0.2})
    assert "[tool.dptune.rules.DP999]" in explained({})


def test_a_rule_that_only_a_recording_answers_says_so() -> None:
    """Not one that has findings on a trace without a recording, too."""
    pages = {code: paint(rulebook.page_of(code)(200), colour=False) for code in ("DP602", "DP803", "DP804")}
    asks = {code for code, page in pages.items() if "has findings only in recordings" in page}
    assert asks == {"DP602"}


def test_the_list_marks_what_does_not_run_and_what_others_made() -> None:
    rules = [(RULE, "acme-rules 2.0")]
    page = paint(rulebook.listed(rules, set(), 90), colour=False)
    assert "host\n" in page
    assert "DP999   slow-thing (preview, off, from acme-rules 2.0): something is slow" in page
    page = paint(rulebook.listed(rules, {"DP999"}, 90), colour=False)
    assert "off" not in page


def test_no_rules_is_said() -> None:
    assert paint(rulebook.listed([], set(), 80), colour=False) == "No rule is installed.\n"


@pytest.mark.long
def test_every_figure_stands_where_it_is_said() -> None:
    """In a run that has most of them: each place leads to a value, or to a figure that is missing for a reason."""
    told = reading.sample("accumulation_without_no_sync")[1].measured
    places = [one.removeprefix("run.measured.") for one, _ in rulebook._figures(Measured, "run.measured")]
    assert len(places) > 250
    assert {"step.time_ns", "input.wait_share", "ranks[].devices[].steps[].account.compute_ns"} <= {*places}
    reached = 0
    for place in places:
        found: Any = told
        for name in place.split("."):
            sign = name[-2:] if name[-2:] in ("[]", "{}") else ""
            found = (
                found.known(name.removesuffix(sign))
                if isinstance(found, Figures)
                else getattr(found, name.removesuffix(sign))
            )
            if sign == "[]" and found is not None:
                found = next(iter(found), None)
            if found is None or sign == "{}":
                break
        reached += found is not None
    assert reached > 150


def test_figures_are_found_by_a_word() -> None:
    told = paint(rulebook.figures("data loader /", 100), colour=False)
    assert "run.measured.input.wait_share\n    waiting for the data loader / step" in told
    assert "2 figures." in told
    assert paint(rulebook.figures("zebra", 100), colour=False).startswith("No figure has 'zebra'")


def test_knobs_say_what_is_predicted_on_which_device():
    page = " ".join(paint(rulebook.knobs(100), colour=False).split())
    outside, _, patched = page.partition("set by a patch of the script")
    described = {**KNOBS, **PATCHED}
    text = {
        name: (patched if name in PATCHED else outside).partition(f" {name} ")[2].partition(f" {after} ")[0]
        for name, after in zip(described, [*list(described)[1:], ""], strict=True)
    }
    assert all(text.values())
    for name, knob in described.items():
        steps, bounds = name in on_gpus.CHANGES or name in on_gpus.RANGED, name in on_gpus.BOUNDS
        if knob.predicted == "step" and steps:
            assert "whatif" not in text[name], name
        if knob.predicted == "bound" and steps:
            assert "whatif gives an upper bound on CPUs, the step on GPUs" in text[name], name
        if knob.predicted == "no" and steps:
            assert "whatif gives no step on CPUs, the step on GPUs" in text[name], name
        if knob.predicted == "no" and name not in on_gpus.PREDICTED:
            assert "whatif cannot predict it" in text[name] or name in of_memory.CHANGES, name
        assert not (bounds and not steps) or "upper bound" in text[name], name
    assert "whatif predicts its memory, not the step" in text["memory.checkpointing"]
    assert PATCHED.keys() <= set(patched.split())


@pytest.mark.parametrize("name", [*KNOBS, *PATCHED])
def test_what_a_knob_says_of_cpus_is_what_their_model_has(name):
    """Changes that the model of CPUs refuses whatever the run are in its table, for their reasons."""
    refused = name == "fsdp.offload_policy"
    steps = name in on_cpus.CHANGES and not refused
    assert (KNOBS | PATCHED)[name].predicted == ("step" if steps else "bound" if name in OF_CPUS else "no")
