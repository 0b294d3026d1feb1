"""The page on a search: verdict, before and after, intervals to scale, the patch, and names that are no markup."""

from __future__ import annotations

import re

import pytest

from dptune.advice import Verified
from dptune.present.html import tuning_page
from dptune.tune.result import NotTried, Tried, Tuning

from .test_html import EVIL, read

DIFF = """\
--- a/train.py
+++ b/train.py
@@ -1,3 +1,3 @@
 import torch
-loader = DataLoader(data, 8)
+loader = DataLoader(data, 8, num_workers=2)
"""
FINAL = Verified(
    name="loader.num_workers=2",
    changes={"loader.num_workers": 2},
    outcome="better",
    reason="each of 6 trials is faster",
    objective="time per sample",
    ratio=0.4,
    low_ratio=0.35,
    high_ratio=0.45,
    before_ns=100_000_000,
    trials=6,
    learning="the losses are the same",
    learns="alike",
)


def tried(name: str, result: str, low: float | None, high: float | None, gain: float | None, reason: str = "") -> Tried:
    return Tried(
        name=name,
        title=name,
        settings={"loader.num_workers": 2},
        numerics="same",
        basis="",
        predicted_low_share=0,
        predicted_high_share=0,
        stack=[],
        rounds=6,
        gain_share=gain,
        low_ratio=low,
        high_ratio=high,
        result=result,  # type: ignore[arg-type]
        reason=reason,
    )


@pytest.fixture
def tuning() -> Tuning:
    return Tuning(
        dptune="0.1",
        machine="host, 2 cores",
        run="run",
        command=["python", "train.py"],
        directory="/work",
        numerics="same",
        time_limit_s=1200,
        seconds=600,
        ended="complete",
        outcome="faster",
        reason="each of 6 trials is faster",
        kept=["DP501"],
        settings={"loader.num_workers": 2},
        level=0.05,
        level_spent=0.01,
        final=FINAL,
        tried=[
            tried("DP501", "kept", 0.35, 0.45, 0.6),
            tried("threads", "dropped", None, None, -0.2, "slower in each of 2 rounds"),
            tried("fused", "dropped", None, None, None, "failed: ValueError"),
        ],
        not_tried=[NotTried(name="DP102", title="", reason="left out by --skip")],
        patched=["train.py"],
        patch="tuned.patch",
        apply="patch -p1 -d /work < tuned.patch",
    )


def test_the_verdict_and_the_step_before_and_after(tuning: Tuning) -> None:
    words = " ".join(read(tuning_page(tuning, DIFF)).words)
    assert "Faster: 60.0 % less time per sample (interval 55.0-65.0 %, 6 trials per side)." in words
    assert "100 %, 100.0 ms per step" in words
    assert "40.0 % of the time per sample before" in words
    assert "patch -p1 -d /work < tuned.patch" in words
    assert "The chance that any kept change has no effect is at most 5 %." in words


def test_intervals_are_drawn_to_scale_on_one_axis(tuning: Tuning) -> None:
    page = tuning_page(tuning, DIFF)
    bars = re.findall(r'<i style="left:([\d.]+)%;width:([\d.]+)%', page)
    zero = float(re.search(r'<u style="left:([\d.]+)%', page)[1])  # type: ignore[index]
    (left, wide), (slower, none) = ((float(left), float(wide)) for left, wide in bars)
    per_share = (zero - slower) / 0.2  # the dropped one takes 20 % longer, and has no interval
    assert none == 0
    assert left == pytest.approx(zero + 0.55 * per_share, abs=0.1)
    assert wide == pytest.approx(0.1 * per_share, abs=0.1)
    assert "failed: ValueError" in page  # without a bar, but in the table


def test_the_patch_shows_what_goes_and_what_comes(tuning: Tuning) -> None:
    page = tuning_page(tuning, DIFF)
    assert "<del>-loader = DataLoader(data, 8)</del>\n<ins>+loader = DataLoader(data, 8, num_workers=2)</ins>" in page
    assert 'href="#patch"' in page
    without = tuning_page(tuning.model_copy(update={"patch": "", "patched": [], "apply": ""}), "")
    assert 'href="#patch"' not in without


@pytest.mark.parametrize("outcome", ["not confirmed", "results differ", "not compared", "nothing kept"])
def test_other_outcomes(tuning: Tuning, outcome: str) -> None:
    changed = tuning.model_copy(update={"outcome": outcome, "final": None, "kept": [], "tried": [], "not_tried": []})
    words = read(tuning_page(changed, "")).words
    assert "No change was raced." in words
    assert "before" not in words


def test_names_of_a_script_add_no_element(tuning: Tuning) -> None:
    evil = tuning.model_copy(
        update={
            "command": [EVIL],
            "directory": EVIL,
            "reason": EVIL,
            "kept": [EVIL],
            "settings": {EVIL: EVIL},
            "tried": [each.model_copy(update={"name": EVIL, "reason": EVIL}) for each in tuning.tried],
            "not_tried": [NotTried(name=EVIL, title=EVIL, reason=EVIL)],
            "apply": EVIL,
        }
    )
    whole = read(tuning_page(evil, DIFF + EVIL))
    assert [tag for tag, _ in whole.seen].count("script") == 1
    assert not any("\x1b" in words or "\u202e" in words for words in whole.words)
