"""FSDP units whose collectives take longer to start than to transfer."""

import pytest

from dptune import testing
from dptune.advise.ranking import ranked
from dptune.measured import InferredFacts, LinkFigures, Missing, ShardingFigures
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import DeviceFacts, OptimizerFacts
from dptune.runfile.tensors import TensorFacts

KIB = 2**10
HOST = DeviceFacts("cpu", available_bytes=2**34)
ROWS = (
    ("all_gather", "forward", 0.06, "sharding"),
    ("all_gather", "backward", 0.01, "sharding"),
    ("reduce_scatter", "backward", 0.09, "sharding"),
)
LINEAR = FsdpFacts(2, units=20, where="train.py:55", modules=["Linear"], mesh=[2], reshard_after_forward=True)
ROOT = FsdpFacts(2, units=1, where="train.py:56", modules=["Network"], mesh=[2], reshard_after_forward=False)
TAKEN = ShardingFigures(hooks_ns=9, communication_ns=8, most_share=0.45, units_most_share=0.35, again_most_share=0.12)


def with_(figures, **more):
    """The same figures, and these, which are no longer missing."""
    missing = {name: why for name, why in figures.missing.items() if name not in more}
    return figures.model_copy(update={**more, "missing": missing})


@pytest.fixture
def said(ask, make_measured, make_facts, make_all_reduce, hand_made):
    def say(
        rows=ROWS,
        fsdp=(LINEAR, ROOT),
        sizes=((300, 30), (100, 10)),
        link=None,
        code="DP205",
        waiting=0.0,
        tensors=None,
        predictor=None,
        **more,
    ):
        sent = [
            with_(make_all_reduce(int(kib * KIB), calls, kind=kind), group="0", group_size=2)
            for kind in ("all_gather", "reduce_scatter")
            for kib, calls in sizes
        ]
        overlap = hand_made.overlap(*rows, waiting=waiting)
        overlap = with_(overlap, rows=[with_(one, group="0") for one in overlap.rows])
        links = None if link is None else [link]
        known = {"overlap": overlap, "sharding": TAKEN, "collectives": sent, "links": links, "world_size": 2}
        run = make_measured(**{**known, "device": "cpu", **more})
        optimizers = [OptimizerFacts("AdamW", parameters=1000)]
        facts = make_facts(fsdp=fsdp, optimizers=optimizers, device=HOST, tensors=tensors)
        return ask(code, run, [facts], None, predictor)

    return say


def link_of(hand_made, alpha_us, gb_per_s, confidence="high", kind="all_gather", **more):
    known = {"basis": "trace", "group": "0", "ranks": [0, 1], "scope": "intra-node", "sizes": [], "calls": 9, **more}
    fitted = {"alpha_us": alpha_us, "algbw_gb_per_s": gb_per_s, "confidence": confidence}
    return hand_made.figures(LinkFigures, kind=kind, **known, **fitted)


def test_many_small_units(said):
    """30 all-gathers of 300 KiB and 10 of 100 KiB: 250 KiB in the mean."""
    (advice,) = said()
    assert advice.title == (
        "21 FSDP units (train.py:55) are too small: their exposed collectives take 16 % of a step. "
        "Shard whole blocks instead"
    )
    assert advice.why == (
        "The mean all-gather is 250 KiB: at that size latency takes most of its time, and each unit pays it again."
    )
    shown = {one.label: (one.value, one.unit) for one in advice.evidence}
    assert shown["exposed reduce-scatters (backward phase)"] == (pytest.approx(0.09), "of a step")
    assert shown["units"][0] == 21
    assert shown["sharded modules"][0] == "Linear, Network"
    assert shown["all-gathers"] == (40, "per step")
    assert shown["mean all-gather"] == (250, "KiB")
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.35)  # hooks, copies and collectives
    assert (advice.numerics, advice.fingerprint) == ("same", "DP205:Linear")


def test_flat_parameters_make_the_optimizer_part_of_it(said):
    """FullyShardedDataParallel: a tensor for each unit."""
    (advice,) = said(fsdp=[FsdpFacts(1, units=9, modules=["Linear"], mesh=[2], strategy="FULL_SHARD")])
    assert advice.title.startswith("9 FSDP units are too small: ")
    assert advice.saves.high_share == pytest.approx(0.45)


@pytest.mark.parametrize(("gb_per_s", "speaks"), [(1.3, True), (1.2, False)])
def test_the_link_decides_where_it_is_known(said, hand_made, gb_per_s, speaks):
    """256,000 bytes take 197 us at 1.3 GB/s, and 213 at 1.2; a call of no bytes takes 200."""
    found = said(link=link_of(hand_made, 200.0, gb_per_s), sizes=[(250, 40)])
    assert [one.why for one in found] == speaks * [
        "The mean all-gather is 250 KiB: its latency takes 200 us, its transfer 197 us. "
        "Each unit pays the latency again."
    ]
    assert [one.confidence for one in found] == speaks * ["high"]


def test_on_a_fast_link_messages_of_megabytes_are_small(said, hand_made):
    """4 MiB take 21 us at 200 GB/s."""
    assert said(sizes=[(4096, 40)]) == []
    assert len(said(sizes=[(4096, 40)], link=link_of(hand_made, 30.0, 200.0, basis="sweep", group=None))) == 1


