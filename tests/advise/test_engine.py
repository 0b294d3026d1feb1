import sys
import threading
import time

import pytest

from dptune import __version__
from dptune.advice import Advice, Change, Report, RunSummary
from dptune.advise import engine, rule_calls
from dptune.advise.packs import Survey
from dptune.config import Settings
from dptune.errors import UsageError
from dptune.finding import Finding
from dptune.measured import Missing
from dptune.rule import Threshold
from dptune.runfile.communication import DdpFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.record import Ending, RunRecord

ABOUT = RunSummary(sources=["trace.json"])
SHARE = Threshold("share", 0.1, "made up")


@pytest.fixture
def assemble(make_measured, survey_of):
    def report(*rules, settings=None, measured=None, facts=(), findings=(), problems=()):
        installed = Survey(survey_of(*rules).rules, list(problems))
        return engine.assemble(ABOUT, facts, findings, measured or make_measured(), settings or Settings(), installed)

    return report


def says(make_advice, *codes):
    return lambda run: iter([make_advice(code) for code in codes])


def quiet(run):
    return iter(())


def test_advice_is_in_the_report_and_ranked(assemble, make_rule, make_advice):
    report = assemble(
        make_rule("XX101", lambda run: iter([make_advice("XX101", high=0.1)])),
        make_rule("XX102", lambda run: iter([make_advice("XX102", high=0.3)])),
        make_rule("XX103", quiet),
    )
    assert [one.rule for one in report.advice] == ["XX102", "XX101"]
    assert (report.quiet, report.skipped) == (["XX103"], [])
    assert report.dptune == __version__
    assert report.headline.next.startswith("XX102: Use `DataLoader(")
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_the_impact_in_a_report_follows_from_gain_and_confidence(assemble, make_rule, make_advice):
    """Half of an upper bound of 20 % is 10 %; a rule's impact of a risk stays what it is."""
    time = make_advice("XX101", high=0.2, impact="high")
    risk = make_advice("XX102", kind="risk", saves=None, impact="high", confidence="low")
    report = assemble(make_rule("XX101", lambda run: iter([time])), make_rule("XX102", lambda run: iter([risk])))
    assert [(one.rule, one.impact) for one in report.advice] == [("XX101", "medium"), ("XX102", "high")]


@pytest.mark.parametrize("kind", ["time", "risk"])
def test_low_confidence_comes_last_whatever_it_saves(assemble, make_rule, make_advice, kind):
    unsure = make_advice("XX101", high=0.5, impact="high", confidence="low")
    sure = make_advice("XX102", high=0.05, impact="low", kind=kind, saves=make_advice().saves)
    report = assemble(make_rule("XX101", lambda run: iter([unsure])), make_rule("XX102", lambda run: iter([sure])))
    assert [one.rule for one in report.advice] == ["XX102", "XX101"]
    assert report.headline.rule == "XX102"
    assert report.headline.next.startswith("XX102: ")


def test_what_is_predicted_to_save_nothing_is_not_advised(assemble, make_rule, make_advice):
    perhaps = make_advice("XX101").saves.model_copy(update={"basis": "replayed", "predicted_share": 0.04})
    surely = perhaps.model_copy(update={"low_share": 0.001, "low_ms": 0.01})
    found = [make_advice("XX101", saves=perhaps), make_advice("XX102", saves=surely, changes=[])]
    report = assemble(*(make_rule(one.rule, lambda run, one=one: iter([one])) for one in found))
    assert [one.rule for one in report.advice] == ["XX102"]
    (skipped,) = report.skipped
    assert (skipped.rule, skipped.set_aside) == ("XX101", True)
    assert skipped.reason == "the predicted saving, 0 to 10.0 % of a step, includes zero"
    assert "could not run" not in report.headline.why


def test_a_rule_whose_advice_was_dropped_is_one_that_ran(assemble, make_rule, make_advice):
    perhaps = make_advice().saves.model_copy(update={"basis": "replayed", "predicted_share": 0.04})
    report = assemble(make_rule("XX101", lambda run: iter([make_advice(saves=perhaps)])))
    assert report.advice == []
    assert "No rules were selected" not in report.headline.why
    assert report.headline.next == "Nothing to change. Record again after the next change to the script."


