"""The step model of a recorded run of fully_shard: two ranks over gloo on one host."""

import shutil
from pathlib import Path

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.measured import Missing
from dptune.runfile import form
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.unit_building import read
from dptune.whatif.predicting import compare, predict, search
from dptune.whatif.run_model import RunModel

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "sharded-parameters"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The run and its figures, over a link of 300 us and 1 GB/s."""
    folder = tmp_path_factory.mktemp("units")
    sizes = [
        SizeTimes(size, took, 0.99 * took, 1.01 * took, samples=5, calls=50)
        for size, took in ((size, 300e-6 + size / 1e9) for size in (4096, 65536, 2**20, 4 * 2**20))
    ]
    links = folder / "links.json"
    kind = KindTimes("all_reduce", [0, 1], sizes)
    form.write(links, LinkRecord(backend="gloo", world_size=2, hosts=["a", "a"], devices=["cpu", "cpu"], kinds=[kind]))
    run = shutil.copytree(RECORDED, folder / "run")
    return measured_of([str(run)], 1, cached=False, links=links)


def test_each_unit_is_gathered_twice_and_reduced_once(recorded):
    run, measured = recorded
    found = read(run, measured)
    model = found.model()
    facts = run.facts[0].fsdp
    assert sorted(found.sharding.names) == sorted(name for fsdp in facts for name in fsdp.names)
    for steps in model.steps.values():
        for step in steps:
            (only,) = step.passes
            assert min(only.forward_ns, only.backward_ns, step.after_ns) > 0
            kinds = [(call.kind, call.direction) for call in only.calls]
            units = len(found.sharding.names)
            assert kinds.count(("gather", "forward")) == kinds.count(("reduce", "backward")) == units
            assert 0 < kinds.count(("gather", "backward")) <= units
            ends = {"forward": only.forward_ns, "backward": only.backward_ns}
            assert all(0 <= call.at_ns <= ends[call.direction] + 1 for call in only.calls)
    sizes = {name: size for fsdp in facts for name, size in zip(fsdp.names, fsdp.gathered_bytes, strict=True)}
    first, *_ = model.steps[0]
    assert {found.sharding.names[call.unit]: call.message_bytes for call in first.passes[0].calls} == sizes


def test_compute_is_that_of_untraced_steps(recorded):
    """What a traced step takes longer than an untraced one is no collective: it is taken off the compute."""
    run, measured = recorded
    found = read(run, measured)
    model = found.model()
    for rank, steps in model.steps.items():
        traced = found.timelines[rank].steps
        computed = [sum(pass_.forward_ns + pass_.backward_ns for pass_ in step.passes) for step in steps]
        as_traced = [sum(pass_.forward_ns + pass_.backward_ns for pass_ in step.passes) for step in traced]
        assert 0.1 * min(as_traced) < max(computed) <= max(as_traced)


def test_changes_of_units_are_predicted_together_and_apart(recorded):
    run, measured = recorded
    ground = RunModel.of(run, measured)
    kept = ground.predict({"fsdp.reshard_after_forward": False})
    assert kept.low_ns < ground.step_ns
    again = [call for call in ground.model.steps[0][0].passes[0].calls if call.kind == "gather"]
    assert len(again) > len(ground.model.sharding.names)
    told = predict(run, measured, [{"ddp.no_sync": True}, {"fsdp.unshard_in_backward": False}])
    assert [one.known("step_ns") for one in told.predictions] == [None, None]
    assert step_ns(ground.model) > 0


def test_a_search_and_strategies(recorded):
    run, measured = recorded
    found = search(run, measured)
    if not found.predictions:
        pytest.fail("the search found nothing to predict")
    assert not found.curve
    names = [strategy.name for strategy in compare(run, measured).strategies]
    assert names in ([], ["FSDP, unchanged", "FSDP, kept gathered", "DDP"])


def test_what_the_model_does_not_cover_is_named(recorded):
    run, measured = recorded
    fsdp = run.facts[0].fsdp
    before = [(one.mesh, one.offload) for one in fsdp]
    try:
        fsdp[0].offload = "CPUOffloadPolicy"
        with pytest.raises(Missing, match="offloaded"):
            read(run, measured)
        fsdp[0].offload, fsdp[0].mesh = None, [2, 1]
        with pytest.raises(Missing, match="a part of the ranks"):
            read(run, measured)
    finally:
        for one, (mesh, offload) in zip(fsdp, before, strict=True):
            one.mesh, one.offload = mesh, offload
