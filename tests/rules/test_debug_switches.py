import pytest

from dptune.measured import MemoryFigures
from dptune.runfile.script_profiler import ScriptProfilerFacts
from dptune.runfile.window import Window


def test_switches_of_any_rank(ask, make_measured, make_facts):
    facts = [
        make_facts(environment={"TORCH_DISTRIBUTED_DEBUG": "detail", "NCCL_DEBUG": "INFO"}),
        make_facts(rank=1, environment={"CUDA_LAUNCH_BLOCKING": "1"}, settings={"anomaly_mode": True}),
    ]
    (advice,) = ask("DP605", make_measured(), facts)
    assert advice.title == (
        "Debug options are on: TORCH_DISTRIBUTED_DEBUG=detail, CUDA_LAUNCH_BLOCKING=1, anomaly detection"
    )
    assert [(one.knob, one.now, one.then) for one in advice.changes] == [
        ("env.TORCH_DISTRIBUTED_DEBUG", "detail", "OFF"),
        ("env.CUDA_LAUNCH_BLOCKING", "1", "0"),
    ]
    assert (advice.kind, advice.impact) == ("risk", "medium")
    assert advice.remedy == "Turn off anomaly detection."


@pytest.mark.parametrize(("times", "found"), [(0, 0), (9, 0), (10, 1), (20, 1)])
def test_anomaly_detection_as_a_context_of_steps(ask, make_measured, make_facts, times, found):
    """The mode is off again when facts are read; of 20 recorded steps half at least have it."""
    window = {"windows": [Window("untraced", 3, [10_000_000] * 20)], "settings": {"anomaly_mode": False}}
    facts = make_facts(**window, anomaly_where="train.py:14", anomaly_times=times)
    advice = ask("DP605", make_measured(), [facts])
    assert [each.title for each in advice] == ["Debug options are on: anomaly detection"] * found
    assert [each.remedy for each in advice] == ["Turn off anomaly detection (train.py:14)."] * found


def test_a_switch_that_is_on_whatever_it_is_set_to_can_only_be_taken_out(ask, make_measured, make_facts):
    (advice,) = ask("DP605", make_measured(), [make_facts(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})])
    assert advice.title.endswith("PYTORCH_NO_CUDA_MEMORY_CACHING=0")
    assert (advice.changes, advice.remedy) == (
        [],
        "Unset PYTORCH_NO_CUDA_MEMORY_CACHING in the environment of the job.",
    )


@pytest.mark.parametrize(
    "environment", [{}, {"CUDA_LAUNCH_BLOCKING": "0"}, {"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO"}]
)
def test_quiet(ask, make_measured, make_facts, environment):
    assert ask("DP605", make_measured(), [make_facts(environment=environment, settings={"anomaly_mode": False})]) == []


@pytest.mark.parametrize(
    ("idle", "kind", "impact"),
    [(0.4, "time", "high"), (0.06, "time", "medium"), (0.03, "time", "low"), (0.01, "risk", "medium")],
)
def test_what_memory_calls_cost_is_bounded_by_the_idle_time_in_them(ask, hand_made, make_facts, idle, kind, impact):
    ns = int(idle * hand_made.STEP_NS)
    account = hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, malloc_idle_ns=ns)
    calls = hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=0.5, malloc_calls_per_step=12.0)
    measured = hand_made.measured_run(spent=[account], memory=[calls])
    (advice,) = ask("DP605", measured, [make_facts(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})])
    assert (advice.kind, advice.impact) == (kind, impact)
    assert (advice.saves.high_share if advice.saves else None) == (pytest.approx(idle) if kind == "time" else None)
    assert [(each.value, each.unit) for each in advice.evidence[1:]] == [
        (12.0, "per step"),
        (0.5, "of the traced steps"),
        (pytest.approx(idle), "of the traced steps"),
    ]


def profiler(**changed):
    """Cycles of 12 steps that go on, after 25 steps."""
    facts = {"cycle": [10, 1, 1], "repeat": 0, "optimizer_steps": 25, "calls": 24, "spent_ns": 300, "lasted_ns": 1000}
    return ScriptProfilerFacts("train.py:6", **{"running": True} | facts | changed)


def test_a_profiler_of_the_script_that_goes_on(ask, make_measured, make_facts):
    (advice,) = ask("DP605", make_measured(), [make_facts(), make_facts(rank=1, script_profiler=profiler())])
    assert advice.title == (
        "The script's own profiler records 1 of every 12 steps, all through training (train.py:6): leave it out"
    )
    assert advice.remedy == (
        "Leave the profiler (train.py:6) out of training, or let it record one cycle: `schedule(wait=10, warmup=1, "
        "active=1, repeat=1)`. Then record again."
    )
    assert [(each.label, each.value) for each in advice.evidence] == [
        ("started at", "train.py:6"),
        ("optimizer steps while it ran", 25),
        ("in its `step`, which starts, stops and processes cycles", 0.3),
    ]


def test_a_profiler_without_a_schedule_records_every_step(ask, make_measured, make_facts):
    left_on = profiler(cycle=None, optimizer_steps=20, calls=0, lasted_ns=0)
    (advice,) = ask("DP605", make_measured(), [make_facts(script_profiler=left_on)])
    assert "records every step, all through training" in advice.title
    assert len(advice.evidence) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"repeat": 1},
        {"repeat": 3},
        {"repeat": None},  # a schedule of the script's own
        {"running": False},
        {"calls": 11},  # its first cycle has not ended
        {"cycle": None, "optimizer_steps": 19},
    ],
)
def test_quiet_where_the_profiler_ends_or_may_end(ask, make_measured, make_facts, changed):
    assert ask("DP605", make_measured(), [make_facts(script_profiler=profiler(**changed))]) == []
