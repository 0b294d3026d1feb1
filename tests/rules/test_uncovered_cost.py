import pytest

from dptune.advice import Advice, Evidence
from dptune.measured import CodeSite, Missing, UserCodeFigures
from dptune.rule import RunView
from dptune.runfile.window import SampledFacts, Window
from dptune.testing import account, facts_of, measured_run

from .conftest import RULES


def site(share=0.43, **changed):
    known = {
        "name": "save_checkpoint",
        "at": "train.py:88",
        "phase": "loop",
        "part": False,
        "mostly": "save",
        "rank": 0,
        "ranks": [0],
        "cost_ns": int(share * 10_000_000),
        "share": share,
    }
    return CodeSite(**{**known, **changed})


def found(*sites, basis="untraced"):
    return measured_run(user_code=UserCodeFigures(ranks=[0, 1], steps=2, basis=basis, sites=list(sites)))


def ask(measured, advised=()):
    return list(RULES["DP901"].check(RunView(measured, [], advised=advised)))


def with_samples(sample):
    """Of 100 samples, those that are not in this one are in the backward pass."""
    rest = SampledFacts(["main (train.py:61)"], "backward", looks=100 - sample.looks, steps=[0], spent_ns=[94])
    return facts_of(windows=[Window("untraced", 3, [100], sampled=[rest, sample])])


def other(rule="DP105", kind="time", **changed):
    known = {"slug": "x", "impact": "low", "title": "t", "why": "w", "confidence": "low", "numerics": "same"}
    known |= {"changes": [], "evidence": []}
    saves = RunView(measured_run(), []).bound(0, 0.1, "h") if kind == "time" else None
    return Advice(**{**known, "rule": rule, "kind": kind, "saves": saves, "fingerprint": rule, **changed})


def test_function_line_share_and_rank():
    (advice,) = ask(found(site()))
    assert advice.title == "`save_checkpoint` (train.py:88) takes 43 % of the step on rank 0"
    assert advice.why == (
        "Training waits for it 4.30 ms in each step, most of it in `save`. No other rule explains this time."
    )
    assert (advice.impact, advice.confidence, advice.saves.high_share) == ("medium", "medium", pytest.approx(0.43))


def in_form(form, *path):
    """Facts of a rank that was found in lines of this form of the last function of the path."""
    sampled = SampledFacts(["main (train.py:61)", *path], looks=9, spent_ns=[9], form=form, form_at=len(path))
    return [facts_of(windows=[Window("untraced", 3, [20] * 5, sampled=[sampled])])]


@pytest.mark.parametrize(
    ("changed", "facts", "remedy"),
    [
        ({}, [], "`save_checkpoint` (train.py:88): call it every N steps or once per epoch, not in each step."),
        ({"name": "augment", "runs": 128.0}, [], "`augment` (train.py:88) runs 128 times per step: use one call for"),
        ({"name": "mix", "operator": "aten::add", "operator_calls": 40.0}, [], "calls aten::add 40 times per step"),
        ({"name": "mix", "operator": "aten::add", "operator_calls": 4.0}, [], ""),
        ({"name": "area"}, in_form("sorting", "area (train.py:90)"), "train.py:90: Python sorts all values"),
        (
            {"name": "main", "part": True, "mostly": "tensor", "at": "train.py:50"},
            in_form("tensor"),
            "train.py:61: Values of Python lists are converted one by one",
        ),
        ({"name": "main", "part": True, "mostly": "tensor", "at": "train.py:50"}, [], ""),
    ],
)
def test_the_remedy_by_the_form_of_the_line_or_by_how_often_it_runs(changed, facts, remedy):
    (advice,) = RULES["DP901"].check(RunView(found(site(ranks=[0, 1], **changed)), facts))
    assert remedy in advice.remedy
    assert bool(remedy) == bool(advice.remedy)


