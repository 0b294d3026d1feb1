"""Embeddings of all ranks without gradients: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.gathered_embeddings import GatheredEmbeddingFacts


def gathered(where="contrast (train.py:17)", through="", rows=96, local=48, passes=4, seen=4):
    return GatheredEmbeddingFacts(where, "all_gather", through, rows, local, 64, passes, seen)


def test_embeddings_without_gradients(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, gathered_embeddings=[gathered()] if rank else []) for rank in (0, 1)]
    (advice,) = ask("DP318", make_measured(), ranks)
    assert advice.title == (
        "Embeddings of 2 ranks are gathered without gradients by contrast (train.py:17): the loss trains none of them "
        "as a positive or a negative"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert [found.value for found in advice.evidence] == [4, 96, 48, "torch.distributed.all_gather"]
    assert advice.remedy.startswith("Gather them with `torch.distributed.nn.functional.all_gather`, or put the local")


def test_all_lines_are_named_once(ask, make_measured, make_facts):
    found = [gathered(), gathered("contrast (train.py:18)"), gathered(through="accelerate.Accelerator.gather")]
    (advice,) = ask("DP318", make_measured(), [make_facts(gathered_embeddings=found)])
    assert "by contrast (train.py:17), contrast (train.py:18):" in advice.title


def test_lightning_has_an_argument_for_it(ask, make_measured, make_facts):
    found = gathered(through="lightning.LightningModule.all_gather")
    (advice,) = ask("DP318", make_measured(), [make_facts(gathered_embeddings=[found])])
    assert advice.remedy.startswith("Pass `sync_grads=True` to `all_gather`, or put")
    assert advice.evidence[-1].value == "lightning.LightningModule.all_gather"


WITHOUT = ({"passes": 1}, {"seen": 3}, {"passes": 0, "seen": 0}, {"rows": 48}, {"local": 0})


@pytest.mark.parametrize("found", [[], *([gathered(**fault)] for fault in WITHOUT)])
def test_quiet(ask, make_measured, make_facts, found):
    assert ask("DP318", make_measured(), [make_facts(gathered_embeddings=found)]) == []


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP318", make_measured(), [])
