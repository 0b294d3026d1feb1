import pytest

from dptune.measured import MemoryFigures


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
