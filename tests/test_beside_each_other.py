"""Tests in forks, by pytest started on files that are made up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})
from tests import beside_each_other


def pytest_addoption(parser):
    beside_each_other.add_option(parser)


def pytest_configure(config):
    config.pluginmanager.register(beside_each_other)
"""
FILES = {
    "test_a.py": """
import os
def test_one(tmp_path): (tmp_path / "a").touch()
def test_other(): print("words", os.getpid())
""",
    "test_b.py": """
def test_fails():
    print("words of it")
    assert 1 == 2
""",
    "test_c.py": """
import pytest
def test_skips(): pytest.skip("for a reason")
""",
    "test_d.py": """
import pytest
@pytest.fixture(scope="module")
def held():
    yield 1
    assert 0, "not let go"
def test_held(held): assert held
""",
    "test_e.py": """
import os
def test_ends(): os._exit(3)
def test_after(): pass
""",
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    options = ("-p", "no:cacheprovider", "-p", "no:syrupy", "-p", "no:hypothesispytest", "--rootdir", str(folder))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--processes", "3", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("forks")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return run(folder, "-v", "-rs", "--durations=3")


def test_outcomes_and_output_are_those_of_one_process(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1
    assert re.search("2 failed, 3 passed, 1 skipped, 1 error", done.stdout), done.stdout
    assert "words of it" in done.stdout
    assert "for a reason" in done.stdout
    assert "AssertionError: not let go" in done.stdout
    assert re.search(r"\[process \d\].*PASSED.* test_a.py::test_one", done.stdout)
    assert "slowest 3 durations" in done.stdout


def test_a_test_that_ends_its_process_fails(done: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"FAILED.* test_e.py::test_ends", done.stdout)
    assert "the process that ran this test has ended" in done.stdout
    assert "test_after" not in done.stdout


def test_each_file_is_run_once_by_one_process(tmp_path: Path) -> None:
    for number in range(12):
        lines = (f"def test_{each}(): open('log', 'a').write(f'{number} {{os.getpid()}}\\n')" for each in range(3))
        (tmp_path / f"test_{number}.py").write_text("\n".join(["import os", "import time", *lines]))
    done = run(tmp_path, "-q")
    assert done.returncode == 0, done.stdout
    assert "36 passed" in done.stdout
    ran = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(file for file, _ in ran) == sorted(str(number) for number in range(12) for _ in range(3))
    assert len({(file, process) for file, process in ran}) == 12


def test_the_first_failure_can_be_the_last(tmp_path: Path) -> None:
    for number in range(3):
        text = f"import time\ndef test_it():\n    time.sleep({60 * number})\n    assert 0"
        (tmp_path / f"test_{number}.py").write_text(text)
    done = run(tmp_path, "-x")
    assert done.returncode in (1, 2)
    assert "1 failed" in done.stdout
