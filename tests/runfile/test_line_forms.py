"""The form of the lines in which a function spends its time, from stack samples."""

from dptune.runfile.line_forms import line_form
from dptune.runfile.window import SampledFacts, Window
from dptune.testing import facts_of

GETITEM, BANK = "Words.__getitem__ (data.py:22)", "bank (data.py:10)"


def sample(ms, path, form="", form_at=0, looks=5):
    return SampledFacts(path, looks=looks, steps=[0], spent_ns=[ms * 1_000_000], form=form, form_at=form_at)


def facts(*samples):
    return [facts_of(windows=[Window("untraced", 3, [10_000_000] * 5, sampled=list(samples))])]


def test_the_line_and_the_function_that_it_calls():
    found = line_form(
        facts(
            sample(40, ["main (train.py:9)", GETITEM, BANK], "constants", 1),
            sample(50, ["main (train.py:9)", GETITEM]),
            sample(90, ["main (train.py:9)"], "copy", 0),
        ),
        "Words.__getitem__",
        "data.py",
    )
    assert (found.form, found.at, found.called) == ("constants", "data.py:22", "bank")
    assert found.share == 40 / 90


def test_a_form_above_the_function_a_rare_one_and_one_seen_too_seldom_do_not_count():
    above = sample(40, ["main (train.py:9)", GETITEM, BANK], "constants", 1)
    assert line_form(facts(above), "bank", "data.py") is None
    rare = [sample(20, [GETITEM], "rows", 0), sample(80, [GETITEM])]
    assert line_form(facts(*rare), "__getitem__", "data.py") is None
    assert line_form(facts(sample(80, [GETITEM], "rows", 0, looks=2)), "__getitem__", "data.py") is None


def test_of_the_training_loop_only_lines_of_its_own_count():
    both = facts(
        sample(30, ["main (train.py:9)"], "tensor", 0), sample(90, ["main (train.py:12)", BANK], "elements", 1)
    )
    assert line_form(both, "main", "train.py", "tensor").at == "train.py:9"
    assert line_form(both, "main", "train.py", "elements") is None  # in what it calls
    assert line_form(both, "main", "train.py").form == "elements"
