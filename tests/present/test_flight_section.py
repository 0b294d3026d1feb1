"""The text of flight recorder dumps: figures are made up."""

from dptune.measured.flight import Culprit, FlightCalls, FlightFigures, Mismatch, StuckCollective
from dptune.present.ink import paint
from dptune.present.sections.flight import flight

STUCK = StuckCollective(
    group="3",
    description="dp",
    sequence=7,
    kind="all_reduce",
    reached=[0],
    missing=[],
    without_dump=[2, 3],
    not_started=[],
    done=[],
)


def shown(**found):
    figures = FlightFigures(**{"ranks": [0, 1], "entries": 12, **found})
    return " ".join(paint(flight(figures, 90), colour=False).split())


def calls(count):
    return [
        FlightCalls(kind="all_reduce", group=str(at), description="", message_bytes=None, ranks=2, calls=3)
        for at in range(count)
    ]


def test_a_rank_without_a_dump_that_others_wait_for():
    dead = Culprit(rank=2, dumped=False, holds_up=[0, 1])
    page = shown(culprits=[dead], stuck=[STUCK], without_dump=[2, 3])
    assert "Rank 2 has no dump, and ranks 0-1 wait for it: it may have died. See its log." in page
    assert "Unfinished: all_reduce #7 in group 3 (dp). Called by rank 0; no dump of ranks 2-3." in page
    assert "No dump of ranks 2-3." in page


def test_every_rank_with_a_dump_has_called_it():
    assert "Every rank with a dump has called the unfinished collectives." in shown(stuck=[STUCK])
    late = STUCK.model_copy(update={"missing": [1], "reached": []})
    page = shown(stuck=[late])
    assert "Every rank" not in page
    assert "Called by no rank; not called by rank 1" in page


def test_nothing_waits():
    assert "No rank waits: every recorded collective has finished." in shown()


def test_ranks_that_call_different_collectives():
    other = Mismatch(group="0", description="", sequence=4, what="sizes", values={"in 2x3": [0], "in 2x4": [1]})
    page = shown(mismatches=[other])
    assert "Ranks call different collectives: fix the first difference below." in page
    assert "Different sizes at call #4 in group 0: in 2x3 on rank 0; in 2x4 on rank 1." in page


def test_of_many_the_first_are_shown():
    page = shown(
        stuck=[STUCK] * 99,
        culprits=[Culprit(rank=at, dumped=True, holds_up=[0]) for at in range(1, 100)],
        calls=calls(99),
        traced=1200,
        findings=["the dumps hold no calls: was TORCH_FR_BUFFER_SIZE set?"],
    )
    assert page.count("Unfinished:") == page.count("hangs outside of collectives") < 99
    left = 99 - page.count("Unfinished:")
    assert f"and {left} more: see --format json" in page
    assert f"and {left} more ranks: see --format json" in page
    assert "more rows: see --format json" in page
    assert "1,200 calls of the dumps were found in the traces" in page
    assert "The dumps hold no calls: was TORCH_FR_BUFFER_SIZE set?" in page