def test_what_a_library_calls_in_its_own_loop_is_named_from_a_tenth_of_the_step():
    known = {"name": "main", "part": True, "mostly": "floating_point_ops", "at": "train.py:61", "ranks": [0, 1]}
    assert ask(found(site(0.09, library="transformers", **known))) == []
    assert len(ask(found(site(0.09, **known)))) == 1  # the script calls it
    (advice,) = ask(found(site(0.12, library="transformers", **known)))
    assert advice.title == "`floating_point_ops` of transformers in `main` (train.py:61) takes 12 % of the step"
    assert advice.why == (
        "Training waits for it 1.20 ms in each step. transformers calls it in its own training loop, not the script: "
        "look for a setting of transformers that turns it off or runs it less often."
    )


def test_what_the_loop_itself_calls_and_a_function_in_forward_passes():
    advice = ask(
        found(
            site(0.2, name="main", part=True, mostly="sleep", at="train.py:61", ranks=[0, 1]),
            site(0.06, name="forward", phase="forward", ranks=[0, 1]),
        )
    )
    assert [one.title for one in advice] == [
        "`sleep` in `main` (train.py:61) takes 20 % of the step",
        "`forward` (train.py:88) takes 6 % of the step in forward passes",
    ]


@pytest.mark.parametrize(
    ("through", "share"),
    [
        ("accelerate.Accelerator.unwrap_model", 0.06),  # 6 of 100 samples are in it
        ("accelerate.Accelerator._unwrap", 0.2),  # samples have another name for it: they do not limit the share
    ],
)
def test_the_share_of_a_library_function_is_that_of_the_samples_in_it(through, share):
    facts = with_samples(SampledFacts(["main (train.py:64)"], "", through, looks=6, steps=[0], spent_ns=[6]))
    measured = found(site(0.2, name="main", part=True, mostly="unwrap_model", at="train.py:50"))
    (advice,) = RULES["DP901"].check(RunView(measured, [facts]))
    assert advice.title.endswith(f"takes {100 * share:.0f} % of the step on rank 0")


@pytest.mark.parametrize(
    ("traced", "looks", "share"), [(0.6, 40, 0.4), (0.3, 40, 0.3), (0.06, 2, None), (0.06, 3, 0.03)]
)
def test_the_share_of_samples_where_the_trace_shows_more(traced, looks, share):
    """Of 100 samples."""
    facts = with_samples(SampledFacts(["main (train.py:61)", "draw (train.py:90)"], looks=looks, steps=[0]))
    advice = list(RULES["DP901"].check(RunView(found(site(traced, name="draw", mostly="draw")), [facts])))
    assert [one.title for one in advice] == (
        [] if share is None else [f"`draw` (train.py:90) takes {100 * share:.0f} % of the step on rank 0"]
    )
    if share is not None:
        assert advice[0].evidence[0].value == pytest.approx(10 * share)  # of a step of 10 ms


@pytest.mark.parametrize(("hottest", "quiet"), [("train.py", True), ("net.py", False)])
def test_a_method_that_work_between_steps_names_with_its_class(hottest, quiet):
    evidence = [Evidence(label="most of it in", value=f"Area.compute ({hottest}:90)")]
    named = other("DP609", title="`Area.compute` (train.py:40)", evidence=evidence, fingerprint="DP609:Area.compute")
    measured = found(site(name="compute", mostly="tensor operators"))
    assert (ask(measured, [named]) == []) == quiet


@pytest.mark.parametrize(
    ("title", "quiet"),
    [
        ("`Clips.signal` (train.py:19)", True),
        ("`Clips.signal` (net.py:19)", False),
        ("Collectives hold up 15 % of a step: Radio.signal (train.py:64)", True),
        ("`signals` (train.py:19)", False),
    ],
)
def test_a_function_that_mostly_calls_a_method_that_another_finding_names(title, quiet):
    named = other("DP625", title=title, fingerprint="DP625:Clips.signal")
    assert (ask(found(site(name="take", mostly="signal")), [named]) == []) == quiet
    assert (ask(found(site(name="main", part=True, mostly="signal")), [named]) == []) == quiet