@pytest.mark.parametrize(
    "unfit",
    [
        {"confidence": "low"},
        {"kind": "all_reduce"},
        {"group": "7"},
        {"basis": "sweep", "group": None, "ranks": [0, 1, 2, 3]},
    ],
)
def test_a_link_that_does_not_fit_decides_nothing(said, hand_made, unfit):
    """By it transfer would dominate."""
    assert len(said(link=link_of(hand_made, 1.0, 1.0, **unfit))) == 1


def test_quiet(said):
    assert said(fsdp=[FsdpFacts(2, units=7, mesh=[2])]) == []
    assert said(fsdp=[FsdpFacts(2, units=7, mesh=[2]), FsdpFacts(2, units=1)]) == []  # a root without parameters
    assert said(sizes=[(1024, 40)]) == []
    assert said(world_size=1) == []
    assert said(waiting=0.7) == []  # for a late rank: 4.8 % are left
    assert said(rows=[("all_gather", "forward", 0.3, "other"), ("all_gather", "backward", 0.04, "sharding")]) == []


def test_what_the_script_gathers_itself_counts_for_nothing(said, make_all_reduce):
    """In the same group: the sizes of reduce-scatters are those of the units."""
    rows = (*ROWS, ("all_gather", "forward", 0.3, "other"))
    (advice,) = said(rows=rows)
    assert advice.title.split(": ")[1].startswith("their exposed collectives take 16 % of a step")
    assert advice.why.startswith("The mean reduce-scatter is 250 KiB")


def test_what_is_not_known_is_missing(said):
    with pytest.raises(Missing, match="which all-gathers FSDP issued"):
        said(rows=[("all_gather", "forward", 0.3, None)])
    with pytest.raises(Missing, match="sizes of FSDP's collectives are not known"):
        said(sizes=[])
    with pytest.raises(Missing, match="collectives was not measured"):
        said(collectives=None)


def test_it_comes_before_sharding_less(said):
    """Of which much may be left to gain, or little, once units are larger."""
    both = [*said(code="DP204"), *said()]
    assert [(one.rule, one.confidence) for one in ranked(both)] == [("DP205", "medium"), ("DP204", "low")]
    rows = (("all_gather", "forward", 0.09, "sharding"), *ROWS[1:])
    assert [one.confidence for one in said(code="DP204", rows=rows)] == ["low"]
    assert [one.confidence for one in said(code="DP204", rows=rows, sizes=[(1024, 40)])] == ["medium"]
    assert [one.confidence for one in said(code="DP204", rows=rows, collectives=None)] == ["medium"]


def test_without_a_recording_units_are_those_of_the_trace(ask, make_measured, make_facts, make_all_reduce, hand_made):
    sent = [with_(make_all_reduce(300 * KIB, 40, kind="all_gather"), group="0", group_size=2)]
    overlap = with_(hand_made.overlap(*ROWS), rows=[with_(row, group="0") for row in hand_made.overlap(*ROWS).rows])
    facts = make_facts(fsdp=[FsdpFacts(2, units=20)])

    def say(**confidence):
        inferred = InferredFacts(facts=facts, confidence={"fsdp": "high", **confidence})
        return ask("DP205", make_measured(overlap=overlap, sharding=TAKEN, collectives=sent, inferred=inferred))

    (advice,) = say(**{"fsdp.units": "medium"})
    assert advice.title.startswith("20 FSDP units are too small: ")
    assert "sharded modules" not in [evidence.label for evidence in advice.evidence]
    with pytest.raises(Missing, match="the number of FSDP units"):
        say()


@pytest.mark.parametrize(("large_us", "speaks"), [(100, True), (1500, False), (9, True)])
def test_calls_of_other_sizes_stand_for_a_link(said, make_all_reduce, large_us, speaks):
    """The shortest call of 100 KiB takes 20 us, that of 8000 KiB longer or not; the mean is 149 KiB."""
    sent = [
        with_(make_all_reduce(kib * KIB, calls, shortest_ns=us * 1000, kind="all_gather"), group="0", group_size=2)
        for kib, calls, us in ((100, 160, 20), (8000, 1, large_us))
    ]
    found = said(collectives=sent)
    assert [advice.rule for advice in found] == speaks * ["DP205"]
    if large_us > 20 and speaks:
        assert found[0].confidence == "low"
        assert "its latency takes 19 us, its transfer 1.5" in found[0].why


def test_units_of_whole_blocks_are_replayed(said):
    """Six blocks of 2 MiB and the rest are 7 units; of blocks of 0.4 MiB three go into one, so 3 are left."""
    predictor = testing.predicting("fsdp.units", {7: 0.7, 3: 0.6})
    for block_bytes, saved in ((2 * 2**20, 0.3), (int(0.4 * 2**20), 0.4)):
        blocks = TensorFacts(block="Block", block_bytes=[block_bytes] * 6)
        (advice,) = said(tensors=blocks, predictor=predictor)
        assert advice.saves.basis == "replayed"
        assert advice.saves.predicted_share == pytest.approx(saved)
        assert advice.saves.low_share == pytest.approx(saved - 0.05)
        assert advice.saves.high_share == pytest.approx(max(saved + 0.05, 0.35))  # all that FSDP takes
        (advice,) = said(tensors=blocks, predictor=predictor, device="cuda")
        assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(saved))
        assert advice.saves.high_share == pytest.approx(saved + 0.05)
    (advice,) = said(predictor=predictor)  # no list of equal blocks
    assert advice.saves.basis == "bound"
    many = TensorFacts(block="Block", block_bytes=[2 * 2**20] * 20)  # as many units as there are
    (advice,) = said(tensors=many, predictor=predictor)
    assert advice.saves.basis == "bound"
