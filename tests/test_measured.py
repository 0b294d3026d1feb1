"""The words that figures are read and written in."""

import json

import pytest
from pydantic import ValidationError

from dptune.measured import CLASSES, Account, InferredFacts, InputFigures, Measured, Missing, digits, in_ms
from dptune.present.amounts import ns_as_ms
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.testing import measured_run

UNMETERED = {"preparing": "not metered"}


def test_a_missing_figure_raises_its_reason_and_is_null_in_json():
    figures = InputFigures(wait_share=0.25, computed_share=0.5, missing={"wait_ns": "no step has a time", **UNMETERED})
    assert figures.wait_share == 0.25
    with pytest.raises(Missing, match="no step has a time"):
        print(figures.wait_ns)
    assert json.loads(figures.model_dump_json())["wait_ns"] is None
    assert InputFigures.model_validate_json(figures.model_dump_json()) == figures


def test_a_hole_needs_a_reason():
    with pytest.raises(
        ValueError, match=r"missing figures without a reason: \['computed_share', 'preparing', 'wait_ns'\]"
    ):
        InputFigures(wait_share=0.25)
    with pytest.raises(ValueError, match=r"reasons for figures there: \['wait_share'\]"):
        InputFigures(wait_share=1, wait_ns=1, computed_share=1, missing={"wait_share": "?", **UNMETERED})


def test_an_older_report_that_knows_fewer_figures_is_read():
    old = InputFigures.model_validate_json('{"wait_share": 0.25, "wait_ns": 7, "basis": "traced", "since removed": 1}')
    assert old.wait_ns == 7
    with pytest.raises(Missing, match="another version"):
        print(old.computed_share)


def test_an_account_that_does_not_balance_cannot_be_made():
    parts = dict.fromkeys(Account.model_fields, 0)
    Account(**{**parts, "window_ns": 3, "compute_ns": 1, "unexplained_idle_ns": 2})
    with pytest.raises(ValueError, match="does not balance"):
        Account(**{**parts, "window_ns": 3, "compute_ns": 1})
    with pytest.raises(ValueError, match="hidden"):
        Account(**{**parts, "communication_ns": 1})


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (0.04217, "0.0422"), (4.2, "4.2"), (99.6, "99.6"), (99.97, "100"), (420.1, "420"), (1010.4, "1,010")],
)
def test_numbers_of_sentences_are_written_out(value, written):
    assert digits(value) == written


@pytest.mark.parametrize("duration_ns", [0, 420_000, 4_200_000, 42_000_000, 420_100_000, 4_201_000_000])
def test_a_duration_has_the_same_digits_in_a_sentence_as_in_a_table(duration_ns):
    assert in_ms(duration_ns) == ns_as_ms(duration_ns)


def test_a_short_duration_keeps_three_digits_in_a_sentence():
    assert in_ms(49_300) == "0.0493"


TRACED = Account(
    window_ns=300,
    compute_ns=120,
    exposed_transfer_ns=20,
    exposed_waiting_ns=40,
    copy_ns=10,
    input_idle_ns=30,
    launch_idle_ns=80,
    communication_ns=75,
    hidden_communication_ns=15,
)


def test_without_the_profiler_idle_and_waiting_give_way():
    """Of 200 ns the device works for 150; the 150 of idle and waiting shrink to 50, each to a third."""
    found = TRACED.within(200)
    assert (found.compute_ns, found.exposed_transfer_ns, found.copy_ns) == (120, 20, 10)
    assert (found.exposed_waiting_ns, found.input_idle_ns, found.launch_idle_ns) == (13, 10, 27)
    assert (found.window_ns, found.hidden_communication_ns, found.communication_ns) == (200, 15, 48)


def test_a_device_that_works_longer_than_the_window_shrinks_alike():
    found = TRACED.within(75)
    assert (found.compute_ns, found.exposed_transfer_ns, found.copy_ns, found.idle_ns) == (60, 10, 5, 0)
    assert found.hidden_communication_ns == 8


def test_a_window_that_is_no_shorter_changes_nothing():
    assert TRACED.within(300) is TRACED
    assert TRACED.within(301) is TRACED


@pytest.mark.parametrize("window_ns", range(1, 300, 7))
def test_it_balances_whatever_the_window(window_ns):
    found = TRACED.within(window_ns)  # the model itself refuses what does not balance
    assert sum(getattr(found, name) for name in CLASSES) == found.window_ns == window_ns


def test_figures_are_given_with_the_reasons_why_some_are_missing():
    given = {"wait_share": (None, "no loader"), "wait_ns": (5, ""), "computed_share": (None, "no loader")}
    figures = InputFigures.of(given | {"preparing": (None, "not metered")}, basis="traced")
    assert figures.wait_ns == 5
    with pytest.raises(Missing, match="no loader"):
        print(figures.wait_share)


def test_accounts_add_up_at_once_as_one_by_one():
    parts = dict.fromkeys(Account.model_fields, 0)
    accounts = [Account(**{**parts, "window_ns": 3 * times, "compute_ns": 3 * times}) for times in (1, 2, 4)]
    assert Account.together(accounts) == accounts[0] + accounts[1] + accounts[2]
    assert Account.together([]).window_ns == 0


def test_inferred_facts_come_back_and_no_validator_of_all_that_facts_hold_is_built():
    ddp = DdpFacts("Net", gradient_bytes=64, bucket_sizes=[16, 48])
    inferred = InferredFacts(facts=Facts(rank=1, world_size=2, ddp=[ddp]), confidence={"ddp": "high"})
    back = InferredFacts.model_validate_json(inferred.model_dump_json())
    assert back.facts == Facts(rank=1, ddp=[ddp])  # only those with a confidence are kept
    with pytest.raises(ValidationError, match=r"`ddp\[0\].gradient_bytes` must be a whole number"):
        InferredFacts(facts={"rank": 0, "ddp": [{"module": "Net", "gradient_bytes": "64"}]}, confidence={})
    assert "DdpFacts" not in str(Measured.__pydantic_core_schema__)


def test_shares_of_no_time():
    nothing = Account(window_ns=0)
    with pytest.raises(Missing, match="the window holds no time"):
        nothing.share("compute_ns")
    with pytest.raises(Missing, match="no communication in the window"):
        nothing.overlap_share()


def test_steps_that_are_not_there():
    run = measured_run(steps=0)
    device = run.ranks[0].devices[0]
    for ask in (lambda: run.traced_step_ns, lambda: run.device_step_account(7, "cuda:0"), lambda: device.total):
        with pytest.raises(Missing, match="no steps were found in the trace"):
            ask()
