"""Pages of one table each, of made-up figures: what they state where there is little to show, or too much."""

from dptune.history import Entry, History
from dptune.measured.inspector import InspectedCalls, InspectorFigures
from dptune.present.ink import paint
from dptune.present.sections import history, inspector, tuning
from dptune.tune.result import Plan, Tuning


def words(lines):
    return " ".join(paint(lines, colour=False).split())


def test_a_history_of_traced_times_and_older_recordings():
    entry = Entry(folder="runs/1", recorded="2026-01-02T03:04:05", step_ns=2_000_000, traced=True, label="Idle")
    page = words(history.page(History(dptune="0.1", entries=[entry], earlier=3), 100))
    assert "3 older recordings not listed: --last 0" in page
    assert "~ traced: includes profiler overhead" in page


def test_a_history_of_which_nothing_could_be_read():
    broken = Entry(folder="runs/1", recorded="", error="it holds no trace")
    assert words(history.page(History(dptune="0.1", entries=[broken]), 100)) == "1: it holds no trace"


def calls(number):
    return InspectedCalls(
        communicator=f"{number:x}",
        name="",
        kind="AllReduce",
        message_bytes=2**20,
        ranks=4,
        of_ranks=4,
        nodes=2,
        calls=5,
        exec_us=150.0,
        transfer_us=100.0,
        busbw_gb_per_s=18.0,
    )


def test_logs_of_many_communicators_in_which_no_rank_is_last():
    figures = InspectorFigures(
        processes=4, calls=20, unread=2, collectives=[calls(at) for at in range(99)], findings=["one log was cut"]
    )
    page = words(inspector.inspector(figures, 100))
    assert "No rank arrives last in half or more of the collectives." in page
    assert "2 objects could not be read." in page
    assert "one log was cut." in page
    assert "more rows: see --format json" in page


def test_a_plan_of_nothing():
    assert "No candidates: nothing would be tried." in words(tuning.plan_page(Plan(trial_s=3.0, candidates=[]), 80))


def test_what_a_search_leaves_to_the_user():
    result = Tuning(
        dptune="0.1",
        machine="host",
        run="run",
        command=["train.py"],
        directory="/work",
        numerics="same",
        time_limit_s=60.0,
        seconds=50.0,
        ended="out of time",
        outcome="nothing kept",
        reason="no change was faster",
        kept=[],
        settings={},
        level=0.05,
        level_spent=0.0,
        final=None,
        tried=[],
        not_tried=[],
        patched=[],
        start="OMP_NUM_THREADS=2 python train.py",
        by_hand=["torch.set_num_threads(2)"],
        resume="dptune tune --resume tuned",
    )
    page = words(tuning.page(result, 100))
    assert "OMP_NUM_THREADS=2 python train.py" in page
    assert "Add to the script: torch.set_num_threads(2)" in page
    assert "The search continues with a longer --time-limit: Continue dptune tune --resume tuned" in page
    assert "No change was raced." in page