@pytest.mark.parametrize("settings", [Settings(select=()), Settings(ignore=("XX",))])
def test_a_run_that_no_rule_was_asked_of_says_so(assemble, make_rule, settings):
    report = assemble(make_rule("XX101", quiet), make_rule("XX102", quiet), settings=settings)
    told = [one.text for one in report.trust.findings if one.code == "no-rule-selected"]
    assert told == ["no rule is selected: `select` and `ignore` in the configuration leave none of 2"]
    assert report.headline.why.endswith(" No rules were selected.")
    assert "no-rule-selected" not in [one.code for one in assemble(make_rule("XX101", quiet)).trust.findings]


def test_a_rule_that_comes_last_sees_what_the_others_advise(assemble, make_rule, make_advice):
    seen = {}

    def looks(code):
        def check(run):
            seen[code] = [one.rule for one in run.advised], run.explained("train.py:88"), run.explained("train.py:8")
            return iter(())

        return check

    names = make_rule(
        "XX102", lambda run: iter([make_advice("XX102", title="save (train.py:88) takes 9 %")]), ours=False
    )
    last = make_rule("XX101", looks("XX101"), last=True, ours=True)
    assemble(last, names, make_rule("XX103", looks("XX103")))
    assert seen == {"XX101": (["XX102"], True, False), "XX103": ([], False, False)}


def test_a_missing_figure_skips_the_rule_with_the_reason(assemble, make_rule, make_measured):
    measured = make_measured(wait_share=None)
    report = assemble(
        make_rule("XX101", lambda run: iter([run.measured.input.wait_share])), make_rule("XX102"), measured=measured
    )
    assert [(one.rule, one.reason) for one in report.skipped] == [("XX101", "wait_share was not measured")]
    assert [one.rule for one in report.advice] == ["XX102"]
    assert report.quiet == []
    assert "rule-failed" not in [finding.code for finding in report.trust.findings]


def test_missing_after_some_advice_skips_the_rule(assemble, make_rule, make_advice):
    def check(run):
        yield make_advice("XX101")
        raise Missing("the rest is not known")

    report = assemble(make_rule("XX101", check))
    assert report.advice == []
    assert report.skipped[0].reason == "the rest is not known"


def fails(run):
    yield from {}["no such key"]


def leaves(run):
    print("what a rule prints is no part of the report")
    sys.exit(0)


def interrupts(run):
    raise KeyboardInterrupt


class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def wordless(run):
    raise WordlessError


def endless(run):
    advice = Advice(
        rule="XX101",
        slug="made-up",
        kind="risk",
        impact="low",
        title="once more",
        why="",
        changes=[],
        confidence="low",
        evidence=[],
        numerics="same",
        fingerprint="XX101",
    )
    while True:
        yield advice


def made_past_its_checks(run):
    yield Advice.model_construct(rule="XX101", title=5)


@pytest.mark.parametrize(
    ("check", "named"),
    [
        (fails, "the rule failed: KeyError: 'no such key'"),
        (leaves, "the rule failed: SystemExit: 0"),
        (interrupts, "the rule failed: KeyboardInterrupt"),
        (wordless, "the rule failed: WordlessError"),
        (made_past_its_checks, "the rule failed: ValidationError"),
        (lambda run: None, "the rule failed: TypeError"),
        (endless, "the rule failed: ValueError: it yielded more than 1,000 recommendations"),
        (lambda run: iter(["advice"]), "the rule failed: TypeError: it yielded str, not Advice"),
    ],
)
def test_a_rule_that_fails_is_named_and_the_others_run(assemble, make_rule, check, named):
    report = assemble(make_rule("XX101", check), make_rule("XX102"))
    assert [one.rule for one in report.advice] == ["XX102"]
    assert report.skipped[0].rule == "XX101"
    assert named in report.skipped[0].reason
    (finding,) = [finding for finding in report.trust.findings if finding.code == "rule-failed"]
    assert named in finding.text
    assert "made-up 1.0" in finding.text
    assert report.trust.level == "sound"


