import pytest

from dptune.runfile.communication import DdpFacts
from dptune.runfile.loader import LoaderFacts

DDP = DdpFacts("Net", "train.py:31")
LOSSES = [2.3, 2.1, 1.9]
SAMPLED = {
    "where": "train.py:20",
    "batch_size": 32,
    "dataset": "Clips",
    "dataset_samples": 640,
    "batches_drawn": 30,
    "sampler": "DistributedSampler",
    "distributed_sampler": True,
    "sampler_epoch": 2,
    "replicas": 2,
}
SHUFFLED = {**SAMPLED, "sampler": "RandomSampler", "distributed_sampler": False, "sampler_epoch": None}


def ranks(make_facts, *losses, loader=SAMPLED, **more):
    loaders = [LoaderFacts(**loader)]
    return [make_facts(rank=n, ddp=[DDP], loaders=loaders, losses=own, **more) for n, own in enumerate(losses)]


def test_losses_that_are_equal_to_the_last_bit(ask, make_measured, make_facts):
    (advice,) = ask("DP504", make_measured(), ranks(make_facts, LOSSES, [*LOSSES, 1.8], loader=SHUFFLED))
    assert advice.title == "Both ranks train on the same data: their first 3 losses are bitwise equal"
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert ("loader created at", "train.py:20") in [(one.label, one.value) for one in advice.evidence]
    assert advice.remedy == (
        "In the DataLoader at train.py:20, use `sampler=DistributedSampler(dataset)` instead of `shuffle=True`, and "
        "call `loader.sampler.set_epoch(epoch)` before each epoch."
    )


def test_the_remedy_is_for_the_loader_that_is_there(ask, make_measured, make_facts):
    def remedy(**loader):
        facts = ranks(make_facts, LOSSES, LOSSES, loader={**SHUFFLED, **loader})
        return ask("DP504", make_measured(), facts)[0].remedy

    assert remedy(iterable=True, sampler=None).startswith(
        "Let Clips.__iter__ yield the samples of its rank: `itertools"
    )
    assert remedy(**{**SAMPLED, "replicas": 1}) == ""  # it has the sampler, so that is not what is wrong


@pytest.mark.parametrize(
    "losses",
    [
        (LOSSES, [2.3, 2.1, 1.9000001]),
        ([2.3, 2.1], [2.3, 2.1]),  # too few
        ([0.7, 0.7, 0.7], [0.7, 0.7, 0.7]),  # a loss that never changes tells nothing
        (LOSSES,),
    ],
)
def test_quiet_on_losses_that_tell_nothing(ask, make_measured, make_facts, losses):
    assert ask("DP504", make_measured(), ranks(make_facts, *losses)) == []


def test_without_losses_nothing_is_said_at_any_threshold(ask, make_measured, make_facts):
    assert ask("DP504", make_measured(), ranks(make_facts, [], []), limits={"least_losses": 0}) == []


def test_of_ranks_that_were_not_read_nothing_is_said(ask, make_measured, make_facts):
    assert ask("DP504", make_measured(world=2, world_size=8), ranks(make_facts, LOSSES, LOSSES)) == []


@pytest.mark.parametrize(
    ("kind", "phase", "said"),
    [("all_gather", "forward", 0), ("all_reduce", "forward", 0), ("all_reduce", "backward", 1)],
)
def test_quiet_where_a_loss_may_be_of_all_ranks_samples(ask, make_measured, make_facts, hand_made, kind, phase, said):
    run = make_measured(overlap=hand_made.overlap((kind, phase, 0.1)))
    assert len(ask("DP504", run, ranks(make_facts, LOSSES, LOSSES))) == said


def test_a_shuffle_of_all_samples_on_each_rank_is_a_note(ask, make_measured, make_facts):
    other = [1.0, 0.9, 0.8]
    (advice,) = ask("DP504", make_measured(), ranks(make_facts, LOSSES, other, loader=SHUFFLED))
    assert advice.title == "Each rank shuffles all 640 samples by itself, unless they were split before"
    assert (advice.impact, advice.confidence) == ("low", "low")
    facts = ranks(make_facts, LOSSES, other, loader=SHUFFLED)
    facts[1].loaders = [LoaderFacts(**{**SHUFFLED, "dataset_samples": 320})]  # it has been parted
    assert ask("DP504", make_measured(), facts) == []
    for subsets, count in ((("a", "b"), 0), (("a", "a"), 1)):  # rows of its own, or the same on both ranks
        for rank_facts, subset in zip(facts, subsets, strict=True):
            rank_facts.loaders = [LoaderFacts(**SHUFFLED, subset=subset)]
        assert len(ask("DP504", make_measured(), facts)) == count


def test_batches_that_a_wrapper_parts_are_no_fault(ask, make_measured, make_facts):
    parted = {**SHUFFLED, "distributed_sampler": True}  # as Accelerate does
    assert ask("DP504", make_measured(), ranks(make_facts, LOSSES, [1.0, 0.9, 0.8], loader=parted)) == []


def test_a_sampler_that_is_never_told_the_epoch(ask, make_measured, make_facts):
    """640 samples on two ranks are 10 batches of 32: after 30 of them two epochs are over."""
    same = {**SAMPLED, "sampler_epoch": 0}
    (advice,) = ask("DP504", make_measured(), ranks(make_facts, LOSSES, [1.0], loader=same))
    assert advice.title.startswith("The script never calls DistributedSampler.set_epoch: ")
    assert (advice.impact, advice.numerics) == ("medium", "changes")
    told, drawn = {**SAMPLED, "dataset": "Val"}, {**same, "dataset": "Val", "batches_drawn": 99}
    for other in (told, drawn):  # a script that knows of it, or whose training draws from another one
        facts = ranks(make_facts, LOSSES, [1.0], loader=same)
        facts[0].loaders.append(LoaderFacts(**other))
        assert len(ask("DP504", make_measured(), facts)) == (1 if other is drawn else 0)
    for quiet in ({"batches_drawn": 10}, {"sampler_epoch": None}, {"sampler_epoch": 1}):
        assert ask("DP504", make_measured(), ranks(make_facts, LOSSES, [1.0], loader={**same, **quiet})) == []


def test_quiet_without_ddp(ask, make_measured, make_facts):
    facts = [make_facts(rank=n, losses=LOSSES, loaders=[LoaderFacts(**SHUFFLED)]) for n in (0, 1)]
    assert ask("DP504", make_measured(), facts) == []
