"""Collectives of several groups of ranks: the link is that of one kind of group, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.assumptions import assumed
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.links import linked
from dptune.whatif.gpu.program import Program

from ..measure.handmade import Event, all_reduce, kernel, launch, load_events, step  # noqa: TID252
from .test_gpu_contention import measured_with, transfers_alone_and_beside
from .test_recorded_waits import program


def of_two_groups() -> Program:
    """Each step has a transfer of 100 among 8 ranks, one after it of 120 among 2 of them, beside a kernel."""
    made = transfers_alone_and_beside()
    messages = [replace(message, ranks=(8, 2)[number % 2]) for number, message in enumerate(made.messages)]
    return linked(replace(made, messages=messages, world_size=8), measured_with())


@pytest.mark.parametrize(
    ("change", "step_ns"),
    [
        ({"link.gb_per_s": 1.0}, 100 / 1.0 + 50 + 120),  # 50 of the 100 are latency, as assumed
        ({"link.alpha_us": 0.0}, 50 + 120),
        ({"link.alpha_us": 0.0, "link.gb_per_s": 1e9}, 120),
    ],
)
def test_a_change_of_the_link_is_of_collectives_of_as_many_ranks(change: dict[str, Value], step_ns: float) -> None:
    made = of_two_groups()
    assert (made.link_ranks, made.link) == (8, Link(50.0, 2.0))
    assert changed(made, change).step_ns() == pytest.approx(step_ns)
    words = "the link is that of collectives among 8 ranks; collectives of other groups are unchanged"
    assert words in assumed(made, change, traced=True)
    assert words not in assumed(made, {"host.times": 0.5}, traced=True)
    assert words not in assumed(made.among(0), change, traced=True)


def of_two_meshes() -> Program:
    """The same among 4 ranks: a transfer of ranks 0 and 2, and 1 and 3, then one of ranks 0 and 1, and 2 and 3."""
    made = transfers_alone_and_beside()
    messages = [
        replace(message, ranks=2, offsets=((0, 2), (0, 1))[number % 2]) for number, message in enumerate(made.messages)
    ]
    return replace(made, messages=messages, world_size=4, ranks=[place % 4 for place, _ in enumerate(made.ranks)])


@pytest.mark.parametrize(("largest", "apart"), [(0, 2), (1, 1)])
def test_groups_of_as_many_ranks_that_lie_otherwise_have_other_links(largest: int, apart: int) -> None:
    """The link is that of the groups that all-reduce most bytes."""
    made = of_two_meshes()
    sizes = [1000 if number % 2 == largest else 10 for number, _ in enumerate(made.messages)]
    messages = [replace(each, message_bytes=size) for each, size in zip(made.messages, sizes, strict=True)]
    made = linked(replace(made, messages=messages), measured_with())
    assert (made.link_ranks, made.link_offsets) == (2, (0, apart))
    none: dict[str, Value] = {"link.alpha_us": 0.0, "link.gb_per_s": 1e9}
    assert changed(made, none).step_ns() == pytest.approx((120, 220)[largest])
    lying = "whose numbers differ by 2" if apart == 2 else "with consecutive numbers"
    words = f"the link is that of collectives among 2 ranks {lying}; collectives of other groups are unchanged"
    assert words in assumed(made, none, traced=True)
    for change in ({"world_size": 8}, {"nodes": 2}):
        with pytest.raises(Missing, match="it is unknown whether more ranks or nodes change groups of 2 ranks"):
            changed(made, change)


def test_what_one_rank_sends_to_another_uses_the_link_of_all() -> None:
    made = of_two_groups()
    sent = replace(made.messages[1], kind="p2p")
    assert not made.uses_link(made.messages[1])
    assert made.uses_link(sent)


def steps_with_a_collective(group: str) -> list[Event]:
    """Three steps of a rank, each with a kernel and an all-reduce among the two ranks of this process group."""
    events: list[Event] = []
    for number in range(3):
        at = 100.0 * number
        events += [
            step(number, at, at + 100),
            launch(2 * number, at + 1, at + 2),
            launch(2 * number + 1, at + 3, at + 4),
        ]
        events += [
            kernel("a", at + 10, at + 20, 2 * number),
            all_reduce(at + 20, at + 50, 2 * number + 1, 1000, group, 2),
        ]
    return events


def test_a_collective_is_of_the_ranks_that_share_it(tmp_path: Path) -> None:
    made = program(load_events(tmp_path, *[steps_with_a_collective("0")] * 2))
    assert {(message.ranks, message.offsets) for message in made.messages} == {(2, (0, 1))}


def test_a_rank_without_a_collective_of_the_first_rank_is_named(tmp_path: Path) -> None:
    """Such a rank's clock has no other cause of being unknown, so that is the cause to name."""
    run = load_events(tmp_path, *map(steps_with_a_collective, "01"))
    with pytest.raises(Missing, match="no collective of rank 1 matches one of the first rank"):
        program(run)
