"""What hooks of fully_shard take for each unit and for each of its tensors: traces by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dptune.whatif.gpu.assumed import Assumed
from dptune.whatif.gpu.unit_hooks import UNKNOWN, unit_share
from dptune.whatif.gpu.unit_reductions import UnitReduction

from ..measure.handmade import Event, annotation, load_events, operator  # noqa: TID252 - tests are no installed package

GATHERED, COPIED, REDUCED = "all_gather", "all_gather_copy_out", "post_backward_reduce"
UNIT_US, TENSOR_US = 300.0, 20.0
BLOCKS = {"layers.0": 12, "layers.1": 12}
WITH_ROOT = {"": 4, **BLOCKS}


def named(kind: str, unit: str) -> str:
    return f"FSDP::{kind} ({unit})" if unit else f"FSDP::{kind}"


def hooks(tensors: Mapping[str, int], operators: str = "", adding_us: float = 0.0) -> list[Event]:
    """A gather inside the hook of a module, a copy out and a reduction of each unit, in four steps.

    `operators`: for each "tensor" one, a "few", or none. `adding_us`: of one for each tensor in reductions.
    """
    events, at = list[Event](), 0.0
    for _ in range(4):
        for unit, count in tensors.items():
            took = UNIT_US + TENSOR_US * count
            for kind in (GATHERED, COPIED, REDUCED):
                events.append(annotation(named(kind, unit), at, at + took))
                several = {"tensor": count, "few": 2, "": 0}[operators]
                events += [operator("aten::as_strided", at + place, at + place + 0.5) for place in range(several)]
                added = range(count if adding_us and kind == REDUCED else 0)
                events += [
                    operator("aten::add_", at + place * adding_us, at + (place + 1) * adding_us) for place in added
                ]
                if kind == GATHERED:
                    events.append(annotation(named("pre_forward", unit), at - 1.0, at + took + 1.0))
                at += took + 5.0
    return events


def shared(folder: Path, tensors: Mapping[str, int], operators: str = "") -> Assumed:
    run = load_events(folder, hooks(tensors, operators))
    units = [UnitReduction(0, 0, unit, (), 0, (0,), (0,) * count) for unit, count in tensors.items()]
    return unit_share([rank.light.columns for rank in run.ranks], units)


@pytest.mark.parametrize("operators", ["tensor", "few", ""])
def test_units_of_different_numbers_of_tensors_show_what_each_takes(tmp_path: Path, operators: str) -> None:
    found = shared(tmp_path, WITH_ROOT, operators)
    total = sum(UNIT_US + TENSOR_US * count for count in WITH_ROOT.values())
    assert found.middle == pytest.approx(len(WITH_ROOT) * UNIT_US / total, rel=0.01)
    assert found.least < found.middle < found.most


@pytest.mark.parametrize("operators", ["tensor", ""])
def test_of_units_that_are_alike_each_tensor_takes_a_tenth_of_what_a_unit_does(tmp_path: Path, operators: str) -> None:
    found = shared(tmp_path, BLOCKS, operators)
    assert found == pytest.approx(Assumed(1 / (1 + 12 * 0.2), 1 / (1 + 12 * 0.1), 1 / (1 + 12 * 0.04)))
    assert shared(tmp_path, dict.fromkeys(BLOCKS, 2), operators).middle > found.middle


def test_nothing_grows_with_tensors_where_no_operator_does(tmp_path: Path) -> None:
    found = shared(tmp_path, BLOCKS, "few")
    assert (found.middle, found.most) == pytest.approx((1.0, 1.0))
    assert found.least == shared(tmp_path, BLOCKS, "tensor").middle


def test_operators_for_each_tensor_are_none_of_what_a_unit_takes(tmp_path: Path) -> None:
    """Shards that are added in reductions take 360 of their 540 us; nothing else grows with tensors."""
    run = load_events(tmp_path, hooks(BLOCKS, "few", 30.0))
    units = [UnitReduction(0, 0, unit, (), 0, (0,), (0,) * count) for unit, count in BLOCKS.items()]
    share = unit_share([run.ranks[0].light.columns], units).middle
    each = UNIT_US + TENSOR_US * 12
    assert share == pytest.approx((2 * each + each - 360) / (3 * each), rel=0.01)


def test_what_the_root_does_once_is_of_no_unit(tmp_path: Path) -> None:
    run = load_events(tmp_path, [*hooks(BLOCKS, "few"), annotation("FSDP::root_pre_forward", -2e5, -1e5)])
    units = [UnitReduction(0, 0, unit, (), 0, (0,), (0,) * count) for unit, count in BLOCKS.items()]
    once, all_us = 1e5, sum(event["dur"] for event in hooks(BLOCKS) if "pre_forward" not in event["name"])
    hooks_us = all_us + 4 * len(BLOCKS) * 2.0
    share = unit_share([run.ranks[0].light.columns], units).middle
    assert share == pytest.approx(hooks_us / (hooks_us + once), rel=1e-3)


def test_without_hooks_or_reductions_it_is_not_known(tmp_path: Path) -> None:
    run = load_events(tmp_path, hooks(BLOCKS))
    assert unit_share([run.ranks[0].light.columns], []) == UNKNOWN
    assert unit_share([], []) == UNKNOWN


def test_of_what_is_left_each_unit_takes_less() -> None:
    """Of 100, 60 are per unit. Half the units: 30 of 70 are."""
    left = Assumed(0.0, 0.6, 1.0).without(0.5)
    assert left == pytest.approx(Assumed(0.0, 30 / 70, 1.0))
