import pytest

from dptune.advice import Change, Location, Skipped, Trust
from dptune.advise.headline import headline
from dptune.advise.ranking import ranked
from dptune.finding import Finding
from dptune.measured import Account, CodeSite, ComputeFunction, CopyFigures, UserCodeFigures
from dptune.measured.outliers import LatePlace, OutlierFigures, RankLag

SOUND = Trust(level="sound", findings=[])
QUIET = ("XX109",)


def said(measured, trust=SOUND, advice=(), skipped=(), quiet=QUIET, recorded=True):
    return headline(measured, trust, advice, skipped, quiet, recorded)


def test_a_healthy_run(make_measured):
    told = said(make_measured(exposed_share=0.03))
    assert told.verdict.startswith("No bottleneck found")
    assert told.why == "The median step takes 10.0 ms (untraced): compute 97 %, exposed communication or waiting 3 %."
    assert told.next.startswith("Nothing to change")


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"exposed_transfer_ns": 3_000_000}, "exposed communication 30 %"),
        ({"exposed_unsplit_ns": 3_000_000}, "exposed communication or waiting 30 %"),
        (
            {"exposed_transfer_ns": 1_000_000, "exposed_waiting_ns": 1_500_000, "exposed_unsplit_ns": 500_000},
            "exposed communication 10 %, exposed communication or waiting 5 %, waiting for ranks 15 %",
        ),
    ],
)
def test_exposed_communication_is_named_by_its_part(make_measured, split, said):
    account = Account(window_ns=10_000_000, compute_ns=7_000_000, communication_ns=3_000_000, **split)
    assert headline(make_measured(account=account), SOUND, (), (), QUIET, True).why.endswith(f"compute 70 %, {said}.")


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        ({"exposed_share": 0.4}, "Communication-bound: 40 % of each step waits for communication."),
        ({"wait_share": 0.3}, "Input-bound: 30 % of each step waits for the data loader."),
        ({"wait_share": 0.1}, "Mostly compute, but 10 % of each step waits for the data loader."),
    ],
)
def test_what_limits_the_step_is_named_with_and_without_advice(make_measured, make_advice, run, verdict):
    assert said(make_measured(**run)).verdict == verdict
    assert said(make_measured(**run), advice=[make_advice()]).verdict == verdict
    assert "perfetto" in said(make_measured(**run)).next


def test_the_loaders_wait_is_told_beside_the_account_that_sums_to_the_step(make_measured, hand_made):
    measured = make_measured(wait_share=0.2, device="cpu")
    waits = hand_made.figures(hand_made.InputFigures, wait_share=0.35, basis="untraced")
    told = said(measured.model_copy(update={"input": waits}))
    assert told.verdict == "Input-bound: 35 % of each step waits for the data loader."
    assert "compute 80 %, waiting for input 20 %." in told.why
    waits = " In untraced steps the script waits for its data loader 35 % of the time"
    assert told.why.endswith(f"{waits}; the other shares are of traced steps.")


def test_a_compute_bound_run_with_advice(make_measured, make_advice):
    told = said(make_measured(), advice=[make_advice()])
    assert told.verdict == "Compute-bound, and the compute can be made cheaper."


def test_next_is_the_change_to_make_and_where(make_measured, make_advice):
    change = make_advice().changes[0].model_copy(update={"at": Location(file="train.py", line=12)})
    told = said(make_measured(), advice=[make_advice(changes=[change])])
    assert told.rule == make_advice().rule
    assert told.next == (
        "XX101: In train.py:12, use `DataLoader(dataset, ..., num_workers=2, persistent_workers=True)`. "
        "Upper bound of the saving: 1.00 ms of each 10.0 ms step."
    )
    of_all = make_advice(changes=[change], saves=make_advice().saves.model_copy(update={"mean_step_ms": 9.0}))
    assert said(make_measured(), advice=[of_all]).next.endswith("Upper bound of the saving: 1.00 ms of the mean step.")
    predicted = make_advice().saves.model_copy(update={"basis": "replayed", "low_ms": 0.5})
    told = said(make_measured(), advice=[make_advice(saves=predicted)])
    assert told.next.endswith("It saves 0.50 to 1.00 ms of each step.")
    slow = predicted.model_copy(update={"high_ms": 1010.4})
    assert said(make_measured(), advice=[make_advice(saves=slow)]).next.endswith(
        "It saves 0.50 to 1,010 ms of each step."
    )


