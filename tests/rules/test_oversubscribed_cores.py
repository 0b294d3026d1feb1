import pytest

from dptune.measured import Missing
from dptune.runfile.facts import DeviceFacts


def ranks(make_facts, threads, cores=4, usable=None, count=2):
    device = DeviceFacts("cpu", cores=cores, usable_cores=usable or cores, torch_threads=threads)
    return [make_facts(rank=n, device=device, environment={"OMP_NUM_THREADS": str(threads)}) for n in range(count)]


def test_more_threads_than_cores(ask, make_measured, make_facts):
    (advice,) = ask("DP604", make_measured(device="cpu"), ranks(make_facts, 4))
    assert advice.title == "2 ranks use 8 threads on 4 cores: give each 2"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then) == ("env.OMP_NUM_THREADS", "4", "2")
    assert (advice.impact, advice.saves.basis, advice.saves.high_share) == ("high", "bound", 1.0)


def test_where_the_script_sets_them_the_variable_changes_nothing(ask, make_measured, make_facts):
    """torchrun sets it to 1, and torch has 4: the script called torch.set_num_threads."""
    own = ranks(make_facts, 4)
    for one in own:
        one.environment["OMP_NUM_THREADS"] = "1"
    (advice,) = ask("DP604", make_measured(device="cpu"), own)
    assert advice.title == "2 ranks use 8 threads on 4 cores: give each 2"
    assert advice.changes == []
    assert advice.why.endswith("The script calls torch.set_num_threads, which overrides OMP_NUM_THREADS=1.")


@pytest.mark.parametrize(
    ("threads", "more"),
    [(2, {}), (4, {"cores": 8}), (4, {"cores": 8, "usable": 4}), (4, {"count": 1})],
)
def test_quiet(ask, make_measured, make_facts, threads, more):
    """As many threads as cores; ranks bound to cores of their own; one rank."""
    assert ask("DP604", make_measured(device="cpu"), ranks(make_facts, threads, **more)) == []


def test_more_ranks_than_cores_have_no_thread_to_spare(ask, make_measured, make_facts):
    assert ask("DP604", make_measured(device="cpu"), ranks(make_facts, 1, cores=2, count=4)) == []
    (advice,) = ask("DP604", make_measured(device="cpu"), ranks(make_facts, 2, cores=2, count=4))
    assert advice.changes[0].then == "1"


def test_quiet_where_a_gpu_computes(ask, make_measured, make_facts):
    assert ask("DP604", make_measured(), ranks(make_facts, 4)) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="threads and cores"):
        ask("DP604", make_measured(device="cpu"), [make_facts(device=None)])
