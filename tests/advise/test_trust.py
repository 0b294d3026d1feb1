import pytest

from dptune.advise import trust
from dptune.advise.trust import judge
from dptune.finding import Finding
from dptune.measured import Account, Loss, SetAsideStep, StepAccount, StepsFigures, StepTime
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.record import Ending, RunRecord, Schedule
from dptune.runfile.window import Window


def codes(trust):
    return [finding.code for finding in trust.findings]


def text_of(trust, code):
    (text,) = [finding.text for finding in trust.findings if finding.code == code]
    return text


def test_a_good_recording_is_sound_and_shows_what_the_profiler_cost(make_measured, make_facts):
    trust = judge(make_measured(), [make_facts()])
    assert trust.level == "sound"
    assert codes(trust) == ["profiler-cost"]
    assert "took 1.20x as long as untraced ones" in text_of(trust, "profiler-cost")
    assert "(12.0 ms, 10.0 ms)" in text_of(trust, "profiler-cost")


@pytest.mark.parametrize(("steps", "code"), [(0, "steps-missing"), (1, "steps-few"), (2, "steps-few")])
def test_too_few_steps(make_measured, steps, code):
    trust = judge(make_measured(steps=steps), [])
    assert trust.level == "unjudgeable"
    assert code in codes(trust)


def test_a_recording_of_times_alone_has_no_traced_step(make_measured):
    measured = make_measured(account=None)
    untraced = [rank.model_copy(update={"source": "", "devices": []}) for rank in measured.ranks]
    trust = judge(measured.model_copy(update={"ranks": untraced}), [])
    assert trust.level == "unjudgeable"
    assert text_of(trust, "steps-few") == "no step was traced; a verdict needs 3"
    assert "device-events-missing" not in codes(trust)


def test_three_steps_are_enough(make_measured):
    assert judge(make_measured(steps=3), []).level == "sound"


def test_too_few_steps_on_one_rank(make_measured):
    measured = make_measured(steps=5)
    short = measured.ranks[1].model_copy(
        update={"devices": [measured.ranks[1].devices[0].model_copy(update={"steps": []})]}
    )
    trust = judge(measured.model_copy(update={"ranks": [measured.ranks[0], short]}), [])
    assert trust.level == "partial"
    assert "on rank 1" in text_of(trust, "steps-few-on-ranks")


def with_devices(measured, **changed):
    ranks = [
        rank.model_copy(update={"devices": [d.model_copy(update=changed) for d in rank.devices]})
        for rank in measured.ranks
    ]
    return measured.model_copy(update={"ranks": ranks})


def test_no_work_of_a_device(make_measured):
    trust = judge(with_devices(make_measured(), device_operations=0), [])
    assert trust.level == "unjudgeable"
    assert "device-events-missing" in codes(trust)


def test_no_kernel_of_a_gpu_that_was_used(make_measured):
    trust = judge(with_devices(make_measured(), kernels=0), [])
    assert trust.level == "unjudgeable"
    assert "gpu-events-missing" in codes(trust)
    assert judge(with_devices(make_measured(device="cpu"), kernels=0), []).level == "sound"


def test_no_account(make_measured):
    trust = judge(make_measured(account=None), [])
    assert trust.level == "unjudgeable"
    assert "account was not measured" in text_of(trust, "account-missing")


def test_no_step_time(make_measured, hand_made):
    trust = judge(make_measured(step=hand_made.figures(StepTime, basis="traced")), [])
    assert trust.level == "unjudgeable"
    assert "time_ns was not measured" in text_of(trust, "step-time-missing")


def test_no_ranks_at_all(make_measured):
    assert judge(make_measured(world=0, account=None), []).level == "unjudgeable"


def test_a_file_that_breaks_off(make_measured):
    measured = make_measured()
    cut = measured.ranks[0].model_copy(update={"partial": "after 1,024 events"})
    trust = judge(measured.model_copy(update={"ranks": [cut, measured.ranks[1]]}), [])
    assert trust.level == "partial"
    assert "rank 0 (0.json) breaks off after 1,024 events" in text_of(trust, "trace-partial")


