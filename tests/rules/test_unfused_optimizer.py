from dataclasses import replace

import pytest

from dptune.measured import (
    Account,
    CodeSite,
    InferredFacts,
    LaunchIdleFigures,
    Missing,
    OptimizerLaunches,
    OptimizerLoop,
    UserCodeFigures,
)
from dptune.runfile.dense_tables import DenseTableFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.window import SampledFacts, Window

ADAM = {"name": "AdamW", "where": "train.py:22", "parameter_tensors": 400, "parameters": 10_000}


LAUNCHING = Account(window_ns=10_000_000, compute_ns=4_000_000, launch_idle_ns=6_000_000)  # a GPU waits for launches


def facts(make_facts, **more):
    return [make_facts(optimizers=[OptimizerFacts(**{**ADAM, **more})])]


def test_a_loop_over_many_tensors(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2))
    (advice,) = ask("DP603", run, facts(make_facts))
    assert advice.title == "AdamW takes 20 % of a step updating 400 tensors one at a time: pass fused=True"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("optimizer.fused", False, True, "train.py:22")
    assert advice.saves.high_share == pytest.approx(0.2)
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")


def test_of_several_optimizers_it_is_not_told_which_takes_the_time(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2))
    looping, other = OptimizerFacts(**ADAM), OptimizerFacts(**{**ADAM, "name": "Muon"})
    with pytest.raises(Missing, match="their time cannot be separated"):
        ask("DP603", run, [make_facts(optimizers=[looping, other])])
    assert len(ask("DP603", run, [make_facts(optimizers=[looping, looping])])) == 1


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("cpu", {"fused": True}),
        ("cpu", {"foreach": True}),
        ("cpu", {"name": "RMSprop"}),
        ("cuda", {}),  # foreach is what torch takes there
    ],
)
def test_quiet_where_nothing_loops(ask, make_measured, make_facts, hand_made, device, told):
    run = make_measured(device=device, phases=hand_made.phases(0.3, 0.5, 0.2), spent=[LAUNCHING])
    assert ask("DP603", run, facts(make_facts, **told)) == []
    assert len(ask("DP603", run, facts(make_facts, foreach=False))) == 1


def test_quiet_where_it_takes_little(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.4, 0.51, 0.09))
    assert ask("DP603", run, facts(make_facts)) == []


def operators(run, compute_ns):
    """The same run, with that much compute in the optimizer's phase, over both ranks and all steps."""
    phases = [
        one.model_copy(update={"compute_ns": compute_ns}) if one.phase == "optimizer" else one for one in run.phases
    ]
    return run.model_copy(update={"phases": phases})


def test_what_a_script_does_inside_the_step_is_not_the_loops(ask, make_measured, make_facts, hand_made):
    """The phase is 25 of 50 ms; 4 ms of operators, and 8 tensors in 5 steps of 2 ranks: at most 8 ms of Python."""
    run = operators(make_measured(device="cpu", phases=hand_made.phases(0.3, 0.2, 0.5)), 4_000_000)
    (advice,) = ask("DP603", run, facts(make_facts, parameter_tensors=8))
    assert advice.title == "AdamW takes 24 % of a step updating 8 tensors one at a time: pass fused=True"
    assert advice.saves.high_share == pytest.approx(0.24)
    assert advice.evidence[0].value == pytest.approx(0.24)
    assert ask("DP603", run, facts(make_facts, parameter_tensors=0)) == []  # 4 of 50 ms


def of_script(hand_made, *sites):
    """Functions of the script: name, phase, and milliseconds a step."""
    found = [
        CodeSite(
            name=name,
            at="train.py:3",
            phase=phase,
            part=False,
            mostly="dumps",
            rank=0,
            ranks=[0],
            cost_ns=int(ms * 1e6),
            share=ms / 10,
        )
        for name, phase, ms in sites
    ]
    return hand_made.figures(UserCodeFigures, ranks=[0], steps=3, basis="traced", sites=found)