def test_facts_that_make_a_rule_of_ours_advise_without_end_are_named(assemble, make_rule):
    report = assemble(make_rule("XX101", endless, ours=True))
    assert report.skipped[0].reason == "the recorded facts yield more than 1,000 recommendations, which no run has"
    assert not [finding for finding in report.trust.findings if finding.code == "rule-failed"]


def test_ctrl_c_in_a_rule_of_ours_ends_the_command(assemble, make_rule):
    with pytest.raises(KeyboardInterrupt):
        assemble(make_rule("XX101", interrupts, ours=True))


@pytest.mark.parametrize("missing", [Missing(), Missing(""), Missing(WordlessError())])
def test_a_missing_figure_without_a_reason_skips_the_rule(assemble, make_rule, missing):
    def check(run):
        raise missing

    report = assemble(make_rule("XX101", check), make_rule("XX102"))
    assert [one.reason for one in report.skipped] == ["a figure is missing, and the rule does not name it"]
    assert [one.rule for one in report.advice] == ["XX102"]


def test_a_rule_that_does_not_end_is_left_and_ended(assemble, make_rule, monkeypatch):
    threads = []

    def check(run):
        threads.append(threading.current_thread())
        while True:
            pass

    monkeypatch.setattr(rule_calls, "LIMIT_S", 0.1)
    report = assemble(make_rule("XX101", check), make_rule("XX102", ours=True))  # which has no limit
    assert [(one.rule, one.reason) for one in report.skipped] == [("XX101", "it did not end within 0.1 s")]
    assert [one.rule for one in report.advice] == ["XX102"]
    (finding,) = [finding for finding in report.trust.findings if finding.code == "rule-failed"]
    assert finding.text == "XX101 (made-up 1.0) could not run: it did not end within 0.1 s"
    for thread in threads:  # on a busy machine it may not have come so far
        thread.join(300)
        assert not thread.is_alive(), "it goes on computing beside all that comes after it"


def test_ctrl_c_while_its_thread_starts_ends_a_rule_too(assemble, make_rule, monkeypatch):
    """The rule may run, and print, before `start` returns; on a busy machine for long."""
    threads, begun, start = [], threading.Event(), threading.Thread.start

    def check(run):
        threads.append(threading.current_thread())
        begun.set()
        while True:
            pass

    def interrupted(thread):
        start(thread)
        begun.wait(300)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(rule_calls, "END_S", 300)
    with pytest.raises(KeyboardInterrupt):
        assemble(make_rule("XX101", check))
    assert [thread.is_alive() for thread in threads] == [False]


def test_a_rule_that_sleeps_is_left_off_the_main_thread_too(assemble, make_rule, monkeypatch):
    woken, reports = threading.Event(), []
    monkeypatch.setattr(rule_calls, "LIMIT_S", 0.1)
    monkeypatch.setattr(rule_calls, "END_S", 0.1)
    rules = make_rule("XX101", lambda run: iter([woken.wait(300)])), make_rule("XX102", ours=True)
    thread = threading.Thread(target=lambda: reports.append(assemble(*rules)), daemon=True)
    thread.start()
    thread.join(300)
    woken.set()
    assert [[one.rule for one in report.skipped] for report in reports] == [["XX101"]]


def test_rules_of_ours_have_all_the_time_they_take(assemble, make_rule, make_advice, monkeypatch):
    def check(run):
        time.sleep(0.1)  # of a step model that is built, say
        yield make_advice()

    monkeypatch.setattr(rule_calls, "LIMIT_S", 0.01)
    assert [one.rule for one in assemble(make_rule("XX101", check, ours=True)).advice] == ["XX101"]


