import pytest

from dptune.measured import Missing
from dptune.runfile.communication import ChannelFacts, NcclFacts

IB = ["NET/IB: Using [0]mlx5_0:1/IB"]


@pytest.fixture
def told(ask, make_measured, make_facts):
    """What the rule says of two ranks that are connected so, each with the same variables set."""

    def say(*transports, networks=(), hosts=("a", "b"), exposed=0.2, **environment):
        log = NcclFacts("2.21.5", list(networks), [ChannelFacts(0, 1, via, 2) for via in transports])
        facts = [make_facts(rank=n, host=host, nccl=log, environment=environment) for n, host in enumerate(hosts)]
        return ask("DP201", make_measured(exposed_share=exposed), facts)

    return say


@pytest.mark.parametrize(
    ("transports", "more", "title", "changes"),
    [
        (
            ["P2P", "NET/Socket"],
            {"hosts": ("a", "a"), "NCCL_SHM_DISABLE": "1"},
            "Ranks on one host communicate over the network: unset NCCL_SHM_DISABLE",
            ["env.NCCL_SHM_DISABLE"],
        ),
        (
            ["NET/Socket"],
            {"hosts": ("a", "a")},
            "Ranks on one host communicate over the network: let them share /dev/shm",
            [],
        ),
        (
            ["NET/Socket"],
            {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
            "Hosts communicate over TCP, though InfiniBand or RoCE may be available: unset NCCL_IB_DISABLE and "
            "NCCL_NET",
            ["env.NCCL_IB_DISABLE"],
        ),
        (
            ["NET/Socket"],
            {"networks": IB},
            "Hosts communicate over TCP, though InfiniBand or RoCE may be available: see why",
            [],
        ),
        (
            ["SHM"],
            {"hosts": ("a", "a"), "NCCL_P2P_DISABLE": "1"},
            "GPUs of one host communicate through host memory: unset NCCL_P2P_DISABLE",
            ["env.NCCL_P2P_DISABLE"],
        ),
        (
            ["P2P", "NET/IB"],
            {"networks": IB},
            "Network cards read from host memory: load nvidia-peermem for GPUDirect RDMA",
            [],
        ),
    ],
)
def test_what_is_slower_than_it_need_be(told, transports, more, title, changes):
    (advice,) = told(*transports, **more)
    assert advice.title == title
    assert [(one.knob, one.then) for one in advice.changes] == [(knob, "0") for knob in changes]
    assert (advice.impact, advice.saves.high_share) == ("high", pytest.approx(0.2))
    assert [(one.label, one.value) for one in advice.evidence][: len(transports)] == [(via, 4) for via in transports]


@pytest.mark.parametrize(
    ("transports", "more"),
    [
        (["P2P"], {"hosts": ("a", "a")}),
        (["SHM"], {"hosts": ("a", "a"), "NCCL_P2P_DISABLE": "0"}),
        (["P2P", "NET/IB/GDRDMA"], {"networks": IB}),
        (["NET/Socket"], {"networks": ["NET/IB: No device found"]}),
        (["NET/Socket"], {"networks": IB, "exposed": 0.01}),
    ],
)
def test_quiet_where_there_is_nothing_better_or_it_costs_nothing(told, transports, more):
    assert told(*transports, **more) == []


def test_without_a_log_nothing_is_known(ask, make_measured, make_facts):
    with pytest.raises(Missing, match=r"dptune profile --nccl-log"):
        ask("DP201", make_measured(exposed_share=0.2), [make_facts()])
    assert ask("DP201", make_measured(exposed_share=0.2, backend="gloo"), [make_facts()]) == []