def test_ranks_that_were_not_read(make_measured):
    measured = make_measured()
    trust = judge(measured.model_copy(update={"world_size": 8}), [])
    assert trust.level == "partial"
    assert "2 of 8 ranks" in text_of(trust, "ranks-missing")


def test_what_the_reader_found_comes_first_and_is_not_said_twice(make_measured):
    found = Finding(code="ranks-missing", level="partial", text="ranks 2 to 7 have no trace")
    trust = judge(make_measured().model_copy(update={"world_size": 8}), [], [found, found])
    assert trust.level == "partial"
    assert codes(trust) == ["ranks-missing", "profiler-cost"]
    assert text_of(trust, "ranks-missing") == "ranks 2 to 7 have no trace"


def test_ranks_left_out_on_request_are_not_called_missing(make_measured):
    found = Finding(code="ranks-sampled", level="partial", text="ranks 2-7 were not recorded, as asked")
    trust = judge(make_measured().model_copy(update={"world_size": 8}), [], [found])
    assert codes(trust) == ["ranks-sampled", "profiler-cost"]


def test_the_reader_can_find_a_run_unjudgeable(make_measured):
    found = Finding(code="several-ranks-in-one-file", level="unjudgeable", text="two ranks wrote to one file")
    assert judge(make_measured(), [], [found]).level == "unjudgeable"


def step(hand_made, **known):
    return hand_made.figures(StepTime, **{"basis": "untraced", "time_ns": 10_000_000, **known})


def test_times_that_are_traced_say_so(make_measured, hand_made):
    trust = judge(make_measured(step=step(hand_made, basis="traced", light_median_ns=10_000_000)), [])
    assert trust.level == "sound"
    assert codes(trust) == ["times-traced"]
    assert "(typically 1.1-1.8x)" in text_of(trust, "times-traced")


@pytest.mark.parametrize(("q3", "noisy"), [(10_900_000, False), (11_100_000, True)])
def test_steps_that_vary(make_measured, hand_made, q3, noisy):
    times = step(hand_made, untraced_median_ns=10_000_000, untraced_q1_ns=10_000_000, untraced_q3_ns=q3)
    trust = judge(make_measured(step=times), [])
    assert codes(trust) == (["steps-noisy"] if noisy else [])
    assert trust.level == "sound"


def test_steps_that_take_turns_are_not_noisy(make_measured, hand_made):
    quartiles = {"untraced_q1_ns": 10_000_000, "untraced_q3_ns": 20_000_000}
    times = step(hand_made, untraced_median_ns=15_000_000, untraced_period=2, **quartiles)
    trust = judge(make_measured(step=times), [])
    assert codes(trust) == ["steps-take-turns"]
    assert text_of(trust, "steps-take-turns").startswith("step times repeat every 2 steps")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "CUDA_LAUNCH_BLOCKING=1"),
        ({"environment": {"TORCH_DISTRIBUTED_DEBUG": "detail"}}, "TORCH_DISTRIBUTED_DEBUG=detail"),
        ({"settings": {"anomaly_mode": True}}, "torch.autograd.detect_anomaly"),
    ],
)
def test_debug_switches_left_on_any_rank(make_measured, make_facts, more, named):
    facts = [make_facts(), make_facts(rank=1, **more), make_facts(rank=2, **more)]
    assert named in text_of(judge(make_measured(), facts), "debug-switch")