def test_what_a_rule_does_to_figures_and_facts_no_other_sees(
    assemble, make_rule, make_advice, make_measured, make_facts
):
    def clears(run):
        run.measured.ranks.clear()
        run.measured.missing["account"] = "gone"
        run.facts[0].ddp.clear()
        run.facts.clear()
        return iter(())

    def looks(run):
        yield make_advice("XX102", title=f"{len(run.measured.ranks)} ranks, {[len(one.ddp) for one in run.facts]} DDP")

    measured, facts = make_measured(), [make_facts(ddp=[DdpFacts("Net", "train.py:31")])]
    rules = make_rule("XX101", clears), make_rule("XX102", looks)
    report = assemble(*rules, measured=measured, facts=facts)
    assert [one.title for one in report.advice] == ["2 ranks, [1] DDP"]
    assert (len(report.measured.ranks), len(facts[0].ddp), "account" in report.measured.missing) == (2, 1, False)


def test_a_rule_cannot_speak_for_another(assemble, make_rule, make_advice):
    report = assemble(make_rule("XX101", says(make_advice, "XX999")))
    assert report.advice == []
    assert "another rule, XX999" in report.skipped[0].reason


def test_a_rule_cannot_take_anothers_card(assemble, make_rule, make_advice):
    report = assemble(
        make_rule("XX101", says(make_advice, "XX101")),
        make_rule("XX102", lambda run: iter([make_advice("XX102", fingerprint="XX101:subject")])),
    )
    assert [one.rule for one in report.advice] == ["XX101"]
    assert "'XX101:subject', does not start with XX102" in report.skipped[0].reason


def test_a_rule_cannot_propose_what_the_run_has_already(assemble, make_rule, make_advice, make_facts):
    def says_of(run):
        yield make_advice("XX101", changes=[Change(knob="loader.num_workers", now=None, then=0)])

    drawn = [LoaderFacts(num_workers=0, batches_drawn=9)]
    report = assemble(make_rule("XX101", says_of), facts=[make_facts(loaders=drawn)])
    assert report.advice == []
    assert "it sets loader.num_workers to 0, which the run has already" in report.skipped[0].reason
    assert assemble(make_rule("XX101", says_of), facts=[make_facts()]).advice  # where the facts do not tell


def test_the_users_thresholds_reach_the_rule(assemble, make_rule, make_advice):
    def check(run):
        yield make_advice("XX101", title=f"limit {run.limit(SHARE)}")

    rule = make_rule("XX101", check, thresholds=(SHARE,))
    assert assemble(rule).advice[0].title == "limit 0.1"
    settings = Settings(rules={"XX101": {"share": 0.25}})
    assert assemble(rule, settings=settings).advice[0].title == "limit 0.25"


def test_rules_that_are_not_to_run_do_not(assemble, make_rule):
    rules = make_rule("XX101", fails), make_rule("XX102"), make_rule("YY101", fails, preview=True)
    report = assemble(*rules, settings=Settings(ignore=["XX101"]))
    assert [one.rule for one in report.advice] == ["XX102"]
    assert report.skipped == []


def test_a_code_that_no_rule_has_is_an_error(assemble, make_rule):
    with pytest.raises(UsageError) as raised:
        assemble(make_rule("XX101"), settings=Settings(ignore=["XX201"]), problems=["acme is left out: broken"])
    assert "XX201" in raised.value.message
    assert "did you mean 'XX101'?" in raised.value.hint
    assert "acme is left out: broken" in raised.value.hint


def test_duplicates_are_merged_and_contradictions_settled(assemble, make_rule, make_advice):
    def other(run):
        change = make_advice().changes[0].model_copy(update={"then": 8})
        yield make_advice("XX102", high=0.05, changes=[change])

    report = assemble(make_rule("XX101", says(make_advice, "XX101", "XX101")), make_rule("XX102", other))
    assert [one.rule for one in report.advice] == ["XX101"]
    assert [one.rule for one in report.skipped] == ["XX102"]


def test_advice_is_no_surer_than_the_run(assemble, make_rule, make_measured):
    partial = [Finding(code="x", level="partial", text="a part")]
    assert assemble(make_rule()).advice[0].confidence == "high"
    assert assemble(make_rule(), findings=partial).advice[0].confidence == "medium"


