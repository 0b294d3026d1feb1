"""What the section on ranks says of the one that the others wait for."""

from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import ArrivalFigures, StepLag, StragglerFigures
from dptune.present.sections.ranks import late_first, lateness, latest, rank_rows, ranks, straggler


def late(report: Report, lags_ns: list[int], lag_ns: int, covers: float = 0.91, steps_share: float = 1.0) -> Report:
    """Rank 1 is late by that in each step, and in the median step."""
    arrival = ArrivalFigures(
        collectives=20,
        last_share=0.75,
        lag_ns=lag_ns,
        steps=[StepLag(number=at, lag_ns=lag) for at, lag in enumerate(lags_ns)],
        cause="host",
        cause_share=covers,
        more_ns={"host_idle_ns": sum(lags_ns)},
    )
    measured = report.measured
    first, second = measured.ranks
    second = second.model_copy(update={"arrival": arrival})
    worst = StragglerFigures(
        rank=1,
        lag_ns=lag_ns,
        steps_share=steps_share,
        waiting_share=0.1,
        missing=dict.fromkeys(("gain_share", "work_ratio"), "not replayed"),
    )
    missing = {name: why for name, why in measured.missing.items() if name != "straggler"}
    told = measured.model_copy(update={"ranks": [first, second], "straggler": worst, "missing": missing})
    return report.model_copy(update={"measured": told})


@pytest.mark.parametrize(("covers", "words"), [(0.91, "91.0 %"), (5.992, "All")])
def test_what_a_late_rank_does_meanwhile_covers_all_of_its_lag_at_most(
    report: Report, covers: float, words: str
) -> None:
    measured = late(report, [2_000_000, 2_000_000, 5_000_000], 2_000_000, covers).measured
    for said, whose in ((straggler(measured), "rank 1's"), (lateness(measured.ranks[1]), "its")):
        assert "2.00 ms" in said
        assert f". {words} of {whose} lag: its device idles while the host runs Python" in said


def test_lags_of_microseconds_name_no_straggler(report: Report) -> None:
    measured = late(report, [30_000, 60_000, 90_000], 60_000).measured
    assert measured.traced_step_ns >= 10_000_000  # of which 0.09 ms is less than 1 %
    assert straggler(measured) == "No rank arrives late by 1 % of a step or more."


def test_a_lag_that_is_none_in_the_median_step_is_not_explained(report: Report) -> None:
    measured = late(report, [0, 0, 5_000_000], 0).measured
    assert straggler(measured).endswith("Over all ranks, 10.0 % of the time is spent waiting for the last rank.")
    assert lateness(measured.ranks[1]) == "0 ms in the median step, last to arrive at 75.0 % of its collectives."


def test_a_rank_that_is_last_in_few_steps_is_not_called_late(report: Report) -> None:
    said = straggler(late(report, [2_000_000, 0, 0], 2_000_000, steps_share=0.4).measured)
    assert said.startswith("No rank arrives last in most steps. The others wait most for rank 1, last in 40.0 % of")
    assert said.endswith("of the time is spent waiting for the last rank.")  # and no cause of it
    often = straggler(late(report, [2_000_000, 2_000_000, 0], 2_000_000, steps_share=0.67).measured)
    assert often.startswith("Straggler: rank 1 is 2.00 ms late")


def test_a_rank_that_the_report_does_not_name_is_no_straggler(report: Report) -> None:
    often = late(report, [2_000_000, 2_000_000, 0], 2_000_000, steps_share=0.67)
    assert latest(often).startswith("Latest: rank 1 is ")
    assert latest(often).endswith("The report does not count it as a straggler.")
    unreliable = often.trust.model_copy(update={"level": "unjudgeable"})
    assert not latest(often.model_copy(update={"trust": unreliable})).endswith("straggler.")
    headline = often.headline.model_copy(update={"cause": "It sleeps."})
    assert latest(often.model_copy(update={"headline": headline})).startswith("Straggler: rank 1 is ")


def test_a_single_rank_is_late_for_no_other(report: Report) -> None:
    def section(world_size: int) -> str:
        measured = report.measured.model_copy(update={"world_size": world_size})
        shown = report.model_copy(update={"measured": measured})
        return " ".join("".join(span.text for span in line) for line in ranks(shown, 200))

    assert "late ms" in section(2)
    assert "late ms" not in section(1)


def test_of_many_ranks_the_latest_are_shown_first(report: Report) -> None:
    """Of 20 ranks 16 are shown: rank 18, which alone is late, is the first of them."""
    told = late(report, [2_000_000], 2_000_000)
    usual, slow = told.measured.ranks
    ranks_of_run = [(slow if number == 18 else usual).model_copy(update={"rank": number}) for number in range(20)]
    many = told.model_copy(update={"measured": told.measured.model_copy(update={"ranks": ranks_of_run})})
    rows, order = late_first(many, list(rank_rows(many)))
    assert [row[0] for row in rows] == ["18", *(str(number) for number in range(20) if number != 18)]
    assert order == "The ranks that arrive latest are first. "
    none = many.model_copy(update={"measured": many.measured.model_copy(update={"ranks": [usual, usual]})})
    assert late_first(none, [["a"], ["b"]]) == ([["a"], ["b"]], "")