def test_debug_switches_that_are_off(make_measured, make_facts):
    facts = make_facts(
        environment={"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}, settings={"anomaly_mode": False}
    )
    assert "debug-switch" not in codes(judge(make_measured(), [facts]))


def on_cores(facts, usable, cores=8, kind="cpu", **more):
    return facts(device=DeviceFacts(kind, cores=cores, usable_cores=usable), **more)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"usable": 2, "cores": 2}, "4 ranks share 2 cores of one: they slow each other"),
        ({"usable": 1, "cores": 1}, "4 ranks share 1 core of one: they slow each other"),
        ({"usable": 4, "cores": 4}, None),
        ({"usable": 2, "cores": 2, "kind": "cuda"}, None),
        ({"usable": 2}, None),  # each rank may be bound to cores of its own
        (
            {"usable": 2, "environment": {"TORCHELASTIC_RUN_ID": "1"}},
            "4 ranks share 2 cores of one: they slow each other",
        ),
        ({"usable": None}, None),
    ],
)
def test_ranks_of_a_cpu_run_that_outnumber_the_cores(make_measured, make_facts, told, said):
    trust = judge(make_measured(), [on_cores(make_facts, rank=rank, **told) for rank in range(4)])
    assert trust.level == "sound"
    assert [finding.text for finding in trust.findings if finding.code == "cores-shared"] == ([said] if said else [])


def test_hosts_whose_ranks_share_as_many_cores_are_one_finding(make_measured, make_facts):
    facts = [on_cores(make_facts, 2, 2, rank=rank, local_rank=rank % 4, host=f"h{rank // 4}") for rank in range(12)]
    trust = judge(make_measured(), facts)
    assert text_of(trust, "cores-shared") == "4 ranks share 2 cores of h0 and of 2 other hosts: they slow each other"


@pytest.mark.parametrize(
    ("uuids", "told"),
    [
        ("ab", None),
        ("  ", None),  # not known
        ("aab", "ranks 0-1 share one GPU: their kernels compete"),
        ("abab", "ranks 0, 2 share one GPU (2 GPUs are shared): their kernels compete"),
    ],
)
def test_ranks_that_share_a_gpu(make_measured, make_facts, uuids, told):
    facts = [
        make_facts(rank=rank, device=DeviceFacts("cuda", uuid=uuid.strip() or None)) for rank, uuid in enumerate(uuids)
    ]
    trust = judge(make_measured(), facts)
    if told is None:
        assert "gpu-shared" not in codes(trust)
    else:
        assert text_of(trust, "gpu-shared").startswith(told)


def test_cores_are_counted_by_host_and_ranks_that_were_not_recorded_too(make_measured, make_facts):
    apart = [on_cores(make_facts, 2, 2, rank=rank, local_rank=rank % 2, host=f"h{rank // 2}") for rank in range(4)]
    assert "cores-shared" not in codes(judge(make_measured(), apart))
    last = on_cores(make_facts, 2, 2, rank=7, local_rank=3, host="h1")
    assert text_of(judge(make_measured(), [*apart, last]), "cores-shared").startswith("4 ranks share 2 cores of h1:")


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([None, None], None),
        ([0.0, 0.05], None),
        ([0.051, 0.2], "20 % of the CPU time of h1 was taken by other virtual machines while steps were timed"),
        ([0.2, None], "20 % of the CPU time of h0 was taken"),
    ],
)
def test_cores_that_were_taken_away_while_steps_were_timed(make_measured, make_facts, shares, said):
    facts = [
        make_facts(rank=rank, host=f"h{rank}", windows=[Window("untraced", 5, taken_share=share)])
        for rank, share in enumerate(shares)
    ]
    trust = judge(make_measured(), facts)
    assert trust.level == "sound"
    if said is None:
        assert "cores-taken" not in codes(trust)
    else:
        assert text_of(trust, "cores-taken").startswith(said)