@pytest.mark.parametrize(("device", "foreach"), [("cpu", None), ("cuda", False)])
def test_functions_of_the_script_in_the_step_are_taken_off(ask, make_measured, make_facts, hand_made, device, foreach):
    """The phase is 25 of 50 ms, and a hook takes 2 ms in each of 5 steps of 2 ranks: 5 ms are left, a tenth."""
    code = of_script(hand_made, ("hook", "optimizer", 1.5), ("write", "optimizer", 0.5), ("log", "loop", 3.0))
    run = make_measured(device=device, phases=hand_made.phases(0.3, 0.2, 0.5), user_code=code, spent=[LAUNCHING])
    (advice,) = ask("DP603", run, facts(make_facts, foreach=foreach))
    assert advice.evidence[0].value == pytest.approx(0.1)
    more = of_script(hand_made, ("hook", "optimizer", 2.1))
    run = run.model_copy(update={"user_code": more})
    assert ask("DP603", run, facts(make_facts, foreach=foreach)) == []


def of_trace(hand_made, make_facts, *, zeroing=161.0, foreach=False, launches=644.0):
    """A GPU trace that dptune did not record: its ranges name SGD, and `zero_grad` takes 3 of 50 ms."""
    optimizer = OptimizerFacts("SGD", fused=False, foreach=foreach)
    inferred = InferredFacts(
        facts=make_facts(optimizers=[optimizer]), confidence={"optimizers": "high", "optimizers.fused": "medium"}
    )
    launches = OptimizerLaunches(
        name="SGD",
        per_step=launches,
        of_per_step=1478.0,
        idle_share=0.2,
        for_each_tensor=True,
        zeroing_per_step=zeroing,
        zeroing_host_ns=3_000_000 if zeroing else 0,
    )
    waited = hand_made.figures(
        LaunchIdleFigures, idle_ns=1, operators=[], operations=[], optimizer=launches, compiled=False
    )
    return {"inferred": inferred, "launch_idle": waited, "phases": hand_made.phases(0.35, 0.5, 0.15)}


def test_a_trace_alone_shows_the_loop_and_zero_grad(ask, make_measured, make_facts, hand_made):
    run = make_measured(spent=[LAUNCHING], **of_trace(hand_made, make_facts))
    plain = run.model_copy(update={"step": run.step.model_copy(update={"basis": "traced"})})
    found = [[each.unit for each in ask("DP603", timed)[0].evidence] for timed in (run, plain)]
    assert [units.count("of an untraced step") for units in found] == [1, 0]
    (advice,) = ask("DP603", run)
    assert advice.title == (
        "SGD takes 21 % of a step updating tensors one at a time: pass fused=True, and set_to_none=True to zero_grad"
    )
    counts = {each.label: each.value for each in advice.evidence}
    assert counts["launches in zero_grad"] == 161
    assert not {"tensors", "parameters"} & counts.keys()  # the trace shows neither
    run = make_measured(spent=[LAUNCHING], **of_trace(hand_made, make_facts, zeroing=0.0))
    assert "zero_grad" not in ask("DP603", run)[0].title
    for quiet in ({"foreach": True}, {"zeroing": 4.0, "launches": 7.0}):
        assert ask("DP603", make_measured(spent=[LAUNCHING], **of_trace(hand_made, make_facts, **quiet))) == []


def test_a_gpu_gains_no_more_than_it_idles_because_of_the_host(ask, make_measured, make_facts, hand_made):
    busy = Account(window_ns=10_000_000, compute_ns=8_800_000, launch_idle_ns=1_000_000, host_idle_ns=200_000)
    (advice,) = ask("DP603", make_measured(spent=[busy], **of_trace(hand_made, make_facts)))
    assert advice.saves.high_share == pytest.approx(0.12)
    starved = Account(window_ns=10_000_000, compute_ns=4_000_000, launch_idle_ns=900_000, input_idle_ns=5_100_000)
    assert ask("DP603", make_measured(spent=[starved], **of_trace(hand_made, make_facts))) == []