def test_next_promises_nothing_where_the_upper_bound_is_above_half_of_the_step(make_measured, make_advice):
    told = said(make_measured(), advice=[make_advice(low=0, high=0.501)])
    assert told.next.endswith("`. Saving unknown, upper bound 5.01 ms of each 10.0 ms step.")
    assert said(make_measured(), advice=[make_advice(low=0, high=0.5)]).next.endswith(
        "Upper bound of the saving: 5.00 ms of each 10.0 ms step."
    )


def test_next_points_to_the_advice_on_what_limits_the_step(make_measured, make_advice):
    """The loader's advice is of low confidence, so that another leads."""
    other = make_advice("XX101", changes=[Change(knob="precision.autocast", now=None, then="fp16")])
    loader = make_advice("XX102", changes=[], confidence="low", fingerprint="XX102:loader.num_workers:Dataset")
    starved = make_measured(wait_share=0.3)
    assert said(starved, advice=[other, loader]).next.endswith(
        " For the bottleneck itself, see XX102 (low confidence)."
    )
    sure = make_advice("XX103", changes=[Change(knob="loader.num_workers", now=0, then=2)])
    assert said(starved, advice=[other, sure]).next.endswith(" For the bottleneck itself, see XX103.")
    for advice, run in (([sure, other], starved), ([other], starved), ([other, sure], make_measured())):
        assert "see XX" not in said(run, advice=advice).next


def test_next_has_the_line_to_paste_without_its_comment(make_measured, make_advice):
    advice = make_advice("XX101", changes=[Change(knob="precision.autocast", now=None, then="fp16")])
    assert advice.changes[0].paste == (
        "with torch.autocast(device.type, dtype=torch.float16):\n    # the forward pass and the loss"
    )
    assert (
        "XX101: Use `with torch.autocast(device.type, dtype=torch.float16):`."
        in said(make_measured(), advice=[advice]).next
    )


def test_of_many_ranks_without_one_straggler_next_is_to_look_at_the_latest(make_measured, make_advice):
    account = Account(
        window_ns=10_000_000,
        compute_ns=6_000_000,
        communication_ns=4_000_000,
        exposed_waiting_ns=3_000_000,
        exposed_transfer_ns=1_000_000,
    )
    known = {"kind": "rank", "place": "617", "ranks": [617], "hosts": ["node154"], "lag_ns": 3_000_000}
    place = LatePlace(**known, late_share=1.0, cause="slow GPU: same kernels 1.5x")
    lag = RankLag(rank=617, lag_ns=3_000_000, steps_ns=[3_000_000])
    found = OutlierFigures(steps=[1], threshold_ns=1, latest_ns=3_000_000, latest_ranks=1, late=[place], ranks=[lag])
    measured = make_measured(account=account)
    missing = {name: why for name, why in measured.missing.items() if name != "outliers"}
    measured = measured.model_copy(update={"outliers": found, "missing": missing})
    look = "Find out why rank 617 on node154 is late: slow GPU: same kernels 1.5x."
    assert said(measured).next == look
    assert said(measured, advice=[make_advice(confidence="low")]).next.startswith(f"{look} XX101 (low confidence): ")
    assert said(measured, advice=[make_advice()]).next.startswith("XX101: ")


def test_low_confidence_is_said_in_next_and_makes_no_verdict(make_measured, make_advice):
    told = said(make_measured(), advice=[make_advice(high=0.5, confidence="low")])
    assert told.next.startswith("XX101 (low confidence): Use `DataLoader(")
    assert told.verdict == "The device computes nearly all the time: all findings have low impact or low confidence."


def test_what_threatens_the_results_heads_the_page(make_measured, make_advice):
    risk = make_advice("XX102", kind="risk", saves=None, impact="high", numerics="changes", changes=[])
    risk = risk.model_copy(update={"remedy": "Stop the run.", "watch": "The loss rises."})
    told = said(make_measured(), advice=ranked([make_advice(high=0.5), risk]))
    assert (told.rule, told.verdict) == ("XX102", "Something costs 10 % of a step.")
    assert told.next == "XX102: Stop the run. Details: `dptune rules explain XX102`."


def test_of_a_larger_batch_it_is_the_time_of_a_sample_that_gets_less(make_measured, make_advice):
    saves = make_advice(low=0.2, high=0.3).saves.model_copy(update={"samples_times": 2.0})
    told = said(make_measured(), advice=[make_advice(saves=saves)])
    assert told.next.endswith("It saves 20 to 30 % of the time per sample.")