class TestRecording:
    """What an early end of the script left out."""

    record = RunRecord(schedule=Schedule(5, 20, 5, 3), ending=Ending("failed", 1))

    def test_a_complete_one_says_nothing(self):
        assert list(trust.recording(RunRecord(ending=Ending("complete", 0)), [Facts(0, ended="complete")])) == []
        assert list(trust.recording(None, [])) == []

    def test_without_a_traced_window_it_cannot_be_judged(self):
        (finding,) = trust.recording(self.record, [Facts(0, steps=10, ended="raised ValueError")])
        assert (finding.code, finding.level) == ("recording-broken-off", "unjudgeable")
        assert finding.text == "the script failed (exit status 1) after 10 of the 35 optimizer steps a recording needs"

    def test_a_window_of_a_length_that_steps_decide_has_two_ends(self):
        record = RunRecord(schedule=Schedule(5, 20, 5, 3, light_most=20), ending=Ending("failed", 1))
        (finding,) = trust.recording(record, [Facts(0, steps=10, ended="raised ValueError")])
        assert "after 10 of the 35 to 50 optimizer steps" in finding.text

    def test_with_one_it_is_partial(self):
        light = Window("light", 27, [1, 1], trace="rank-00000.trace.json.gz")
        (finding,) = trust.recording(self.record, [Facts(0, steps=28, windows=[light], ended="raised ValueError")])
        assert finding.level == "partial"

    def test_a_failure_after_the_last_window_leaves_the_recording_whole(self):
        (finding,) = trust.recording(self.record, [Facts(0, steps=35, ended="complete")])
        assert finding.level == "info"
        assert "after the recording was complete" in finding.text

    def test_a_script_that_still_runs_has_not_failed(self):
        record = RunRecord(ending=Ending("recording"))
        (finding,) = trust.recording(record, [Facts(0, steps=35, ended="complete")])
        assert finding.level == "info"
        assert finding.text.startswith("the recording is complete; the script is still running")

    def test_a_rank_whose_recording_stopped_is_named(self):
        stopped = Facts(1, steps=7, ended="recording stopped: OSError: disk full")
        (finding,) = trust.recording(self.record, [Facts(0, ended="complete"), stopped])
        assert (finding.level, finding.text) == ("partial", "rank 1: recording stopped: OSError: disk full")


def test_a_rank_that_was_killed_is_named() -> None:
    record = RunRecord(ending=Ending("failed", 137))
    facts = [Facts(rank=0, ended="raised RuntimeError"), Facts(rank=1, ended="recording", steps=7)]
    found = {finding.code: finding.text for finding in trust.recording(record, facts)}
    assert found["rank-killed"] == "rank 1 was killed or crashed: the window it was recording is lost"
    assert "failed (exit status 137, SIGKILL)" in found["recording-broken-off"]


def test_the_first_rank_does_not_speak_for_the_others() -> None:
    """Where no launcher watches, rank 0 writes run.json."""
    facts = [Facts(rank=0, ended="complete"), Facts(rank=1, ended="os._exit(4)", steps=9)]
    found = {finding.code: finding.text for finding in trust.recording(RunRecord(ending=Ending("complete")), facts)}
    assert "ended on some ranks after 9 of the 35" in found["recording-short"]
    assert list(trust.recording(RunRecord(ending=Ending("complete")), facts[:1])) == []


def test_windows_that_the_time_bound_ended_are_told(make_measured, make_facts):
    cut = Window("untraced", 6, [1] * 6, complete=True, cut_short=True)
    told = judge(make_measured(), [make_facts(windows=[cut])])
    assert text_of(told, "windows-cut").endswith("with fewer steps than requested (untraced 6)")
    assert "windows-cut" not in codes(judge(make_measured(), [make_facts()]))


def test_stacks_that_were_not_read(make_measured, make_facts):
    told = judge(make_measured(), [make_facts(unread={"stacks": "Python runs without the global interpreter lock"})])
    assert text_of(told, "stacks-unread") == (
        "no stack samples were taken (Python runs without the global interpreter lock): functions and lines of the "
        "script that take time are not named"
    )
    assert "stacks-unread" not in codes(judge(make_measured(), [make_facts()]))


def test_ranks_that_recorded_different_steps_are_no_whole(make_measured, make_facts):
    def light(rank, first):
        return make_facts(rank=rank, windows=[Window("light", first, [1] * 5, complete=True)])

    told = judge(make_measured(), [light(0, 19), light(1, 25)])
    assert told.level == "partial"
    assert "rank 0 from step 19 on, rank 1 from 25" in text_of(told, "windows-apart")
    assert "windows-apart" not in codes(judge(make_measured(), [light(0, 19), light(1, 19)]))