def test_batches_that_the_script_prepares_itself_wait_for_the_optimizer(ask, make_measured, make_facts, hand_made):
    """The loop is 21 % of the host's time; the GPU idles 9 % for launches and 51 % for batches."""
    starved = Account(window_ns=10_000_000, compute_ns=4_000_000, launch_idle_ns=900_000, input_idle_ns=5_100_000)
    trace = of_trace(hand_made, make_facts)
    inferred = trace["inferred"]
    for workers, confident in ((0, True), (None, False)):
        loaders = [LoaderFacts(num_workers=workers)]
        known = {"loaders.num_workers": "high"} if confident else {}
        trace["inferred"] = inferred.model_copy(
            update={
                "facts": replace(inferred.facts, loaders=loaders),
                "confidence": {**inferred.confidence, "loaders": "high", **known},
            }
        )
        advice = ask("DP603", make_measured(spent=[starved], **trace))
        assert [each.saves.high_share for each in advice] == ([pytest.approx(0.21)] if confident else [])


def test_operators_count_whatever_the_script_does_beside_them(ask, make_measured, make_facts, hand_made):
    """More of the script than the phase outlasts its operators: those are left, 20 of 50 ms."""
    code = of_script(hand_made, ("hook", "optimizer", 9.0))
    run = operators(make_measured(device="cpu", phases=hand_made.phases(0.3, 0.2, 0.5), user_code=code), 20_000_000)
    (advice,) = ask("DP603", run, facts(make_facts))
    assert advice.evidence[0].value == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("parameters", "dtypes", "reason"),
    [
        (4 * 65_536, ["float32"], "reading and writing each of 4 tensors several times"),
        (4 * 65_535, ["float32"], "updating 4 tensors one at a time"),
        (4 * 32_768, ["float64"], "reading and writing each of 4 tensors several times"),
        (4 * 65_536, ["bfloat16"], "updating 4 tensors one at a time"),
        (4 * 65_536, [], "reading and writing each of 4 tensors several times"),
    ],
)
def test_large_tensors_cost_reading_and_writing_not_calls(
    ask, make_measured, make_facts, hand_made, parameters, dtypes, reason
):
    """From 256 KiB a tensor on."""
    run = operators(make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2)), 10_000_000)
    (advice,) = ask("DP603", run, facts(make_facts, parameter_tensors=4, parameters=parameters, dtypes=dtypes))
    assert advice.title == f"AdamW takes 20 % of a step {reason}: pass fused=True"


@pytest.mark.parametrize(("share", "most"), [(0.15, None), (0.2, 0.11)])
def test_of_sgd_on_large_tensors_a_fused_step_reads_and_writes_nearly_as_much(
    ask, make_measured, make_facts, hand_made, share, most
):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.7 - share, share))
    large = facts(make_facts, name="SGD", parameter_tensors=12, parameters=12_000_000)
    assert [one.saves.high_share for one in ask("DP603", run, large)] == ([] if most is None else [pytest.approx(most)])
    assert len(ask("DP603", run, facts(make_facts, name="SGD"))) == 1  # of many small ones the calls take the time


def test_rows_of_tables_that_a_step_does_not_use_are_left_to_sparse_gradients(
    ask, make_measured, make_facts, hand_made
):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.5, 0.2))
    optimizers = [OptimizerFacts(**{**ADAM, "parameters": 10_000_000})]

    def asked(used):
        return ask(
            "DP603",
            run,
            [make_facts(optimizers=optimizers, dense_tables=[DenseTableFacts("table", 100_000, 90, used)])],
        )

    assert asked(1_000) == []  # 1 - 0.9 * 0.99 of 20 %
    assert [one.saves.high_share for one in asked(50_000)] == [pytest.approx(0.2)]


def stepping(make_facts, looks, **more):
    """The thread was found in the optimizer's step in so many of 100 looks."""
    inside = SampledFacts(["main (train.py:9)"], "optimizer", looks=looks, spent_ns=[looks])
    others = SampledFacts(["main (train.py:9)"], "backward", looks=100 - looks, spent_ns=[100 - looks])
    window = Window("untraced", 3, [20] * 5, sampled=[inside, others])
    return [make_facts(optimizers=[OptimizerFacts(**{**ADAM, **more})], windows=[window])]


