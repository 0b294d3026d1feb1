"""What the README shows is what the commands print."""

import re
from pathlib import Path

from .. import in_process  # noqa: TID252 - tests are no installed package

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)\n```", README, re.DOTALL)


def dptune(*words):
    return in_process.dptune(*words, cwd=ROOT)


def test_the_demo_prints_what_is_shown():
    shown = next(block for block in blocks("text") if "verified" in block and "COMMUNICATION-BOUND" in block)
    assert dptune("demo").stdout == shown + "\n"


def test_the_recommendation_is_printed_as_shown():
    shown = next(block for block in blocks("text") if block.startswith(" 1 high impact, high confidence: DP102"))
    printed = dptune("report", "sample_traces/accumulation_without_no_sync", "--no-cache", "--section", "advice").stdout
    assert f"\n{shown}\n\n" in printed


def test_the_healthy_run_prints_what_is_shown():
    shown = next(block for block in blocks("text") if "72,481 samples/s" in block)
    assert dptune("report", "sample_traces/healthy", "--no-cache").stdout == shown + "\n"


def test_check_prints_what_is_shown():
    shown = next(block for block in blocks("console") if block.startswith("$ dptune check sample_traces"))
    line, _, output = shown.partition("\n")
    done = dptune(*line.split()[2:])
    assert (done.returncode, done.stdout.rstrip()) == (1, output)


def test_every_verb_and_make_target_it_names_exists():
    from dptune.cli import VERBS

    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`(?:\$ )?dptune ([a-z]+)", README)) <= {*VERBS}
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets
    assert "<!--" not in README
