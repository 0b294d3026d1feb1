"""ddp.no_sync: it skips all-reduces, and a script learns what it learns without, however it accumulates."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .launching import run_here, surroundings

pytestmark = pytest.mark.records

SCRIPT = Path(__file__).parent / "accumulating.py"
WINDOWS = ("--warmup", "1", "--untraced", "3", "--light", "0", "--detailed", "0", "-q", "--continue")
SAID = re.compile(r"^(\S+) rank (\d) weights (\S+) reductions (\d+)$", re.MULTILINE)

# Six steps of three micro-batches, but for one that has two, whose gradients are communicated late and uncounted.
PASSES = 5 * 3 + 2
LEAST = 3 + 4 * 1  # all of the first step, then one each
LEAVES_OUT = {
    "plain": LEAST,
    "zero-at-the-top": LEAST,
    "zero-between": LEAST,
    "zero-kept": LEAST,
    "bucket-views": LEAST,
    "static-graph": LEAST,
    "unused": LEAST,
    "skipping": LEAST,
    "short-overflow": LEAST,
    "clip-norm": LEAST,
    "clip-keyword": LEAST,
    "clip-value": LEAST,
    "clip-total": LEAST,
    "skipped-by-the-script": LEAST + 2,  # its first step is skipped, so that the second one is learned from
    "no-backward": LEAST + 5,  # what the pass without a backward one announced is communicated in the next
    "twice-forward": LEAST,
    "two-optimizers": LEAST,
    "hiding": 3 + 1,  # from the third step on all gradients are averaged late
}
LEFT_ALONE = {
    "own-no-sync": (6, "the script already skips synchronization itself"),
    "own-switch": (6, "the script already skips synchronization itself"),
    "clipped-each-time": (PASSES, "the script reads gradients between micro-batches"),
    "read-on-one-rank": (PASSES, "the script reads gradients between micro-batches"),
    "twice-backward": (PASSES, "several backward passes follow one forward pass"),
    "closure": (PASSES, "its optimizer uses a closure, which runs backward passes inside the step"),
    "joined": (PASSES + 1, "its ranks may have different numbers of batches (join)"),
    "sparse": (PASSES, "the module has sparse gradients"),
    "compiled": (PASSES, "the module is compiled: its passes are not seen"),
}
Ends = dict[tuple[str, int], tuple[float, int]]


def ends_of(folder: Path, *words: str, knob: str) -> tuple[Ends, str]:
    """What each way ended with on each rank, and what dptune said."""
    shutil.copy(SCRIPT, folder / "train.py")
    target = ("--run-dir", "run", "--nproc-per-node", "2", "train.py", *words)
    done = run_here("profile", *WINDOWS, "--set", f"ddp.no_sync={knob}", *target, cwd=folder)
    assert done.status == 0, done.err
    return _ends(done.out), done.err


def sides_of(folder: Path, *words: str) -> tuple[Ends, Ends]:
    """What each way ends with by itself, and with the knob."""
    pytest.importorskip("torch", reason="recording needs torch")
    start = (str(forks.LAUNCHER), "--standalone", "--nproc-per-node=2", str(SCRIPT))
    done = forks.run(*start, *words, cwd=folder, env=surroundings())
    assert done.returncode == 0, done.stderr
    return _ends(done.stdout), ends_of(folder, *words, knob="true")[0]


def _ends(out: str) -> Ends:
    return {(way, int(rank)): (float(weights), int(made)) for way, rank, weights, made in SAID.findall(out)}


# Ways like others. "compiled" loads all of torch.compile, on both ranks.
RARELY = ("zero-between", "zero-kept", "bucket-views", "clip-keyword", "short-overflow", "own-switch", "compiled")


def marked(*ways: str) -> list[object]:
    """Ways as parameters."""
    return [pytest.param(way, marks=pytest.mark.thorough if way in RARELY else ()) for way in ways]


@pytest.fixture(scope="module")
def often(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ends, Ends]:
    """Every way that is run each time, without the knob and with it."""
    ways = [way for way in (*LEAVES_OUT, *LEFT_ALONE) if way not in RARELY]
    return sides_of(tmp_path_factory.mktemp("often"), *ways)


@pytest.fixture(scope="module")
def rarely(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ends, Ends]:
    """The others."""
    return sides_of(tmp_path_factory.mktemp("rarely"), *RARELY)


@pytest.fixture
def sides(request: pytest.FixtureRequest, way: str) -> tuple[Ends, Ends]:
    return request.getfixturevalue("rarely" if way in RARELY else "often")  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", marked(*LEAVES_OUT, *LEFT_ALONE))
def test_the_weights_are_those_without_the_knob(sides: tuple[Ends, Ends], way: str) -> None:
    without, with_knob = sides
    assert with_knob[way, 0][0] == with_knob[way, 1][0]
    assert with_knob[way, 0][0] == pytest.approx(without[way, 0][0], rel=1e-6)


@pytest.mark.parametrize("way", marked(*LEAVES_OUT))
def test_collectives_are_left_out(sides: tuple[Ends, Ends], way: str) -> None:
    without, with_knob = sides
    assert {without[way, rank][1] for rank in (0, 1)} == {PASSES}
    assert {with_knob[way, rank][1] for rank in (0, 1)} == {LEAVES_OUT[way]}


@pytest.mark.parametrize("way", marked(*LEFT_ALONE))
def test_what_cannot_be_left_out_is_left_alone(sides: tuple[Ends, Ends], way: str) -> None:
    assert {side[way, rank][1] for side in sides for rank in (0, 1)} == {LEFT_ALONE[way][0]}


@pytest.mark.parametrize(
    "way",
    ["own-switch", "clipped-each-time", "read-on-one-rank", "closure", "joined", "compiled"],
)
@pytest.mark.thorough
def test_the_reason_is_said(tmp_path: Path, way: str) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    _, said = ends_of(tmp_path, way, knob="true")
    assert f"dptune: ddp.no_sync did not take effect: rank 0: {LEFT_ALONE[way][1]}" in said


def test_false_makes_every_pass_reduce_whatever_the_script_says(tmp_path: Path, often: tuple[Ends, Ends]) -> None:
    ways = ("own-no-sync", "own-switch")
    found, said = ends_of(tmp_path, *ways, knob="false")
    assert {made for _, made in found.values()} == {PASSES}
    assert found[ways[0], 0][0] == pytest.approx(often[0][ways[0], 0][0], rel=1e-6)
    assert "did not take effect" not in said