def test_adams_loop_on_a_cpu_is_spared_by_half_or_more(ask, make_measured, make_facts, hand_made):
    """15 of 100 looks are unsure by 1.645 x sqrt(0.15 x 0.85 / 100) = 0.0587; the traced loop takes 20 %."""
    run = make_measured(device="cpu", world=1, phases=hand_made.phases(0.3, 0.5, 0.2))
    (advice,) = ask("DP603", run, stepping(make_facts, 15))
    assert advice.saves.basis == "sampled"
    assert advice.saves.low_share == pytest.approx(0.5 * 0.0913, abs=1e-3)
    assert advice.saves.high_share == pytest.approx(0.2)  # 0.2087 was sampled, with what runs in the step beside it
    (advice,) = ask("DP603", run, stepping(make_facts, 15, name="SGD"))
    assert advice.saves.basis == "bound"  # a fused SGD reads and writes as much


def test_without_samples_the_lower_end_of_adams_loop_leaves_out_all_profiler_overhead(
    ask, make_measured, make_facts, hand_made
):
    """Of a traced step of 10 ms the loop takes 40 %. The untraced one takes 8: without all overhead 25 %."""
    run = make_measured(device="cpu", world=1, phases=hand_made.phases(0.3, 0.3, 0.4))
    untraced = run.step.model_copy(update={"time_ns": 8_000_000, "untraced_median_ns": 8_000_000})
    run = run.model_copy(update={"step": untraced})
    (advice,) = ask("DP603", run, facts(make_facts))
    assert advice.saves.basis == "timed"
    assert advice.saves.low_share == pytest.approx(0.5 * 0.25)
    assert advice.saves.predicted_share == pytest.approx(0.4)
    assert advice.saves.high_share == pytest.approx(0.4 * 1.25)
    (busy,) = ask("DP603", run, facts(make_facts), times_hold=False)
    (other,) = ask("DP603", run, facts(make_facts, name="SGD"))
    assert (busy.saves.basis, other.saves.basis) == ("bound", "bound")


WRITTEN = {"name": "PlainAdam", "where": "train.py:22", "parameter_tensors": 40, "parameters": 400_000}
ADAM_CALLS = {"mul_": 80.0, "add_": 80.0, "addcmul_": 40.0, "sqrt": 40.0, "addcdiv_": 40.0}
SIGN_CALLS = {"mul_": 80.0, "add_": 40.0, "sign_": 40.0}


def written(make_measured, hand_made, share=0.3, device="cpu", world=2, **calls):
    loop = OptimizerLoop(
        optimizer="PlainAdam",
        functions=["step at train.py:30", "update at train.py:41"],
        operators=calls or ADAM_CALLS,
        rank=0,
        cost_ns=9_000_000,
        share=share,
    )
    phases = hand_made.phases(0.3, 0.7 - share, share)
    return make_measured(device=device, world=world, phases=phases, optimizer_loops=[loop])


def test_a_step_that_the_script_wrote(ask, make_measured, make_facts, hand_made):
    (advice,) = ask("DP603", written(make_measured, hand_made), facts(make_facts, **WRITTEN))
    assert advice.title == (
        "`PlainAdam` (train.py:30) takes 30 % of a step calling 7 operators for each of 40 tensors: use "
        "torch.optim.AdamW(..., fused=True) if it computes Adam or AdamW"
    )
    assert advice.changes == []
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.3))
    assert [each.label for each in advice.evidence][1:3] == ["step at train.py:30", "update at train.py:41"]
    assert advice.fingerprint == "DP603:PlainAdam"


def test_the_saving_of_a_class_with_adam_in_its_name_is_predicted_from_samples(
    ask, make_measured, make_facts, hand_made
):
    (advice,) = ask("DP603", written(make_measured, hand_made, world=1), stepping(make_facts, 30, **WRITTEN))
    assert "takes 30 % of a step" in advice.title
    assert advice.saves.basis == "sampled"
    assert advice.saves.low_share == pytest.approx(0.5 * (0.3 - 0.0754), abs=1e-3)
    assert advice.saves.high_share == pytest.approx(0.3 + 0.0754, abs=1e-3)


