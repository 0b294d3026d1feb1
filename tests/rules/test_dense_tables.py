"""Embedding tables of which a step uses few rows, and whose gradients are dense."""

import pytest

from dptune.measured import Missing, UserCodeFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.dense_tables import DenseTableFacts
from dptune.runfile.facts import OptimizerFacts

MB = 10**6


def table(used, rows=100_000, module="users", where="train.py:9", optimizer="Adam"):
    """One of 10 columns: 4 MB of gradient for 100,000 rows."""
    return DenseTableFacts(module, rows, 10, used, 4, optimizer, where)


def facts(make_facts, *tables, backend="gloo", **more):
    """5 MB of gradients in all, and as many parameters."""
    ddp = [DdpFacts(module="Net", gradient_bytes=5 * MB, backend=backend)]
    optimizers = [OptimizerFacts(name="Adam", parameters=5 * MB // 4, parameter_tensors=8)]
    return [make_facts(**{"ddp": ddp, "optimizers": optimizers, "dense_tables": [*tables], **more})]


@pytest.fixture
def run(make_measured, hand_made):
    """20 % of each step in all-reduces of gradients, none of it exposed, and 30 % in the optimizer."""

    def made(device="cpu", **row):
        window = make_measured().account.window_ns
        row = {"communication_ns": window // 5, "hidden_ns": window // 5, "exposed_ns": 0, **row}
        reduced = hand_made.figures(
            hand_made.CommunicationFigures,
            **{"kind": "all_reduce", "purpose": "gradients", "calls": 2, "most_share": 0.2, **row},
        )
        overlap = hand_made.figures(hand_made.OverlapFigures, rows=[reduced])
        return make_measured(device=device, overlap=overlap, phases=hand_made.phases(0.3, 0.4, 0.3))

    return made


def test_unused_rows_are_sent_and_updated(ask, run, make_facts, hand_made):
    """80 % of the gradients and of the parameters are the table, 98 % of which no step uses."""
    (advice,) = ask("DP111", run(), facts(make_facts, table(2_000)))
    assert advice.title == (
        "The gradient of embedding table `users` (train.py:9) is dense, but a step uses 2,000 of 100,000 rows: "
        "pass sparse=True and update it with SparseAdam or SGD"
    )
    assert advice.why == (
        "Rows with a zero gradient cost up to 39 % of a step: 16 % to send them, 24 % for Adam to update them."
    )
    written = 0.98 * 4 * MB / 2 / hand_made.STEP_NS  # at 2 bytes per ns
    assert advice.saves.high_share == pytest.approx(0.8 * 0.98 * (0.2 + 0.3) * 1.0 + written, rel=0.01)
    assert (advice.impact, advice.numerics, advice.changes) == ("high", "changes", [])
    assert "SparseAdam" in advice.watch


@pytest.mark.parametrize(
    ("used", "optimizer", "fused", "many"),
    [
        (1_100, "AdamW", True, 0),  # 0.6 of 24 % is left: too little for another optimizer
        (100, "AdamW", True, 1),
        (15_000, "AdamW", False, 0),
        (2_000, "AdamW", False, 1),
        (2_000, "SGD", True, 1),
        (18_000, "SGD", True, 0),
    ],
)
def test_used_rows_take_longer_in_a_sparse_step(ask, run, make_facts, used, optimizer, fused, many):
    """80 % of the parameters are the table, and the optimizer takes 30 % of a step."""
    optimizers = [OptimizerFacts(name=optimizer, parameters=5 * MB // 4, parameter_tensors=8, fused=fused)]
    known = facts(make_facts, table(used, optimizer=optimizer), ddp=[], optimizers=optimizers)
    assert len(ask("DP111", run(), known)) == many


def test_several_tables_are_one_finding(ask, run, make_facts):
    tables = [table(2_000, 50_000), table(1_000, 25_000, "items"), table(20_000, 25_000, "shops")]
    (advice,) = ask("DP111", run(), facts(make_facts, *tables))
    assert advice.title.startswith("The gradients of `users` (train.py:9) and another embedding table are dense, but")
    assert "3,000 of 75,000 rows" in advice.title


def test_nccl_reduces_no_sparse_gradients(ask, run, make_facts):
    (advice,) = ask("DP111", run(), facts(make_facts, table(2_000), backend="nccl"))
    assert advice.title.endswith("shard the table over the ranks")
    assert "sparse=True fails" in advice.watch


def test_on_a_gpu_what_is_hidden_costs_nothing(ask, run, make_facts):
    nccl = facts(make_facts, table(2_000), backend="nccl")
    assert ask("DP111", run("cuda"), nccl) == []
    window = run().account.window_ns
    (advice,) = ask("DP111", run("cuda", hidden_ns=0, exposed_ns=window // 5, exposed_transfer_ns=window // 5), nccl)
    assert "16 % to send them" in advice.why


def test_without_ddp_only_the_optimizer_counts(ask, run, make_facts):
    (advice,) = ask("DP111", run(), facts(make_facts, table(2_000), ddp=[]))
    assert advice.why == "Rows with a zero gradient cost up to 24 % of a step: all of it for Adam to update them."


@pytest.mark.parametrize("rows", [(), (table(30_000),), (table(100_000),), (table(20, 10_000),)])
def test_quiet(ask, run, make_facts, rows):
    """No table, one of whose rows many are used, or all (as with tied weights), and a small one."""
    assert ask("DP111", run(), facts(make_facts, *rows)) == []


def test_on_a_busy_machine_rows_are_counted_all_the_same(ask, run, make_facts):
    (advice,) = ask("DP111", run(), facts(make_facts, table(2_000)), times_hold=False)
    assert advice.confidence == "low"


def test_traces_alone_do_not_say(ask, run):
    with pytest.raises(Missing):
        ask("DP111", run(), [])


def clipping(measured):
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], clips=True)
    return measured.model_copy(update={"user_code": code, "missing": {}})


@pytest.mark.parametrize(
    ("optimizer", "clips", "words"),
    [
        ("SGD", False, "pass sparse=True"),
        ("Adagrad", True, "pass sparse=True and leave it out of gradient clipping"),
        ("RMSprop", False, "pass sparse=True and update it with SparseAdam or SGD"),
        ("AdamW", True, "pass sparse=True and update it with SparseAdam or SGD and leave it out of gradient clipping"),
    ],
)
def test_what_rejects_sparse_gradients_is_a_condition(ask, run, make_facts, optimizer, clips, words):
    measured = clipping(run()) if clips else run()
    (advice,) = ask("DP111", measured, facts(make_facts, table(2_000, optimizer=optimizer)))
    assert advice.title.endswith(f": {words}")
    assert ("rejects sparse gradients" in advice.watch) == (optimizer in ("RMSprop", "AdamW"))


@pytest.mark.parametrize(("optimizer", "clips", "many"), [("SGD", False, 1), ("SGD", True, 0), ("AdamW", False, 0)])
def test_conditions_need_a_high_impact(ask, run, make_facts, optimizer, clips, many):
    """24 % of the gradients and of the parameters are the table, 83 % of it unused: 10 % of the step."""
    small = facts(make_facts, table(5_000, 30_000, optimizer=optimizer))
    measured = clipping(run()) if clips else run()
    assert len(ask("DP111", measured, small)) == many


def test_sharding_over_nccl_has_no_such_conditions(ask, run, make_facts):
    (advice,) = ask("DP111", clipping(run()), facts(make_facts, table(2_000), backend="nccl"))
    assert advice.title.endswith("shard the table over the ranks")


def test_the_lines_of_all_tables_and_of_the_optimizer(ask, run, make_facts):
    tables = [table(2_000, 50_000), table(1_000, 25_000, "items", where="train.py:10"), table(90, 9_000, "shops")]
    optimizers = [OptimizerFacts("Adam", "train.py:31", parameters=5 * MB // 4, parameter_tensors=8)]
    (advice,) = ask("DP111", run(), facts(make_facts, *tables, optimizers=optimizers))
    named = {found.value: found.label for found in advice.evidence if str(found.value).startswith("train.py:")}
    assert named == {
        "train.py:9": "table created at",
        "train.py:10": "table created at",
        "train.py:31": "optimizer created at",
    }
    two = [*optimizers, OptimizerFacts("Adam", "train.py:32", parameters=9, parameter_tensors=1)]
    (advice,) = ask("DP111", run(), facts(make_facts, *tables, optimizers=two))
    assert "optimizer created at" not in [found.label for found in advice.evidence]