def test_traced_steps_that_were_quicker_say_that_the_machine_changed(make_measured, hand_made):
    """By hand: 8 ms traced against 10 ms without the profiler."""
    times = step(hand_made, untraced_median_ns=10_000_000, light_median_ns=8_000_000)
    told = text_of(judge(make_measured(step=times), []), "profiler-cheap")
    assert told.startswith(
        "profiler overhead is within the noise: traced steps were faster than untraced ones (8.00 ms, 10.0 ms)"
    )


@pytest.mark.parametrize(
    ("basis", "said"),
    [
        ("optimizer", "from the end of one optimizer step to the end of the next"),
        ("repeating", "inferred from operations that repeat"),
    ],
)
def test_steps_that_nothing_marks_say_what_tells_them_and_how_alike_they_are(make_measured, basis, said):
    found = StepsFigures(basis=basis, similarity=0.974, by_rank={0: 5})
    told = judge(make_measured().model_copy(update={"steps": found}), [])
    assert told.level == "sound"
    assert said in text_of(told, "steps-unmarked")
    assert "97 % of their operations are the same" in text_of(told, "steps-unmarked")
    marked = StepsFigures(basis="profiler_step", by_rank={0: 5}, missing={"similarity": "marked"})
    assert "steps-unmarked" not in codes(judge(make_measured().model_copy(update={"steps": marked}), []))


@pytest.mark.parametrize(
    ("many", "said"),
    [
        (1, "1 traced step launched no device work; its time is attributed to the preceding step"),
        (3, "3 traced steps launched no device work; their time is attributed to the preceding step"),
    ],
)
def test_steps_without_work_of_their_own_are_counted(make_measured, many, said):
    steps = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 8}, without_work=many)
    told = judge(make_measured().model_copy(update={"steps": steps}), [])
    assert told.level == "sound"
    assert text_of(told, "steps-without-work") == said


def test_steps_that_are_set_aside_are_counted(make_measured):
    long = [SetAsideStep(number=n, length_ns=9_000_000, of_usual=n, warm_up=n < 5) for n in (4, 7)]
    steps = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 8, 1: 7}, set_aside=long)
    told = text_of(judge(make_measured().model_copy(update={"steps": steps}), []), "steps-set-aside")
    assert (
        told == "2 of 10 traced steps are excluded from all figures: steps 4 and 7; step 7 took 9.00 ms "
        "(7.0 times the median)"
    )
    start = SetAsideStep(
        number=31, length_ns=995_000_000, of_usual=57.1, warm_up=False, loader_wait_ns=739_000_000, idle_ns=980_000_000
    )
    told = text_of(
        judge(make_measured().model_copy(update={"steps": steps.model_copy(update={"set_aside": [start]})}), []),
        "steps-set-aside",
    )
    assert told == (
        "1 of 9 traced steps is excluded from all figures: step 31 took 995.0 ms (57.1 times the median), 739.0 ms of "
        "it waiting for the data loader"
    )


def of_steps(measured, **changed):
    return measured.model_copy(update={"step": measured.step.model_copy(update=changed)})


def test_traced_steps_that_are_noisy_count_too(make_measured, hand_made):
    """Beside those without the profiler, and alone where none were timed without it."""
    calm = make_measured()
    noisy = of_steps(calm, light_q1_ns=10_000_000, light_median_ns=12_000_000, light_q3_ns=13_800_000)
    said = (
        "traced steps are noisy (interquartile range 10.0-13.8 ms, 32 % of the median): shares of a step are uncertain"
    )
    assert text_of(judge(noisy, []), "steps-noisy") == said
    foreign = hand_made.figures(
        StepTime, basis="traced", time_ns=12, light_q1_ns=10_000_000, light_median_ns=12_000_000, light_q3_ns=13_800_000
    )
    assert text_of(judge(calm.model_copy(update={"step": foreign}), []), "steps-noisy") == said
    assert "steps-noisy" not in codes(judge(calm, []))