def test_next_without_a_change_points_to_the_page(make_measured, make_advice):
    told = said(make_measured(), advice=[make_advice(changes=[])])
    assert told.next == "XX101: Something costs 10 % of a step. How: `dptune rules explain XX101`."


def test_a_change_of_several_lines_is_cut(make_measured, make_advice):
    change = make_advice().changes[0].model_copy(update={"knob": "ddp.no_sync", "then": True})
    told = said(make_measured(), advice=[make_advice(changes=[change])])
    assert "\n" not in told.next
    assert "all lines: see XX101" in told.next


def test_with_ranks_missing_it_is_not_known_what_exposed_communication_is(make_measured, make_advice):
    measured = make_measured(exposed_share=0.2).model_copy(update={"world_size": 8})
    told = said(measured)
    assert told.verdict == (
        "Communication-bound or straggler-bound: 20 % of each step is exposed communication or waiting for late "
        "ranks; separating them needs the traces of all ranks."
    )
    assert told.next.startswith("Read the traces of all ranks together")
    large = make_advice(high=0.5)
    assert said(measured, advice=[large]).next.startswith("XX101: Use `DataLoader(")
    small = said(measured, advice=[make_advice(high=0.04)])  # what most of the step is comes first
    assert small.next.startswith("Read the traces of all ranks together")
    assert "XX101: Use `DataLoader(" in small.next
    assert small.rule == "XX101"
    unsure = said(measured, advice=[make_advice(confidence="low")])
    assert unsure.next.startswith("Read the traces of all ranks together")
    little = said(make_measured(exposed_share=0.08).model_copy(update={"world_size": 8}))
    assert little.verdict.startswith("Mostly compute, but 8 % of each step is exposed communication or waiting")


def test_what_could_be_split_is_called_what_it_is_though_ranks_are_missing(make_measured):
    parts = {"exposed_transfer_ns": 2_000_000, "exposed_unsplit_ns": 1_000_000}
    account = Account(window_ns=10_000_000, compute_ns=7_000_000, communication_ns=3_000_000, **parts)
    told = said(make_measured(account=account).model_copy(update={"world_size": 8}))
    assert told.verdict == "Communication-bound: 30 % of each step waits for communication."


@pytest.mark.parametrize("advised", [False, True])
def test_a_run_that_cannot_be_judged_never_reads_as_healthy(make_measured, make_advice, advised):
    trust = Trust(
        level="unjudgeable",
        findings=[
            Finding(code="profiler-cost", level="info", text="it costs"),
            Finding(code="steps-few", level="unjudgeable", text="only 2 steady steps were recorded"),
        ],
    )
    told = said(make_measured(), trust, advice=[make_advice()] if advised else [])
    assert told.verdict == "Not enough reliable data for a verdict."
    assert told.why == "Only 2 steady steps were recorded."
    assert "dptune profile --light 5" in told.next


def test_a_figure_that_the_headline_lacks(make_measured, hand_made):
    times = hand_made.figures(hand_made.StepTime, basis="traced")
    told = said(make_measured(step=times))
    assert told.verdict == "Not enough reliable data for a verdict."
    assert told.why == "time_ns was not measured."


def test_a_part_of_a_run_is_not_called_healthy(make_measured):
    trust = Trust(level="partial", findings=[Finding(code="x", level="partial", text="rank 1 is missing")])
    told = said(make_measured(), trust)
    assert "No bottleneck found" not in told.verdict
    assert "Partial data: rank 1 is missing." in told.why


def test_rules_that_could_not_run_are_counted_and_keep_it_from_healthy(make_measured, make_advice):
    skipped = [Skipped(rule="XX102", reason="no facts"), Skipped(rule="XX103", reason="no facts")]
    told = said(make_measured(), skipped=skipped, quiet=["XX104"], recorded=False)
    assert "No bottleneck found" not in told.verdict
    assert "1 of 3 rules ran; 2 could not." in told.why
    assert "dptune profile" in told.next
    contradicted = [Skipped(rule="XX101", reason="contradicts"), *skipped]
    told = said(make_measured(), advice=[make_advice("XX101")], skipped=contradicted, quiet=[])
    assert "1 of 3 rules ran; 2 could not." in told.why


