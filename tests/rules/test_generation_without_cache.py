import pytest

from dptune.measured import Missing, UncachedGeneration
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES


def generation(saved=0.4, **more):
    place = {"name": "tell", "at": "tell.py:47", "library": "transformers", "through": "generate", **more}
    sizes = {"calls": 14.0, "shortest": 40, "longest": 53}
    return UncachedGeneration(
        **place, **sizes, module="GPT2LMHeadModel", rank=0, cost_ns=4_500_000, share=0.45, saved_share=saved
    )


def ask(*found):
    return list(RULES["DP620"].check(RunView(measured_run(generations=list(found)), [])))


def test_a_library_that_generates():
    (advice,) = ask(generation())
    assert advice.title == (
        "`generate` in `tell` (tell.py:47) runs `GPT2LMHeadModel` on the whole sequence again for each new position, "
        "45 % of the step: pass use_cache=True"
    )
    assert "grows from 40 to 53 positions" in advice.why
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.4)
    assert (advice.impact, advice.confidence) == ("high", "medium")


def test_a_loop_of_the_script():
    (advice,) = ask(generation(library="", through=""))
    assert advice.title.startswith("`tell` (tell.py:47) runs `GPT2LMHeadModel` on the whole sequence")
    assert advice.title.endswith("cache keys and values, and pass only the new position")


def test_quiet_below_five_percent():
    assert ask(generation(0.049)) == []
    assert [one.impact for one in ask(generation(0.05))] == ["medium"]


@pytest.mark.parametrize(("idle", "asks"), [(0.5, True), (0.0, False)])
def test_without_stacks_it_is_skipped_only_where_the_host_takes_time(make_measured, idle, asks):
    measured = make_measured()
    account = measured.account.model_copy(update={"host_idle_ns": round(idle * measured.account.window_ns)})
    view = RunView(measured.model_copy(update={"account": account}), [])
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP620"].check(view))
    else:
        assert list(RULES["DP620"].check(view)) == []
