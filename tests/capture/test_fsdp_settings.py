"""Settings of fully_shard changed from outside: read back, with their effect, and with the same training result.

`fsdp_units.py` trains on two ranks over gloo and logs what units do in a step of two micro-batches: `g4` gathers a unit
of 4 KiB, `r4` reduce-scatters its gradients, `0` runs the first module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import environment
from .launching import DPTUNE, facts_in, run

pytestmark = pytest.mark.records

PLAIN = "g4 g8 0 g1 1 g2 2 g3 3 4 g3 g2 r3 g1 r2 g8 r1 r4 r8"  # a pass: the last module is of the root's unit
KEPT = "g4 g8 0 g1 1 g2 2 g3 3 4 r3 r2 r1 r4 r8"
AHEAD = "g4 g8 g1 0 g2 1 g3 2 3 4 g3 g2 g1 r3 r2 r1 r4 r8"
HELD = "g4 g8 0 g1 1 g2 2 g3 3 4 g3 g2 g1 g8"


@dataclass
class Trained:
    """What a training learned, what its units did in a step, their facts, and the settings without effect."""

    total: float
    did: str
    dtypes: set[str]
    units: list[dict[str, Any]]
    lacks: dict[str, str]
    compiler: bool  # whether torch's compiler was imported: a second of each rank (without_compiler/)


def trained(*settings: tuple[dict[str, Any], list[str]]) -> list[Trained]:
    pytest.importorskip("torch", reason="training needs torch")
    script = str(Path(__file__).with_name("fsdp_units.py"))
    done = forks.run(script, json.dumps(settings), cwd=Path.cwd(), env=environment(OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    return [_read(json.loads(line)) for line in done.stdout.splitlines()]


def _read(line: dict[str, Any]) -> Trained:
    did = [str(number) if word == "run" else f"{word[0]}{number}" for word, number, _ in line["log"]]
    dtypes = {f"{word}s {dtype}" for word, _, dtype in line["log"] if dtype}
    return Trained(line["total"], " ".join(did), dtypes, line["units"], line["lacks"], line["compiler"])


AHEAD_SETTINGS = {"fsdp.forward_prefetch": 1, "fsdp.backward_prefetch": 2, "fsdp.unshard_in_backward": False}
REFUSED = {
    "fsdp.reshard_after_backward": "only the script knows which micro-batch is the last of a step: set it there",
    "fsdp.unshard_in_backward": "no unit holds only embeddings: the backward pass reads the weights of all units",
}


def test_gathers_prefetches_and_reductions_change_and_the_result_does_not() -> None:
    """And what cannot be set from outside changes nothing, which is said with the reason."""
    plain, kept, ahead, held = trained(
        ({}, []),
        ({"fsdp.reshard_after_forward": False}, []),
        ({**AHEAD_SETTINGS, "fsdp.reshard_after_backward": False}, []),
        ({"fsdp.no_sync": True}, []),
    )
    assert not plain.compiler
    assert plain.did == f"{PLAIN} {PLAIN}"
    assert kept.did == f"{KEPT} {KEPT}"
    assert ahead.did == f"{AHEAD} {AHEAD}"
    assert held.did == f"{HELD} {PLAIN}"  # the first micro-batch reduces nothing
    assert plain.total == kept.total == ahead.total
    assert held.total == pytest.approx(plain.total, rel=1e-8)  # sums in another order
    assert not kept.lacks
    assert [*ahead.lacks.items()] == [*REFUSED.items()][:1]
    blocks, root = plain.units
    assert (blocks["root"], blocks["names"], blocks["gathered_bytes"]) == (
        False,
        ["0", "1", "2", "3"],
        [8192, 1024, 2048, 3072],
    )
    assert (root["root"], root["gathered_bytes"], root["reshard_after_forward"]) == (True, [4096], False)
    assert [unit["reshard_after_forward"] for unit in kept.units] == [False, False]
    assert max(unit["forward_prefetch_depth"] for unit in ahead.units) == 1
    assert [unit["kept_sharded_in_backward"] for unit in ahead.units] == [1, 0]


@pytest.mark.thorough
def test_dtypes_of_messages_groups_of_ranks_and_the_scripts_own_synchronization() -> None:
    narrow, reduced, four, halves, everything, its_own, freed, without_table = trained(
        ({"fsdp.param_dtype": "bf16", "fsdp.reduce_dtype": "fp32"}, []),
        ({"fsdp.reduce_dtype": "bf16"}, []),
        ({}, ["four"]),
        ({"fsdp.reshard_after_forward": 2}, ["four"]),
        ({"fsdp.reshard_after_forward": True}, []),
        ({"fsdp.no_sync": True}, ["by_itself"]),
        ({"fsdp.reshard_after_backward": True}, ["keeps"]),
        ({"fsdp.reshard_after_backward": False, "fsdp.unshard_in_backward": False}, ["no_table"]),
    )
    assert narrow.dtypes == {"gathers bfloat16", "reduces float32"}
    assert reduced.dtypes == {"gathers float32", "reduces bfloat16"}
    assert not narrow.lacks
    assert not reduced.lacks
    assert narrow.units[0]["gathered_bytes"] == [4096, 512, 1024, 1536]
    assert [unit["reshard_after_forward"] for unit in halves.units] == [2, 2]
    assert halves.total == four.total  # gathered within groups of two before the backward pass
    assert not halves.lacks
    assert "4 g4 g3 g2 r3" in everything.did  # the root as well
    assert its_own.did == f"{HELD} {PLAIN}"
    assert its_own.lacks["fsdp.no_sync"] == "the script already skips synchronization itself"
    assert freed.did == f"{PLAIN} {PLAIN}"  # units that the script keeps gathered are freed, and gathered again
    assert not freed.lacks
    assert without_table.lacks == REFUSED
    assert "g3 g2 r3 g1" in without_table.did  # as ever


@pytest.mark.thorough
def test_a_recorded_script_has_them_in_force(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    settings = {"fsdp.reshard_after_forward": "false", "fsdp.reduce_dtype": "bf16", "fsdp.forward_prefetch": "2"}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    script = Path(__file__).parent / "kinds" / "fsdp2.py"
    windows = ("--warmup", "3", "--untraced", "6", "--light", "0", "--detailed", "0", "-q")
    done = run(
        *(*DPTUNE, "profile", *windows, "--run-dir", "run", *words, "--nproc-per-node", "2", str(script)), cwd=tmp_path
    )
    assert done.status == 0, done.err
    assert "did not take effect" not in done.err
    for facts in facts_in(tmp_path / "run"):
        assert {unit.reshard_after_forward for unit in facts.fsdp} == {False}
        assert {unit.reduce_dtype for unit in facts.fsdp} == {"bfloat16"}
        assert max(unit.forward_prefetch_depth for unit in facts.fsdp) == 2