def test_no_rule_at_all_is_not_healthy(make_measured):
    told = said(make_measured(), quiet=[])
    assert "No bottleneck found" not in told.verdict
    assert told.why.endswith(" No rules were selected.")
    assert "`select` and `ignore` under [tool.dptune]" in told.next


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("recording-broken-off", "Fix that first, then record again."),
        ("recording-short", "Let the script run to 11 optimizer steps at least, and record fewer"),
    ],
)
def test_a_script_that_failed_is_to_be_mended_before_it_is_recorded_again(make_measured, code, said):
    trust = Trust(
        level="unjudgeable", findings=[Finding(code=code, level="unjudgeable", text="the script failed after 9 steps")]
    )
    assert said in headline(make_measured(), trust, (), (), (), True).next


@pytest.mark.parametrize(
    ("copies", "verdict"),
    [
        ({"h2d": 30, "d2d": 0}, "Copy-bound: 30 % of each step waits for copies between memories."),
        ({"d2d": 7}, "Copy-bound: 30 % of each step is spent on copies within one device."),
        ({"unknown": 7}, "Copy-bound: 30 % of each step is spent waiting for copies."),
        ({"h2d": 4, "d2d": 16}, "Copy-bound: 24 % of each step is spent on copies within one device."),
        ({"d2h": 12, "p2p": 4, "d2d": 4}, "Copy-bound: 24 % of each step waits for copies between memories."),
        (None, "Copy-bound: 30 % of each step is spent waiting for copies."),
    ],
)
def test_copies_are_named_by_where_they_move_data(make_measured, hand_made, copies, verdict):
    account = Account(window_ns=10_000_000, compute_ns=7_000_000, copy_ns=3_000_000)
    measured = make_measured(account=account)
    if copies is not None:
        records = [
            CopyFigures.only(
                "made up",
                direction=direction,
                calls=1,
                calls_per_step=1.0,
                total_ns=exposed,
                exposed_ns=exposed,
                most_share=0.3,
                most_held_share=0.0,
            )
            for direction, exposed in copies.items()
        ]
        measured = measured.model_copy(update={"copies": records, "missing": dict(measured.missing)})
    assert said(measured).verdict == verdict


def test_where_slow_steps_take_most_time_they_are_the_verdict(make_measured, make_advice, hand_made):
    """Steps of 10 ms and a mean of 40: three quarters of the time is what slow steps take longer."""
    measured = make_measured(exposed_share=0.4)
    step = measured.step.model_copy(update={"untraced_mean_ns": 40_000_000})
    slow = measured.model_copy(update={"step": step})
    one = make_advice()
    of_slow = one.model_copy(update={"saves": one.saves.model_copy(update={"mean_step_ms": 40.0})})
    told = said(slow, advice=[of_slow])
    assert told.verdict == "Slow steps take 75 % of the time: the mean step takes 40.0 ms, the median step 10.0 ms."
    assert told.why.startswith("The median step takes 10.0 ms, the mean 40.0 ms (untraced): compute 60 %")
    assert told.why.endswith("These shares exclude slow steps.")
    assert told.rule == of_slow.rule
    assert said(slow, advice=[one, of_slow]).verdict == told.verdict
    assert said(slow, advice=[one]).verdict.startswith("Communication-bound")
    collects = of_slow.model_copy(update={"confidence": "low"})  # what reinforcement learning needs every few steps
    assert said(slow, advice=[one, collects]).verdict.startswith("Communication-bound")
    little = step.model_copy(update={"untraced_mean_ns": 12_000_000})
    assert said(measured.model_copy(update={"step": little}), advice=[of_slow]).why.startswith(
        "The median step takes 10.0 ms ("
    )


def test_a_located_cost_is_the_verdict_where_nothing_else_stands_out(make_measured, make_advice):
    title = "`save` (train.py:88) takes 9 % of the step"
    advice = [make_advice("DP901", impact="low", title=title, changes=[])]
    found = headline(make_measured(), SOUND, advice, (), QUIET, True, locating={"DP901"})
    assert found.verdict == "`save` (train.py:88) takes 9 % of the step."
    assert found.next.startswith("DP901: `save` (train.py:88) takes 9 % of the step. How: `dptune rules explain DP901`")
    assert "Nothing to change" not in found.next


@pytest.mark.parametrize(("share", "located"), [(0.05, True), (0.049, False)])
def test_nothing_to_change_is_not_said_above_a_located_cost(make_measured, share, located):
    known = {"phase": "loop", "part": False, "mostly": "tensor operators", "rank": 0, "ranks": [0], "cost_ns": 1}
    sites = [
        CodeSite(name=name, at=at, share=of, **known)
        for name, at, of in (("tiny", "a.py:1", 0.01), ("propagate", "train.py:88", share))
    ]
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=sites)
    found = said(make_measured(user_code=code))
    assert ("Nothing to change" not in found.next) == located
    if located:
        assert found.next == (
            "No rule has a remedy. `propagate` (train.py:88) takes 5 % of the step. Check whether every step needs it."
        )


