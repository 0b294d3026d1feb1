import pytest

from dptune.measured import CopyFigures, MemoryFigures, WaitSite


def run(hand_made, share, **more):
    ns = int(share * hand_made.STEP_NS)
    account = hand_made.Account(window_ns=hand_made.STEP_NS, compute_ns=hand_made.STEP_NS - ns, sync_idle_ns=ns)
    return hand_made.measured_run(spent=[account], **more)


def back(hand_made, **more):
    """Six copies to the host in three steps, of which four hold the script."""
    return hand_made.figures(
        CopyFigures,
        direction="d2h",
        calls=6,
        calls_per_step=2.0,
        total_ns=9,
        exposed_ns=9,
        most_share=0.1,
        **{"most_held_share": 0.1, "blocking_calls": 4, **more},
    )


def test_a_gpu_that_runs_dry(ask, hand_made, make_facts):
    sites = [
        hand_made.figures(
            WaitSite,
            rank=0,
            window="detailed",
            call="cudaStreamSynchronize",
            operator="aten::item",
            function=function,
            annotation="## log ##",
            calls_per_step=1.0,
            held_ns=9,
            share=share,
        )
        for function, share in (("train.py(40): log", 0.2), (None, 0.015), ("train.py(9): rare", 0.009))
    ]
    measured = run(hand_made, 0.24, copies=[back(hand_made)], wait_sites=sites)
    (advice,) = ask("DP606", measured, [make_facts()])
    assert advice.title == (
        "The GPU idles 24 % of a step because the script waits for it (longest: `aten::item` in `train.py(40): log`): "
        "read results back less often"
    )
    assert (advice.impact, advice.saves.basis, advice.saves.low_share) == ("high", "bound", 0.0)
    assert advice.saves.high_share == pytest.approx(0.24)
    told = {one.label: one.value for one in advice.evidence}
    assert told["copies to the host that block the script"] == 1.3  # 4 of 6, two a step
    assert told["blocked in cudaStreamSynchronize, `aten::item` in `train.py(40): log`"] == 0.2
    assert told["blocked in cudaStreamSynchronize, `aten::item` in `## log ##`"] == 0.015
    assert not any("rare" in label for label in told)


def test_where_it_is_asked_for_is_left_out_where_it_is_not_known(ask, hand_made, make_facts):
    (advice,) = ask("DP606", run(hand_made, 0.24, copies=[back(hand_made)]), [make_facts()])
    assert [one.label for one in advice.evidence] == [
        "idle while the script waits for the GPU",
        "copies to the host that block the script",
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
    whole = hand_made.STEP_NS
    idle = int(0.24 * whole)
    account = hand_made.Account(window_ns=whole, compute_ns=whole - idle, sync_idle_ns=idle)
    times = dict.fromkeys(("median_ns", "untraced_median_ns"), int(step_ms * 1e6))
    made = hand_made.measured_run(spent=[account])
    step = made.step.model_copy(update=times)
    advice = ask("DP606", made.model_copy(update={"step": step}), [make_facts()])
    assert [one.saves.high_share for one in advice] == [pytest.approx(share) for share in shares]


def test_what_the_script_waits_for_need_not_be_stretched_by_the_profiler(ask, hand_made, make_facts):
    """2 of traced 10 ms are idle for it, 5 for the host, 3 computed: of a step of 5 ms the 2 can be 40 %."""
    whole = hand_made.STEP_NS
    parts = {"compute_ns": 3 * whole // 10, "sync_idle_ns": whole // 5, "host_idle_ns": whole // 2}
    made = hand_made.measured_run(spent=[hand_made.Account(window_ns=whole, **parts)])
    step = made.step.model_copy(update=dict.fromkeys(("median_ns", "untraced_median_ns"), 5_000_000))
    (advice,) = ask("DP606", made.model_copy(update={"step": step}), [make_facts()])
    assert advice.saves.high_share == pytest.approx(0.4)


def test_the_gpu_that_pays_holds_up_the_others(ask, hand_made, make_facts):
    """Of two GPUs one idles 4 of 10 ms, and the other waits for it: 2 are the mean, and 4 are what can be saved."""
    busy = hand_made.Account(window_ns=10, compute_ns=6, exposed_waiting_ns=4, communication_ns=4)
    idle = hand_made.Account(window_ns=10, compute_ns=6, sync_idle_ns=4)
    spent = [_times(one, hand_made.STEP_NS // 10) for one in (idle, busy)]
    (advice,) = ask("DP606", hand_made.measured_run(spent=spent), [make_facts()])
    assert advice.saves.high_share == pytest.approx(0.4)
    assert advice.title.startswith("The GPU idles 20 %")
    many = [spent[0], *[spent[1]] * 15]
    assert ask("DP606", hand_made.measured_run(spent=many, world=16), [make_facts()]) == []  # of it another rule speaks


def test_a_gpu_that_idles_beside_one_that_computes_holds_up_nothing(ask, hand_made, make_facts):
    """One of two idles for 4 of 10 ms, but the other computes for 9.8 of them, and is waited for in any case."""
    idle = hand_made.Account(window_ns=100, compute_ns=60, sync_idle_ns=40)
    busy = hand_made.Account(window_ns=100, compute_ns=98, host_idle_ns=2)
    spent = [_times(one, hand_made.STEP_NS // 100) for one in (idle, busy)]
    assert ask("DP606", hand_made.measured_run(spent=spent), [make_facts()]) == []


def blocked(hand_made, held, idle):
    """A step of which copies to the host block the script for a share, and a share is idle for launches."""
    whole = hand_made.STEP_NS
    idle_ns = idle * whole // 100
    made = hand_made.measured_run(
        spent=[hand_made.Account(window_ns=whole, compute_ns=whole - idle_ns, launch_idle_ns=idle_ns)]
    )
    held_ns = held * made.account.window_ns // 100
    return made.model_copy(update={"copies": [back(hand_made, held_ns=held_ns, most_held_share=held / 100)]})


@pytest.mark.parametrize(
    ("held", "idle", "saved"),
    [
        (16, 30, 0.16),  # without the copies the host is done 16 % earlier
        (80, 12, 0.12),  # one value a step: the step cannot be shorter than what the GPU computes
        (3, 30, None),  # launches are slow, and the copies have nothing to do with it
        (80, 4, None),
    ],
)
def test_copies_that_block_a_script_which_then_launches_late(ask, hand_made, make_facts, held, idle, saved):
    said = ask("DP606", blocked(hand_made, held, idle), [make_facts()])
    assert [one.saves.high_share for one in said] == ([] if saved is None else [pytest.approx(saved, abs=1e-6)])
    if said:
        blocked_part = f"block the script for {held} % of a step, and the GPU idles {idle} % because of the host"
        assert blocked_part in said[0].title
        values = {one.label: one.value for one in said[0].evidence}
        assert values["blocked in copies to the host"] == pytest.approx(held / 100, abs=1e-6)


def test_copies_to_the_device_are_of_another_rule(ask, hand_made, make_facts):
    made = blocked(hand_made, 16, 30)
    copies = [one.model_copy(update={"direction": "h2d"}) for one in made.copies]
    assert ask("DP606", made.model_copy(update={"copies": copies}), [make_facts()]) == []


def _times(account, times):
    """As many times as long."""
    return type(account)(**{name: times * getattr(account, name) for name in type(account).model_fields})
