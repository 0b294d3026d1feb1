"""Operators, layers and conversions that are wrapped while a script compiles with `fullgraph=True`."""

import json
from pathlib import Path

import pytest

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import environment


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    """What each check of compiled_wholly.py raised, in a process of its own."""
    pytest.importorskip("torch", reason="compiles with torch")
    script = Path(__file__).with_name("compiled_wholly.py")
    done = forks.run(str(script), cwd=tmp_path_factory.mktemp("compiled"), env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.records
@pytest.mark.parametrize("check", ["settings", "operators", "layers", "conversions"])
def test_they_are_compiled_whole(raised, check):
    assert raised[check] == ""