def test_steps_of_two_lengths_are_no_noise_around_their_mean(make_measured):
    """Two steps of 100 and two of 300 ms: three-fold. Two of 100 and two of 299 ms are noisy."""
    measured = make_measured()
    noisy = of_steps(measured, light_q1_ns=100_000_000, light_median_ns=200_000_000, light_q3_ns=300_000_000)

    def of_lengths(*lengths_ms):
        rank = noisy.ranks[0]
        (device, *_) = rank.devices
        took = [Account(window_ns=ms * 1_000_000, compute_ns=ms * 1_000_000) for ms in lengths_ms]
        steps = [StepAccount(number=at, start_ns=0, account=account) for at, account in enumerate(took)]
        device = device.model_copy(update={"steps": steps})
        ranks = [rank.model_copy(update={"devices": [device]}), *noisy.ranks[1:]]
        return text_of(judge(noisy.model_copy(update={"ranks": ranks}), []), "steps-noisy")

    said = "traced steps range from 100.0 to 300.0 ms: shares describe the mean, not any one step"
    assert of_lengths(100, 300, 100, 300) == said
    assert of_lengths(100, 299, 100, 299).startswith("traced steps are noisy")


@pytest.mark.parametrize(("steps", "said"), [(3, True), (4, False), (20, False)])
def test_a_run_of_three_steps_says_so(make_measured, hand_made, steps, said):
    trust = judge(make_measured(steps=steps), [])
    assert ("steps-three" in codes(trust)) is said
    assert trust.level == "sound"
    if said:
        assert text_of(trust, "steps-three").startswith("only 3 traced steps were recorded, so one unusual step")
        assert text_of(trust, "steps-three").endswith("record at least 10 (`--light 10`)")
        foreign = make_measured(steps=steps).model_copy(
            update={"step": hand_made.figures(StepTime, basis="traced", time_ns=12, light_median_ns=12)}
        )
        assert text_of(judge(foreign, []), "steps-three").endswith("(`active=10` in torch.profiler's schedule)")


def losing(measured, *losses):
    """The run with these losses on all of its ranks but the first."""
    lost = [rank.model_copy(update={"losses": list(losses), "devices": []}) for rank in measured.ranks[1:]]
    return measured.model_copy(update={"ranks": [measured.ranks[0], *lost]})


def test_lost_events_make_a_run_unjudgeable_and_are_the_only_reason(make_measured):
    fatal = Loss(code="device-events-lost", fatal=True, text="50 of 90 kernel launches have no kernel in the trace")
    trust = judge(losing(make_measured(world=4), fatal), [])
    assert trust.level == "unjudgeable"
    assert [finding.code for finding in trust.findings if finding.level == "unjudgeable"] == ["device-events-lost"]
    assert text_of(trust, "device-events-lost") == f"rank 1: {fatal.text} (the same on rank 2, 3)"


def test_a_few_lost_events_are_said(make_measured):
    few = Loss(code="device-events-lost", fatal=False, text="1 of 9,000 kernel launches has no kernel in the trace")
    measured = make_measured()
    first = measured.ranks[0].model_copy(update={"losses": [few]})
    trust = judge(measured.model_copy(update={"ranks": [first, *measured.ranks[1:]]}), [])
    assert trust.level == "sound"
    assert text_of(trust, "device-events-lost") == f"rank 0: {few.text}"


def test_what_limits_most_comes_first(make_measured, make_facts):
    found = [Finding(code=level, level=level, text=level) for level in ("info", "partial", "unjudgeable")]
    levels = [finding.level for finding in judge(make_measured(), [make_facts()], found).findings]
    assert levels == sorted(levels, key=("unjudgeable", "partial", "info").index)
    assert levels[:2] == ["unjudgeable", "partial"]