def test_quiet_below_the_threshold():
    assert ask(found(site(0.04))) == []


@pytest.mark.parametrize(
    "named",
    [
        {"title": "Collectives hold up 9 %: save_checkpoint (train.py:99)"},
        {"evidence": [Evidence(label="at", value="train.py:88")]},
        {"evidence": [Evidence(label="save at train.py:90", value=3.0)]},
    ],
)
def test_quiet_where_another_rule_names_it(named):
    assert ask(found(site()), [other(**named)]) == []


def test_a_risk_or_a_longer_name_explains_no_time():
    beside = [other(kind="risk", title="save_checkpoint"), other(title="save_checkpoints at train.py:881")]
    assert len(ask(found(site()), beside)) == 1


def test_what_a_loader_runs_is_explained_by_the_rules_on_loaders():
    drawing = found(site(phase="input"))
    assert len(ask(drawing)) == 1
    assert ask(drawing, [other("DP501")]) == []


def test_without_stacks_it_is_quiet_only_where_the_script_does_little():
    assert ask(measured_run()) == []
    idle = account(0.1, 0.1).model_copy(update={"compute_ns": 7_000_000, "host_idle_ns": 2_000_000})
    with pytest.raises(Missing, match="user_code"):
        ask(measured_run(spent=[idle]))


def test_figures_of_traced_steps_are_less_sure():
    (advice,) = ask(found(site(), basis="traced"))
    assert advice.confidence == "low"


def test_collecting_experience_is_part_of_the_method():
    rollout, _ = ask(found(site(name="Agent.rollout"), site(0.2)))
    assert (rollout.impact, rollout.confidence) == ("low", "low")
    (inline,) = ask(found(site(name="main", part=True, mostly="play_episode")))
    assert (inline.impact, inline.confidence) == ("low", "low")


def test_clipping_gradients_is_part_of_the_method():
    clips, other_call = ask(
        found(
            site(0.11, name="main", part=True, mostly="clip_grad_norm_"),
            site(0.11, name="main", part=True, mostly="clip_weights"),
        )
    )
    assert (clips.impact, clips.confidence) == ("low", "low")
    assert "leave it unchanged" in clips.watch
    assert (other_call.impact, other_call.confidence) == ("medium", "medium")


def test_tensor_operators_of_the_training_loop_itself_are_training():
    main = {"name": "main", "at": "train.py:61", "part": True, "mostly": "tensor operators"}
    assert ask(found(site(0.2, **main, operator="aten::index", operator_calls=3))) == []
    (advice,) = ask(found(site(0.2, **main, operator="aten::select", operator_calls=16)))  # a loop over samples
    assert advice.impact == "medium"
    main["mostly"] = "Python code"
    assert len(ask(found(site(0.2, **main, operator="aten::index", operator_calls=3)))) == 1


@pytest.mark.parametrize(
    ("changed", "impact", "confidence"),
    [
        ({"name": "sample"}, "low", "low"),
        ({"name": "token_accuracy"}, "medium", "medium"),  # need not be done in each step
        ({"name": "sample", "operator_calls": 16}, "medium", "medium"),
        ({"name": "sample", "operator_share": 0.7}, "medium", "medium"),
        ({"name": "sample", "phase": "input"}, "medium", "medium"),  # a worker could do it
    ],
)
def test_a_function_of_few_tensor_operators_may_be_part_of_the_method(changed, impact, confidence):
    few = {"mostly": "aten::gather", "operator": "aten::gather", "operator_calls": 2, "operator_share": 0.9}
    (advice,) = ask(found(site(0.2, **{**few, **changed})))
    assert (advice.impact, advice.confidence) == (impact, confidence)
    assert ("part of the method" in advice.watch) == (impact == "low")


