import pytest

from dptune.measured import CopyFigures, MemoryFigures
from dptune.measured.device import CopySite


def run(hand_made, share, **more):
    ns = int(share * hand_made.STEP_NS)
    account = hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, sync_idle_ns=ns)
    return hand_made.measured_run(account=account, **more)


def back(hand_made, **more):
    """Six copies to the host in three steps, of which four hold the script."""
    return hand_made.figures(
        CopyFigures,
        direction="d2h",
        calls=6,
        calls_per_step=2.0,
        total_ns=9,
        exposed_ns=9,
        **{"blocking_calls": 4, **more},
    )


def test_a_gpu_that_runs_dry(ask, hand_made, make_facts):
    site = hand_made.figures(
        CopySite,
        rank=0,
        window="rich",
        operator="aten::item",
        function="train.py(40): log",
        calls_per_step=1.0,
        every_step=True,
        total_ns=9,
        blocking_calls=3,
    )
    (advice,) = ask("DP606", run(hand_made, 0.24, copies=[back(hand_made, sites=[site])]), [make_facts()])
    assert advice.title == (
        "The GPU idles 24 % of a step because the script waits for it: read results back less often"
    )
    assert (advice.severity, advice.saves.basis, advice.saves.low_share) == ("error", "bound", 0.0)
    assert advice.saves.high_share == pytest.approx(0.24)
    told = {one.label: one.value for one in advice.evidence}
    assert told["copies to the host that hold the script"] == 1.3  # 4 of 6, two a step
    assert told["most of them are asked for in"] == "train.py(40): log"


def test_where_it_is_asked_for_is_left_out_where_it_is_not_known(ask, hand_made, make_facts):
    (advice,) = ask("DP606", run(hand_made, 0.24, copies=[back(hand_made)]), [make_facts()])
    assert [one.label for one in advice.evidence] == [
        "idle while the script waits for the GPU",
        "copies to the host that hold the script",
    ]
    (advice,) = ask("DP606", run(hand_made, 0.24, copies=[back(hand_made, blocking_calls=0)]), [make_facts()])
    assert len(advice.evidence) == 1


@pytest.mark.parametrize(("share", "speaks"), [(0.06, True), (0.04, False), (0.0, False)])
def test_it_takes_a_share_that_is_worth_it(ask, hand_made, make_facts, share, speaks):
    assert bool(ask("DP606", run(hand_made, share), [make_facts()])) == speaks


def test_others_speak_of_their_own(ask, hand_made, make_facts):
    blocking = make_facts(environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert ask("DP606", run(hand_made, 0.24), [blocking]) == []
    for malloc, speaks in ((0.13, False), (0.11, True)):
        memory = [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", malloc_share=malloc)]
        assert bool(ask("DP606", run(hand_made, 0.24, memory=memory), [make_facts()])) == speaks


@pytest.mark.parametrize(("step_ms", "shares"), [(8.0, [0.05]), (7.9, [])])
def test_the_step_without_the_profiler_can_hold_no_more(ask, hand_made, make_facts, step_ms, shares):
    """Of a traced step of 10 ms the GPU computes 7.6: of a step of 8 ms 0.4 can be idle."""
    whole = 2 * hand_made.STEPS * hand_made.STEP_NS
    idle = int(0.24 * whole)
    account = hand_made.Account(window_ns=whole, compute_ns=whole - idle, sync_idle_ns=idle)
    times = dict.fromkeys(("median_ns", "unprofiled_median_ns"), int(step_ms * 1e6))
    made = hand_made.measured_run(account=account)
    step = made.step.model_copy(update=times)
    advice = ask("DP606", made.model_copy(update={"step": step}), [make_facts()])
    assert [one.saves.high_share for one in advice] == [pytest.approx(share) for share in shares]


def test_what_the_script_waits_for_need_not_be_stretched_by_the_profiler(ask, hand_made, make_facts):
    """2 of traced 10 ms are idle for it, 5 for the host, 3 computed: of a step of 5 ms the 2 can be 40 %."""
    whole = 2 * hand_made.STEPS * hand_made.STEP_NS
    parts = {"compute_ns": 3 * whole // 10, "sync_idle_ns": whole // 5, "host_idle_ns": whole // 2}
    made = hand_made.measured_run(account=hand_made.Account(window_ns=whole, **parts))
    step = made.step.model_copy(update=dict.fromkeys(("median_ns", "unprofiled_median_ns"), 5_000_000))
    (advice,) = ask("DP606", made.model_copy(update={"step": step}), [make_facts()])
    assert advice.saves.high_share == pytest.approx(0.4)
