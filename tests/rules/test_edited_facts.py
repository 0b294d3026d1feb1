"""Facts of a recording that was edited or cut: rules find nothing in figures that cannot be, and raise no error."""

from __future__ import annotations

import dataclasses
import math

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.decisions import DecisionFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.norm_samples import NormSampleFacts
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.step_draws import StepDrawFacts
from dptune.runfile.training_mode import ActiveDropoutFacts
from dptune.runfile.undivided_losses import UndividedLossFacts
from dptune.runfile.window import Window

SOUND = {
    "DP310": ("undivided_losses", UndividedLossFacts("SGD", 4, 3, 3, True, "train.py:8", "train.py:9")),
    "DP311": ("norm_samples", NormSampleFacts(2, 3, 2, 10, ["bn"], "train.py:8")),
    "DP508": ("step_draws", StepDrawFacts("train.py:8", "randn", [8, 3], ["a", "b", "c"], True)),
    "DP612": ("frozen_features", FrozenFeatureFacts("encoder", "train.py:8", 3, [9, 9, 9], [3, 3, 3])),
    "DP705": ("decisions", DecisionFacts("train.py:8", "best", 0.5, 7, True, True)),
    "DP806": ("active_dropouts", ActiveDropoutFacts("train.py:8", "dropout", "Net", 0.25, True)),
}
OTHERS = {
    bool: (True, False),
    int: (0, -1, 10**30),
    float: (0.0, -1.0, 1e300, math.nan, math.inf, -math.inf),
    str: ("", "x" * 100_000, "a\n\x1b[31m{}%`"),
    list: ([], [0], [-1], [""]),
    type(None): (None,),
}
CANNOT_BE = [
    *(("DP612", "spent_ns", value) for value in ([], [-3, -3, -3], [3])),
    *(("DP310", "passes", value) for value in (0, -1, 1)),
    *(("DP310", "undivided", value) for value in (-1, 4)),
    *(("DP311", name, value) for name in ("layers", "samples", "values") for value in (0, -1)),
    *(("DP806", "probability", value) for value in (0.0, -1.0, 1e300, math.nan, math.inf)),
]
TIMES = {"step_ns": [9, 9], "again_ns": [3, 3], "graph_ns": [2, 2], "forward_ns": [4, 4]}


VALUES = [
    (code, field.name, value)
    for code, (_, sound) in SOUND.items()
    for field in dataclasses.fields(sound)
    for value in OTHERS[type(getattr(sound, field.name))]
]


@pytest.fixture
def asked(ask, make_measured, make_facts):
    """What a rule finds in the facts of two ranks, with other values in some fields."""

    def found(code, **changed):
        name, sound = SOUND[code]
        sound = dataclasses.replace(sound, **changed)
        other = dataclasses.replace(sound, value=0.75) if code == "DP705" else sound
        loader = LoaderFacts("train.py:3", batches_drawn=9, random_samples=False, iterable=False)
        ranks = [
            make_facts(
                rank=rank,
                ddp=[DdpFacts("Net")],
                loaders=[loader],
                planned_epochs=9,
                **{name: record if code == "DP311" else [record]},
            )
            for rank, record in enumerate((sound, other))
        ]
        return ask(code, make_measured(device="cpu"), ranks)

    return found


@pytest.mark.parametrize("code", SOUND)
def test_sound_facts_are_found(asked, code):
    assert [advice.rule for advice in asked(code)] == [code]


@pytest.mark.parametrize(("code", "name", "value"), VALUES)
def test_any_value_ends_in_advice_or_none(asked, code, name, value):
    try:
        advice = asked(code, **{name: value})
    except Missing:
        return
    assert [each.rule for each in advice] == [code] * len(advice)


@pytest.mark.parametrize(("code", "name", "value"), CANNOT_BE)
def test_figures_that_cannot_be_are_left_out(asked, code, name, value):
    assert asked(code, **{name: value}) == []


@pytest.mark.parametrize("name", ["step_ns", "again_ns", "graph_ns", "forward_ns"])
@pytest.mark.parametrize("value", [[], [0, 0], [-5, -5], [9]])
def test_times_of_repeated_calls(name, value):
    sound = RepeatedForwardFacts("encoder", **TIMES)
    assert (sound.step_share, sound.forward_part, sound.backward_part) == (1 / 3, 3 / 5, 1 / 2)
    edited = RepeatedForwardFacts("encoder", **{**TIMES, name: value})
    assert all(0.0 <= share <= 1.0 for share in (edited.step_share, edited.forward_part, edited.backward_part))
    assert value or edited.step_share in (0.0, sound.step_share)


@pytest.mark.parametrize(
    ("name", "sound", "uneven"),
    [
        (
            "repeated_forward",
            RepeatedForwardFacts("encoder", False, 3, 1, ["train.py:8"], **TIMES),
            {"again_ns": [3]},
        ),
        (
            "repeated_forward",
            RepeatedForwardFacts("encoder", False, 3, 1, ["train.py:8"], **TIMES),
            {"step_ns": [0, 0]},
        ),
        ("frozen_features", FrozenFeatureFacts("encoder", "train.py:8", 3, [9, 9], [3, 3], 1), {"spent_ns": [3]}),
    ],
)
def test_a_rank_whose_lists_differ_in_length_has_no_share_in_a_saving(
    ask, make_measured, make_facts, name, sound, uneven
):
    loader = LoaderFacts("train.py:3", batches_drawn=9, random_samples=False, iterable=False)
    window = Window("untraced", 5, durations_ns=[9, 9], backward_ns=[4, 4])
    ranks = [
        make_facts(rank=rank, loaders=[loader], planned_epochs=9, windows=[window], **{name: [facts]})
        for rank, facts in enumerate((sound, dataclasses.replace(sound, **uneven)))
    ]
    (advice,) = ask("DP612", make_measured(device="cpu"), ranks)
    assert advice.fingerprint.startswith("DP612:encoder")
    assert advice.saves.low_share == 0