def test_a_second_function_is_named_as_well():
    errors = site(0.06, name="edit_distance", at="train.py:66", mostly="Python code")
    assert [one.title.split("`")[1] for one in ask(found(site(), errors))] == ["save_checkpoint", "edit_distance"]
    first = other(rule="DP610", title="`save_checkpoint` (train.py:90) calls aten::select 2,002 times")
    assert [one.title.split("`")[1] for one in ask(found(site(), errors), [first])] == ["edit_distance"]


def test_what_runs_in_a_call_for_each_row_is_explained():
    """A function that is on the stack at the line of operator-loops in most of its samples."""
    way = ["collect (train.py:81)", "each (train.py:69)", "Policy.act (train.py:65)"]
    places = [SampledFacts(way, looks=9, spent_ns=[9]), SampledFacts([way[0], way[2]], looks=2, spent_ns=[2])]
    facts = [facts_of(windows=[Window("untraced", 3, [20] * 5, sampled=places)])]
    measured = found(site(name="act", at="train.py:61", part=True, mostly="log_prob"))

    def told(where):
        advised = (other("DP610", fingerprint=f"DP610:rows:{where}"),)
        return list(RULES["DP901"].check(RunView(measured, facts, advised=advised)))

    assert told("train.py:69") == []
    assert len(told("train.py:70")) == 1


@pytest.mark.parametrize(("looks", "through", "named"), [(2, "accelerate", 0), (30, "accelerate", 1), (2, "other", 0)])
def test_a_librarys_function_takes_no_more_than_all_calls_of_the_library(looks, through, named):
    """Samples have the function that the script calls: in a trace it calls another, which the profiler slows."""
    part = site(0.2, name="main", at="train.py:5", part=True, mostly="extract_model", library="accelerate")
    sampled = SampledFacts(["main (train.py:48)"], through=f"{through}.unwrap_model", looks=looks, spent_ns=[looks])
    advised = list(RULES["DP901"].check(RunView(found(part), [with_samples(sampled)])))
    assert len(advised) == named


def test_few_samples_limit_a_librarys_function_too():
    """One of 40 is in the library: at most 10 % of the step, and not the whole of three traced steps."""
    part = site(1.0, name="main", at="train.py:5", part=True, mostly="_call_callback_hooks", library="lightning")
    sampled = SampledFacts(["main (train.py:48)"], through="lightning.Trainer.fit", looks=1, spent_ns=[1])
    rest = SampledFacts(["main (train.py:61)"], "backward", looks=39, steps=[0], spent_ns=[39])
    facts = facts_of(windows=[Window("untraced", 3, [40], sampled=[rest, sampled])])
    assert list(RULES["DP901"].check(RunView(found(part), [facts]))) == []
    assert len(list(RULES["DP901"].check(RunView(found(part), [])))) == 1


@pytest.mark.parametrize(
    ("rule", "file", "named"), [("DP625", "train.py", 0), ("DP625", "a.py", 1), ("DP609", "train.py", 1)]
)
def test_a_method_that_same_results_names_with_its_class(rule, file, named):
    advised = other(rule, title=f"`Front.mel_filters` ({file}:20) computes the same results in every step")
    assert len(ask(found(site(name="mel_filters", mostly="Python code")), [advised])) == named


@pytest.mark.parametrize(
    ("part", "mostly", "function", "named"),
    [
        (False, "__iter__", "real", 0),
        (True, "Python code", "real", 0),
        (False, "Python code", "real", 1),
        (False, "__iter__", "fake", 1),
    ],
)
def test_a_function_that_mostly_starts_iterators_is_explained_by_new_iterators(part, mostly, function, named):
    advised = other("DP507", title=f"`Workshop.{function}` (train.py:80)", fingerprint=f"DP507:train.py:{function}")
    assert len(ask(found(site(name="real", part=part, mostly=mostly)), [advised])) == named
