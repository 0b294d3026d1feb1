from dptune.runfile.communication import FsdpFacts

FIRST = FsdpFacts(1, units=3, where="train.py:9", strategy="FULL_SHARD", modules=["Block"])


def test_the_successor_is_named(ask, make_measured, make_facts):
    (advice,) = ask("DP209", make_measured(), [make_facts(fsdp=[FIRST])])
    assert advice.title == (
        "FullyShardedDataParallel (FSDP1) shards the model (train.py:9): move to fully_shard (FSDP2)"
    )
    assert (advice.kind, advice.impact, advice.saves) == ("risk", "low", None)
    assert [(each.label, each.value) for each in advice.evidence] == [
        ("units of FullyShardedDataParallel", 3),
        ("sharding strategy", "FULL_SHARD"),
    ]


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP209", make_measured(), [make_facts(fsdp=[FsdpFacts(2, units=3)])]) == []
    assert ask("DP209", make_measured(), [make_facts()]) == []
    assert ask("DP209", make_measured(world=1), [make_facts(fsdp=[FIRST])]) == []