def test_the_lines_of_the_update_are_named(ask, make_measured, make_facts, hand_made):
    own = stepping(make_facts, 30, **WRITTEN)
    lines = {33: 20, 36: 10}
    own[0].windows[0].sampled[:1] = [
        SampledFacts(["main (train.py:9)", f"PlainAdam.step (train.py:{line})"], "optimizer", looks=ns, spent_ns=[ns])
        for line, ns in lines.items()
    ]
    (advice,) = ask("DP603", written(make_measured, hand_made, world=1), own)
    assert advice.title.startswith("`PlainAdam` (train.py:33) takes")
    shown = {one.label: one.value for one in advice.evidence}
    assert shown["lines that take most time"] == "train.py:33 (67 %), train.py:36 (33 %)"


@pytest.mark.parametrize(
    ("calls", "numbers", "device", "remedy"),
    [
        ({"mul": 80.0, "add": 80.0, "sub_": 40.0}, 400_000, "cpu", "torch.optim.SGD(..., momentum=..., fused=True)"),
        ({"mul_": 80.0, "add_": 40.0, "sign_": 40.0}, 40_000, "cpu", "the class of torch.optim that computes the same"),
        ({"mul_": 80.0, "add_": 40.0, "sign_": 40.0}, 40_040, "cpu", None),  # foreach is slower there
        (
            {"mul_": 80.0, "add_": 40.0, "sign_": 40.0},
            40_040,
            "cuda",
            "the class of torch.optim that computes the same",
        ),
        ({"mm": 80.0, "mul_": 80.0, "sqrt": 40.0}, 400_000, "cpu", None),
        ({"mul_": 80.0, "sqrt": 39.0}, 400_000, "cpu", None),  # fewer than three for each
        ({"add_": 40.0}, 400, "cpu", None),
    ],
)
def test_what_replaces_it(ask, make_measured, make_facts, hand_made, calls, numbers, device, remedy):
    run = written(make_measured, hand_made, device=device, **calls)
    advice = ask("DP603", run, facts(make_facts, **(WRITTEN | {"parameters": numbers})))
    assert [remedy in each.title for each in advice] == ([] if remedy is None else [True])


def test_a_class_of_the_script_with_a_name_of_torch(ask, make_measured, make_facts, hand_made):
    """It takes no fused=True."""
    run = written(make_measured, hand_made)
    loop = run.optimizer_loops[0].model_copy(update={"optimizer": "AdamW"})
    (advice,) = ask(
        "DP603", run.model_copy(update={"optimizer_loops": [loop]}), facts(make_facts, **(WRITTEN | {"name": "AdamW"}))
    )
    assert advice.changes == []
    assert advice.title.startswith("`AdamW` (train.py:30) takes 30 % of a step calling 7 operators")


def test_a_class_that_adds_little_to_a_step_of_torch(ask, make_measured, make_facts, hand_made):
    run = written(make_measured, hand_made, mul_=40.0, norm=2.0)
    loop = run.optimizer_loops[0].model_copy(update={"optimizer": "AdamW"})
    (advice,) = ask(
        "DP603", run.model_copy(update={"optimizer_loops": [loop]}), facts(make_facts, **(WRITTEN | {"name": "AdamW"}))
    )
    assert [change.knob for change in advice.changes] == ["optimizer.fused"]


def test_a_step_of_rmsprop_is_none_of_adam(ask, make_measured, make_facts, hand_made):
    run = written(make_measured, hand_made)
    loop = run.optimizer_loops[0].model_copy(update={"optimizer": "MyRMSprop"})
    run = run.model_copy(update={"optimizer_loops": [loop]})
    assert ask("DP603", run, facts(make_facts, **(WRITTEN | {"name": "MyRMSprop"}))) == []


def test_quiet_where_a_written_step_takes_little(ask, make_measured, make_facts, hand_made):
    assert ask("DP603", written(make_measured, hand_made, share=0.09), facts(make_facts, **WRITTEN)) == []


def test_without_a_detailed_window_it_is_skipped_where_the_step_takes_long(ask, make_measured, make_facts, hand_made):
    run = make_measured(device="cpu", phases=hand_made.phases(0.3, 0.4, 0.3))
    with pytest.raises(Missing):
        ask("DP603", run, facts(make_facts, **WRITTEN))
    assert ask("DP603", make_measured(device="cpu", phases=hand_made.phases(0.5, 0.41, 0.09)), facts(make_facts)) == []
