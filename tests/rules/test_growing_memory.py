import pytest

from dptune.measured import MemoryFigures
from dptune.runfile.facts import DeviceFacts
from dptune.runfile.kept_tensors import KeptFacts, LookFacts
from dptune.runfile.registered_hooks import RegisteredHookFacts, left_by_steps
from dptune.runfile.window import Window

MIB = 2**20


def memory(hand_made, growth, **more):
    told = {"growth_bytes_per_step": growth, "least_growth_bytes": growth, **more}
    return [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", **told)]


def test_memory_that_each_step_leaves(ask, make_measured, hand_made):
    (advice,) = ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB)))
    assert advice.title == "Allocated memory grows by 3 MiB every step"
    assert (advice.kind, advice.impact, advice.saves) == ("risk", "medium", None)


@pytest.mark.parametrize(("capacity_mib", "impact", "left"), [(4000, "high", "1,000"), (60_000, "medium", "19,666")])
def test_how_long_there_is_room(ask, make_measured, hand_made, capacity_mib, impact, left):
    """1,000 MiB are taken, and 3 more with each step."""
    kept = {"capacity_bytes": capacity_mib * MIB, "peak_reserved_bytes": 1000 * MIB}
    (advice,) = ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB, **kept)))
    assert advice.title.endswith(f": the device is full after about {left} more steps")
    assert advice.impact == impact


def test_memory_that_does_not_grow_is_nothing_at_any_threshold(ask, make_measured, hand_made):
    kept = {"capacity_bytes": 4000 * MIB, "peak_reserved_bytes": 1000 * MIB}
    assert ask("DP802", make_measured(memory=memory(hand_made, 0, **kept)), limits={"least_kib": 0}) == []


def test_quiet(ask, make_measured, hand_made):
    assert ask("DP802", make_measured(memory=memory(hand_made, 1000))) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, -3 * MIB))) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, None))) == []
    uneven = memory(hand_made, 3 * MIB, least_growth_bytes=-5 * MIB)  # batches of several lengths
    assert ask("DP802", make_measured(memory=uneven)) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB, least_growth_bytes=None))) == []


def counted(make_facts, mib, *, limited=False, kind="cpu", graphs=2):
    """20 and 5 steps, each of which leaves 3 tensors, two of them with a graph, of so many MiB together."""
    looks = [LookFacts(at, 80 + 3 * at, graphs * at, int(mib * at * MIB)) for at in (5, 25, 30)]
    kept = KeptFacts(looks, ["6x12x64x64 float32"], "Summary.outputs", "train.py:40", limited)
    window = Window("untraced", 6, [10**7] * 20, memory_bytes=[int((100 + mib * at) * MIB) for at in range(20)])
    return [make_facts(windows=[window], kept=kept, device=DeviceFacts(kind))]


def test_tensors_of_earlier_steps_are_named_with_what_holds_them(ask, make_measured, make_facts):
    (advice,) = ask("DP802", make_measured(), counted(make_facts, 1.5))
    assert advice.title == "Allocated memory grows by 1.5 MiB every step, kept in `Summary.outputs` (train.py:40)"
    assert (advice.impact, advice.confidence) == ("medium", "medium")
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("growth of tensor storage", 1.5 * MIB),
        ("steps measured", 25),
        ("tensors left by each step", 3),
        ("of these with a grad_fn", 2),
        ("shapes", "6x12x64x64 float32"),
    ]


def test_on_a_gpu_the_allocator_says_it(ask, make_measured, make_facts, hand_made):
    """2 MiB a step, and 400 MiB are left."""
    room = {"capacity_bytes": 1400 * MIB, "peak_reserved_bytes": 1000 * MIB}
    figures = make_measured(memory=memory(hand_made, None, least_growth_bytes=None, **room))
    (advice,) = ask("DP802", figures, counted(make_facts, 2, kind="cuda"))
    assert advice.title.endswith(": the device is full after about 200 more steps")
    assert (advice.impact, advice.evidence[0].label) == ("high", "growth of allocated GPU memory")


def test_a_buffer_of_limited_size_has_low_confidence(ask, make_measured, make_facts):
    (advice,) = ask("DP802", make_measured(), counted(make_facts, 1.5, limited=True))
    assert (advice.impact, advice.confidence) == ("low", "low")


def test_little_is_what_a_logger_keeps(ask, make_measured, make_facts, hand_made):
    figures = make_measured(memory=memory(hand_made, None))
    assert ask("DP802", figures, counted(make_facts, 0.06, graphs=0)) == []


@pytest.mark.parametrize(
    ("each", "title"),
    [
        (1, "Each step keeps a tensor with its autograd graph in `Diary.losses` (train.py:40)"),
        (2, "Each step keeps 2 tensors with their autograd graphs in `Diary.losses` (train.py:40)"),
    ],
)
def test_graphs_that_take_little_memory(ask, make_measured, make_facts, each, title):
    looks = [LookFacts(at, 80 + each * at, each * at, 2**20 + 12 * at) for at in (5, 25, 30)]
    facts = make_facts(kept=KeptFacts(looks, ["3 float32"], "Diary.losses", "train.py:40"))
    (advice,) = ask("DP802", make_measured(), [facts])
    assert (advice.title, advice.impact, str(advice.place)) == (title, "low", "train.py:40")
    assert [(seen.label, seen.value) for seen in advice.evidence] == [
        ("tensors left by each step", each),
        ("of these with a grad_fn", each),
        ("steps measured", 25),
    ]
    facts.kept.looks[-1].with_graph = facts.kept.looks[1].with_graph + 4  # in five steps
    assert ask("DP802", make_measured(), [facts]) == []


def test_graphs_of_which_nothing_is_known(ask, make_measured, make_facts):
    looks = [LookFacts(at, 80 + at, at, 2**20) for at in (5, 25, 30)]
    (advice,) = ask("DP802", make_measured(), [make_facts(kept=KeptFacts(looks))])
    assert advice.title == "Each step keeps a tensor with its autograd graph"


def test_hooks_that_steps_register_are_named_before_what_they_keep(ask, make_measured, make_facts):
    (facts,) = counted(make_facts, 1.5)
    facts.hooks = [RegisteredHookFacts("train.py:35", 58, 29, 30), RegisteredHookFacts("train.py:9", 90, 1, 30)]
    (advice,) = ask("DP802", make_measured(), [facts])
    assert advice.title == (
        "Allocated memory grows by 1.5 MiB every step, kept by hooks that steps register and never remove (train.py:35)"
    )
    assert (advice.impact, str(advice.place)) == ("medium", "train.py:35")
    assert advice.remedy.startswith("Register the hooks once")
    facts.hooks = facts.hooks[1:]
    (advice,) = ask("DP802", make_measured(), [facts])
    assert "train.py:40" in advice.title


@pytest.mark.parametrize(
    ("in_steps", "of_steps", "found"), [(8, 8, True), (7, 8, False), (20, 50, True), (19, 50, False)]
)
def test_hooks_become_more_if_most_steps_leave_some(in_steps, of_steps, found):
    assert (left_by_steps([RegisteredHookFacts("a.py:1", 99, in_steps, of_steps)]) is not None) == found
