import pytest

from dptune.measured import CompilingFigures, Missing
from dptune.runfile.compilation import CompileFacts, RecompileFacts
from dptune.runfile.window import Window

REASON = "0/3: tensor 'ids' size mismatch at index 1. expected 187, actual 366"


def recompiling(compile_ms, took_ms=(10, 10, 10, 10), reason=REASON):
    """Facts of a rank that compiled so long in each step; steps of so many ms."""
    window = Window("untraced", 3, [ms * 10**6 for ms in took_ms], compile_ns=[ms * 10**6 for ms in compile_ms])
    again = [
        RecompileFacts("forward", None, "L['self'] changed", 9),
        RecompileFacts("encode", "model.py:12", reason, 4),
    ]
    return {"windows": [window], "compiled": CompileFacts(["train.py:28"], recompiles=again)}


def test_the_function_the_guard_and_the_time(ask, make_measured, make_facts):
    """Rank 1 compiles 4 ms in two of four steps of 10 ms, rank 0 2 ms in one of these: 8 of 40 ms."""
    facts = [make_facts(rank=rank, **recompiling(each)) for rank, each in enumerate([(2, 0, 0, 0), (4, 0, 4, 0)])]
    (advice,) = ask("DP607", make_measured(), facts)
    assert advice.title == (
        "Recompilation of `encode` (model.py:12) takes 20 % of the time, in 2 of 4 steps: pass dynamic=True, mark the "
        "dimension with torch._dynamo.mark_dynamic, or pad batches to a few lengths"
    )
    assert REASON in advice.why
    assert (advice.impact, advice.saves.high_share) == ("high", pytest.approx(0.2))
    assert advice.evidence[-1].value == "train.py:28"


def test_the_saving_is_of_the_mean_step(ask, make_measured, make_facts):
    """Two steps of four take 40 ms instead of 10, to compile: 60 of 100 ms, 15 ms of a mean step of 25 ms."""
    facts = [make_facts(**recompiling((0, 30, 0, 30), (10, 40, 10, 40)))]
    (advice,) = ask("DP607", make_measured(world=1), facts)
    assert advice.saves.high_share == pytest.approx(0.6)
    assert advice.saves.high_ms / advice.saves.mean_step_ms == pytest.approx(0.6)


def test_compiling_that_ends_in_the_first_steps_costs_a_long_run_nothing(ask, make_measured, make_facts):
    assert ask("DP607", make_measured(), [make_facts(**recompiling((9, 9, 0, 0)))]) == []


def test_where_only_a_librarys_function_is_known_the_line_that_compiles_is_named(ask, make_measured, make_facts):
    known = recompiling((5, 5, 5, 5))
    known["compiled"].recompiles.pop()
    (advice,) = ask("DP607", make_measured(), [make_facts(**known)])
    assert advice.title.startswith("Recompilation of the model compiled at train.py:28 takes 50 % of the time")


def test_a_type_that_changes_is_no_shape(ask, make_measured, make_facts):
    facts = [make_facts(**recompiling((5, 5, 5, 5), reason="tensor 'x' dtype mismatch. expected Half, actual Float"))]
    (advice,) = ask("DP607", make_measured(), facts)
    assert advice.title.endswith("pass tensors of the same dtype and grad mode in every step")


def test_quiet_without_compiling_for_one_compilation_and_without_torch_compile(ask, make_measured, make_facts):
    assert ask("DP607", make_measured(), [make_facts(**recompiling((0, 0, 0, 0)))]) == []
    assert ask("DP607", make_measured(), [make_facts(**recompiling((9, 0, 0, 0)))]) == []
    assert ask("DP607", make_measured(), [make_facts()]) == []


def test_older_recordings_do_not_tell(ask, make_measured, make_facts):
    with pytest.raises(Missing, match=r"compile time was not recorded"):
        ask("DP607", make_measured(), [make_facts(**recompiling(()))])


def test_on_a_cpu_the_time_spent_compiling_goes_away(ask, make_measured, make_facts):
    """Each step of 10 ms compiles for 4: at least four fifths of that, and at most a tenth more."""
    facts = [make_facts(**recompiling((4, 4, 4, 4)))]
    (advice,) = ask("DP607", make_measured(world=1, device="cpu"), facts)
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.32), pytest.approx(0.44))
    # Where later steps compile less, it may soon stop: a bound.
    facts = [make_facts(**recompiling((8, 8, 2, 2)))]
    (advice,) = ask("DP607", make_measured(world=1, device="cpu"), facts)
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.2))


def of_trace(compile_ms):
    """Figures of a trace that dptune did not record, of steps of 10 ms."""
    found = CompilingFigures(steps_ns=[10**7] * 4, compile_ns=[ms * 10**6 for ms in compile_ms], compilations=28)
    return {"compiling": found}


def test_a_trace_alone_shows_compilations(ask, make_measured):
    (advice,) = ask("DP607", make_measured(**of_trace((0, 4, 4, 4))))
    assert advice.title == (
        "Recompilation takes 30 % of the time, in 3 of 4 traced steps: if shapes vary, pass dynamic=True or pad "
        "batches to a few lengths"
    )
    assert (advice.confidence, advice.saves.high_share) == ("medium", pytest.approx(0.3))
    assert advice.evidence[-1].value == 28
    assert "TORCH_LOGS=recompiles" in advice.watch


@pytest.mark.parametrize("compile_ms", [(0, 0, 0, 0), (9, 0, 0, 0), (0, 0, 0, 9), (9, 9, 0, 0)])
def test_quiet_of_a_trace_that_hardly_compiles_again(ask, make_measured, compile_ms):
    assert ask("DP607", make_measured(**of_trace(compile_ms))) == []
