import pytest


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


def test_a_switch_that_is_on_whatever_it_is_set_to_can_only_be_taken_out(ask, make_measured, make_facts):
    (advice,) = ask("DP605", make_measured(), [make_facts(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})])
    assert advice.title.endswith("PYTORCH_NO_CUDA_MEMORY_CACHING=0")
    assert advice.changes == []


@pytest.mark.parametrize(
    "environment", [{}, {"CUDA_LAUNCH_BLOCKING": "0"}, {"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO"}]
)
def test_quiet(ask, make_measured, make_facts, environment):
    assert ask("DP605", make_measured(), [make_facts(environment=environment, settings={"anomaly_mode": False})]) == []
