import pytest

from dptune.measured import Missing
from dptune.runfile.facts import CallFacts, DdpFacts

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


def test_pairs_that_exchange_much_lie_across_hosts(told):
    """10 MB a step go between hosts, where 1 MB would: nine tenths of 0.4 of the step at most."""
    (advice,) = told()
    assert advice.title == (
        "The ranks that exchange most are on different hosts: {0, 2} {1, 3} send 10 MB a step each, "
        "{0, 1} {2, 3} on one host 1 MB"
    )
    assert (advice.severity, advice.saves.basis) == ("error", "bound")
    assert advice.saves.high_share == pytest.approx(0.36)
    assert advice.evidence[-1].value == "{0, 1} {2, 3}"


def test_quiet_where_they_lie_within_or_exchange_alike(told):
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
    with pytest.raises(Missing, match="not recorded by"):
        ask("DP203", make_measured(), [])


def test_groups_that_leave_ranks_out_are_no_way_to_part_them(told):
    assert told(near=((0, 1), (1, 2), (0, 3))) == []
