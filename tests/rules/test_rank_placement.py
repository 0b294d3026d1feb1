import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts, FsdpFacts
from dptune.runfile.compilation import CompileFacts

HOSTS = ("a", "a", "b", "b")


@pytest.fixture
def told(ask, make_measured, make_facts):
    """What the rule says of four ranks: `many` bytes a step among those that `far` pairs, `few` among the others."""

    def say(far=((0, 2), (1, 3)), near=((0, 1), (2, 3)), many=10_000_000, few=1_000_000, hosts=HOSTS, **more):
        facts = []
        for rank, host in enumerate(hosts):
            one, other = (next(list(pair) for pair in pairs if rank in pair) for pairs in (far, near))
            calls = [CallFacts("all_reduce", "train.py:5", one, calls=20, sent_bytes=10 * many)]
            ddp = [DdpFacts("Net", ranks=other, gradient_bytes=few)]
            facts.append(make_facts(rank=rank, host=host, calls=calls, calls_steps=10, ddp=ddp))
        measured = make_measured(**{"exposed_share": 0.4, "world": 4, **more.pop("measured", {})})
        return ask("DP203", measured, facts, **more)

    return say


def test_pairs_that_communicate_much_lie_across_hosts(told):
    """10 MB a step go between hosts, where 1 MB would: nine tenths of 0.4 of the step at most."""
    (advice,) = told()
    assert advice.title == (
        "The ranks that communicate most are on different hosts: {0, 2} {1, 3} send 10 MB per step each, "
        "{0, 1} {2, 3} on one host 1 MB"
    )
    assert (advice.impact, advice.saves.basis) == ("high", "bound")
    assert advice.saves.high_share == pytest.approx(0.36)
    assert advice.evidence[-1].value == "{0, 1} {2, 3}"


def test_quiet_where_they_lie_within_or_communicate_alike(told):
    assert told(far=((0, 1), (2, 3)), near=((0, 2), (1, 3))) == []
    assert told(few=5_000_001) == []
    assert len(told(few=5_000_000)) == 1
    assert told(few=5_000_000, limits={"less": 0.4}) == []
    assert told(hosts=("a",) * 4) == []
    assert told(hosts=("a", "a", "a", "b")) == []
    assert told(measured={"exposed_share": 0.01}) == []


def test_hosts_of_ranks_that_were_not_recorded_are_not_known(told, ask, make_measured, make_facts):
    with pytest.raises(Missing, match="not all ranks were recorded"):
        told(measured={"world": 8})
    with pytest.raises(Missing, match="needs a recording by"):
        ask("DP203", make_measured(), [])


def test_groups_that_leave_ranks_out_are_no_way_to_part_them(told):
    assert told(near=((0, 1), (1, 2), (0, 3))) == []


@pytest.mark.parametrize(
    ("function", "few", "speaks"),
    [
        # Of two ranks an all-reduce puts its message on a link, an all-gather half of it.
        ("all_gather", 2_500_000, True),
        ("all_gather", 2_500_001, False),
        ("all_reduce", 5_000_000, True),
        ("broadcast", 5_000_000, True),
    ],
)
def test_bytes_are_those_on_a_link(ask, make_measured, make_facts, function, few, speaks):
    facts = []
    for rank, host in enumerate(HOSTS):
        far, near = ([0, 2], [0, 1]) if rank == 0 else ([1, 3], [0, 1]) if rank == 1 else ([0, 2], [2, 3])
        far = [1, 3] if rank == 3 else far
        near = [2, 3] if rank == 3 else near
        calls = [CallFacts(function, "train.py:5", far, calls=10, sent_bytes=50_000_000)]
        ddp = [DdpFacts("Net", ranks=near, gradient_bytes=few, bucket_sizes=[few])]
        facts.append(make_facts(rank=rank, host=host, calls=calls, calls_steps=5, ddp=ddp))
    assert len(ask("DP203", make_measured(exposed_share=0.4, world=4), facts)) == speaks


@pytest.mark.parametrize("more", [{"fsdp": [FsdpFacts(2)]}, {"engine": "deepspeed"}, {"compiled": CompileFacts()}])
def test_quiet_where_not_all_is_counted(ask, make_measured, make_facts, more):
    facts = [make_facts(rank=rank, host=host, **more) for rank, host in enumerate(HOSTS)]
    assert ask("DP203", make_measured(exposed_share=0.4, world=4), facts) == []


def test_collectives_that_nobody_called_by_name(told, make_all_reduce):
    with pytest.raises(Missing, match="a step has 10 collectives"):
        told(measured={"collectives": [make_all_reduce(100, 10)]})
    assert len(told(measured={"collectives": [make_all_reduce(100, 4)]})) == 1