def test_no_advice_is_given_about_a_run_that_cannot_be_judged(assemble, make_rule, make_measured):
    report = assemble(make_rule(), measured=make_measured(steps=2))
    assert (report.trust.level, report.advice, report.quiet) == ("unjudgeable", [], [])
    (skipped,) = report.skipped
    assert "not enough reliable data for a verdict: only 2 steady steps were recorded" in skipped.reason


def test_packs_that_did_not_load_are_among_the_findings(assemble, make_rule):
    report = assemble(make_rule(), problems=["acme is left out: broken"])
    assert "acme is left out: broken" in [finding.text for finding in report.trust.findings]
    assert report.trust.level == "sound"


class RecordedRun:
    """What the engine asks of a run."""

    def __init__(self, facts, record=None):
        self.facts, self.record = facts, record
        self.findings = [Finding(code="x", level="partial", text="rank 2 is missing")]
        self.rank_basis, self.sources = "file names", ["rank-00000.trace.json.gz"]


def test_the_report_of_a_recorded_run(make_measured, make_facts):
    """Ranks in order: rules read the facts of the lowest."""
    ddp = DdpFacts("Net", "train.py:31")
    record = RunRecord(command=["train.py", "--name", "a b"], recorded="2026-11-20T23:31:08", ending=Ending("complete"))
    facts = {1: make_facts(rank=1, ended="complete"), 0: make_facts(ddp=[ddp], torch="2.13.0", ended="complete")}
    run = RecordedRun(facts, record)
    report = engine.build_report(run, make_measured(exposed_share=0.6, synchronised=4), Settings(select=["DP102"]))
    assert [one.rule for one in report.advice] == ["DP102"]
    assert report.run == RunSummary(
        sources=["rank-00000.trace.json.gz"],
        command="train.py --name 'a b'",
        recorded="2026-11-20T23:31:08",
        how_it_ended="complete",
        torch="2.13.0",
        rank_basis="file names",
    )
    assert report.trust.level == "partial"


def test_a_step_model_that_fails_takes_no_advice_with_it(make_measured, make_facts):
    """The run has no traces: the model falls over that, the rule is left with its bound, and the report says so."""
    run = RecordedRun({0: make_facts(ddp=[DdpFacts("Net", "train.py:31")], ended="complete")})
    measured = make_measured(exposed_share=0.6, synchronised=4, device="cpu")
    report = engine.build_report(run, measured, Settings(select=["DP102"]))
    assert [one.saves.basis for one in report.advice] == ["bound"]
    (failed,) = [finding for finding in report.trust.findings if finding.code == "model-failed"]
    assert failed.text.startswith("the step model failed: AttributeError")


def test_the_report_of_a_foreign_trace(make_measured):
    report = engine.build_report(RecordedRun({}), make_measured(), Settings())
    assert (report.run.command, report.run.recorded, report.run.how_it_ended, report.run.torch) == (None,) * 4
    unrecorded = {one.rule for one in report.skipped if "needs a recording by `dptune profile`" in one.reason}
    assert {"DP102", "DP103", "DP301", "DP602"} <= unrecorded
    needing = {one.rule for one in report.skipped if one.needs == "recording"}
    assert {"DP301", "DP602"} <= needing
    assert not needing & {"DP102", "DP103"}  # which a trace can answer
    could_not = sum(one.could_not_run for one in report.skipped)
    recordings = sum(one.needs_recording for one in report.skipped)
    assert recordings == len(needing | unrecorded)
    assert f"; {recordings} need a recording by `dptune profile`; {could_not} could not." in report.headline.why


def test_a_rule_that_needs_a_recording_could_not_run_where_there_is_one(make_measured, make_facts):
    facts = {0: make_facts(ended="complete")}
    report = engine.build_report(RecordedRun(facts), make_measured(), Settings())
    assert {one.rule for one in report.skipped if one.could_not_run} >= {"DP703"}
    assert not [one for one in report.skipped if one.needs]
    assert {"DP101", "DP401", "DP501"} <= set(report.quiet)
