"""Backward passes are counted by whether DDP reduced gradients in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kinds_of_scripts import FOLDER, KINDS, recorded

pytestmark = pytest.mark.records


def test_a_pass_that_does_not_reach_the_module_is_none_of_its_micro_batches(tmp_path: Path) -> None:
    """Eight chunks reduce gradients. The pass of the loss comes first, and only reaches their features."""
    kind = KINDS["chunks_of_a_batch"]
    run = recorded(kind, tmp_path)
    assert run.status == 0, run.err
    facts = run.facts()
    assert {count for window in facts.windows for count in window.backwards} == {9}
    assert {count for window in facts.windows for count in window.unsynced_backwards} == {1}
    rows = (FOLDER / "chunks_of_a_batch.py").read_text().splitlines()
    assert facts.backward_where is not None
    assert "gradient).sum().backward()" in rows[int(facts.backward_where.rpartition(":")[2]) - 1]
