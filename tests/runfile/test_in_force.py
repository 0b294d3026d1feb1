"""Which settings a run has already, as its facts tell."""

import pytest

from dptune.knobs import KNOBS
from dptune.runfile import in_force
from dptune.runfile.facts import DdpFacts, DeviceFacts, Facts, LoaderFacts, OptimizerFacts

CPU, GPU = DeviceFacts("cpu"), DeviceFacts("cuda")


@pytest.mark.parametrize(
    ("name", "facts", "values"),
    [
        ("ddp.static_graph", {"ddp": [DdpFacts("Net", static_graph=False)]}, {False}),
        ("ddp.static_graph", {"ddp": [DdpFacts("Net", static_graph=False), DdpFacts("Other")]}, set()),
        ("ddp.broadcast_buffers", {}, set()),
        ("loader.num_workers", {"loaders": [LoaderFacts(num_workers=2), LoaderFacts(num_workers=0)]}, {0, 2}),
        ("precision.autocast", {"autocast": "cuda:bfloat16"}, {"bf16"}),
        ("precision.autocast", {"autocast": "cuda:float16"}, {"fp16"}),
        ("precision.autocast", {"steps": 3}, {"off"}),
        ("precision.autocast", {"steps": 3, "unread": {"autocast": "AttributeError"}}, set()),
        ("precision.autocast", {}, set()),  # of no recorded step: not known
        ("precision.float32_matmul", {"settings": {"float32_matmul_precision": "highest"}}, {"highest"}),
        ("cudnn.benchmark", {}, set()),
        ("optimizer.fused", {"optimizers": [OptimizerFacts("SGD")]}, {False}),
        ("optimizer.foreach", {"optimizers": [OptimizerFacts("SGD")], "device": CPU}, {False}),
        ("optimizer.foreach", {"optimizers": [OptimizerFacts("SGD")], "device": GPU}, set()),
        ("ddp.bucket_cap_mb", {"ddp": [DdpFacts("Net", bucket_cap_bytes=26214400)]}, set()),
    ],
)
def test_what_facts_tell(name, facts, values):
    assert in_force.in_force([Facts(0, **facts)], name) == values
    assert in_force.in_force([], name) == set()


def test_ranks_may_differ():
    facts = [Facts(rank, loaders=[LoaderFacts(batch_size=size)]) for rank, size in enumerate((8, 16))]
    assert in_force.in_force(facts, "loader.batch_size") == {8, 16}


def test_it_reads_knobs_that_there_are():
    assert in_force._READ.keys() <= KNOBS.keys()