def test_a_device_that_waits_for_the_host_names_where_the_host_is(make_measured):
    """17 % of the step is idle, 7 % of it in functions of which none takes 5 %."""
    known = {"phase": "loop", "mostly": "draw", "rank": 0, "ranks": [0], "cost_ns": 1}
    sites = [
        CodeSite(name="main", at="train.py:9", part=True, share=0.03, **known),
        CodeSite(name="sample", at="replay.py:40", part=False, share=0.04, **known),
        CodeSite(name="tiny", at="a.py:1", part=False, share=0.01, **known),
    ]
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=sites)
    account = Account(window_ns=10_000_000, compute_ns=8_300_000, host_idle_ns=1_700_000)
    idle = make_measured(user_code=code).model_copy(update={"account": account})
    assert said(idle).next == (
        "No rule has a remedy. Most host time: `sample` (replay.py:40) 4 %, `draw` in `main` (train.py:9) 3 % of the "
        "step. Check whether every step needs it."
    )
    little = code.model_copy(update={"sites": sites[2:]})
    assert "look at where the device waits" in said(idle.model_copy(update={"user_code": little})).next


def test_where_nothing_is_to_change_the_functions_that_compute_most_are_named(make_measured):
    known = {"calls": 1, "rank": 0, "cost_ns": 1, "backward_ns": 2, "calls_backward": False}
    functions = [
        ComputeFunction(name="forward", at="net.py:12", operator="aten::linear", share=0.5, **known),
        ComputeFunction(name="normalized", at="net.py:40", operator="aten::mm", share=0.2, **known),
        ComputeFunction(name="loss", at="net.py:60", operator="aten::mul", share=0.05, **known),
    ]
    assert said(make_measured(compute_functions=functions)).next == (
        "Nothing to change. Most compute, forward and backward: `forward` (net.py:12, linear) 50 %, `normalized` "
        "(net.py:40, mm) 20 % of the step."
    )
    assert said(make_measured(compute_functions=functions[2:])).next.startswith("Nothing to change. Record again")


@pytest.mark.parametrize("level", ["partial", "unjudgeable"])
def test_a_run_that_a_newer_dptune_recorded_is_not_to_be_recorded(make_measured, level):
    newer = Finding(code="schema-newer", level="partial", text="run.json is of schema '99'")
    other = Finding(code="windows-missing", level=level, text="x")
    told = said(make_measured(), trust=Trust(level=level, findings=[newer, other]), recorded=False)
    assert told.next == "Update dptune (`pip install --upgrade dptune`): a newer version recorded this run."


@pytest.mark.parametrize("code", ["communication-missing", "device-events-lost", "steps-few"])
def test_what_a_cut_off_trace_lacks_is_no_matter_of_recording(make_measured, code):
    lacks = Finding(code=code, level="unjudgeable", text="rank 0 lacks much of its trace")
    cut = Finding(code="trace-partial", level="partial", text="rank0.json.gz breaks off after 12 whole events")
    whole = said(make_measured(), trust=Trust(level="unjudgeable", findings=[lacks]))
    assert "Record again" in whole.next or "Record at least 3" in whole.next
    told = said(make_measured(), trust=Trust(level="unjudgeable", findings=[cut, lacks]))
    assert told.next.startswith("A trace file is truncated. Copy it again from where it was recorded;")


@pytest.mark.parametrize(
    ("basis", "q3_ms", "step"),
    [("traced", 12.9, "each step"), ("traced", 13.1, "the mean step"), ("untraced", 13.1, "each step")],
)
def test_where_traced_steps_differ_much_a_share_is_of_their_mean(make_measured, basis, q3_ms, step):
    """Interquartile range 3 of 10 ms; without the profiler the step time is a median."""
    measured = make_measured(wait_share=0.3)
    quartiles = {"light_q1_ns": 10_000_000, "light_median_ns": 10_000_000, "light_q3_ns": int(q3_ms * 1e6)}
    of_step = measured.step.model_copy(update={"basis": basis, **quartiles})
    told = said(measured.model_copy(update={"step": of_step}))
    assert told.verdict == f"Input-bound: 30 % of {step} waits for the data loader."
