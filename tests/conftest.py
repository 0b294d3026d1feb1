import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from . import installed, ordering, process_state, sharing

# `make tests` runs each property on so many examples, `make test-thorough` on more. How long an example takes is up to
# what else the machine does. CI draws the same examples each time: what it finds is of the change it tests.
settings.register_profile(
    "quick",
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.register_profile("brief", settings.get_profile("quick"), max_examples=10)  # `make test-quick`
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=300, derandomize=False)
settings.load_profile("quick")

# Reports are many objects without cycles: looking for cycles as often as Python does is a tenth of the tests' time, and
# half of that for collecting the tests.
gc.set_threshold(50_000, 20, 50)

importlib.metadata.entry_points = installed.asked_once(importlib.metadata.entry_points)

# Tests that import torch in their own process do so as the scripts that tests start, in which it takes less.
_WITHOUT_COMPILER = Path(__file__).parent / "without_compiler" / "sitecustomize.py"
_spec = importlib.util.spec_from_file_location("without_compiler", _WITHOUT_COMPILER)
assert _spec is not None
assert _spec.loader is not None
_spec.loader.exec_module(importlib.util.module_from_spec(_spec))

# torch computes with one thread, here and in scripts that tests start, whatever the machine asks for: on a busy machine
# each of several waits for the others, and they spin meanwhile; and only a process of one thread is forked (forks.py).
os.environ["OMP_NUM_THREADS"] = "1"

# Under nohup, or in the background of a script, signals are ignored, and what a test starts would ignore them as well.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent
REAL_TRACES = Path(__file__).resolve().parents[1] / ".." / "shared" / "real_traces"
FINDINGS = REAL_TRACES.parent / "findings"
LARGEST_EACH_TIME = 8e6  # bytes of text: 27 of 85 public traces have more, which is nine tenths of all text
RANKS_OF_ONE_RUN = ("nanogpt_8xh100/", "torchrec_")  # alike: the first of each folder stands for them
ABSENT = "the real traces are not here: expected ../shared/real_traces beside the repository"


@pytest.fixture
def real_traces() -> Path:
    """The folder of public traces; skips where it is absent."""
    if not REAL_TRACES.is_dir():
        pytest.skip(ABSENT)
    return REAL_TRACES


@pytest.fixture
def findings() -> Path:
    """The folder of inputs whose truth is known; skips where it is absent."""
    if not FINDINGS.is_dir():
        pytest.skip("the inputs of known truth are not here: expected ../shared/findings beside the repository")
    return FINDINGS


# What `make test-quick` leaves out, besides what is marked `records`, `thorough`, `alone` or `long`: tests that read
# public traces, tests in files that record, that start other programs or a server, that read recordings, simulate runs,
# compute many chances or take long together, or drive the full-screen report.
LONG_FIXTURES = {"real_traces", "findings", "manifest_entry", "profile"}
LONG_FILES = {
    "advise/test_packs.py",
    "agents/test_server.py",
    "capture/test_collect_calls.py",
    "capture/test_misplaced_views.py",
    "capture/test_padded_attention.py",
    "capture/test_repeated_forward.py",
    "capture/test_row_calls.py",
    "capture/test_same_results.py",
    "capture/test_slice_calls.py",
    "capture/test_softmax_dimensions.py",
    "capture/test_split_windows.py",
    "commands/test_check.py",
    "commands/test_compare.py",
    "commands/test_consent.py",
    "commands/test_links.py",
    "commands/test_report.py",
    "commands/test_terminal.py",
    "commands/test_verify.py",
    "docs/test_pictures.py",
    "docs/test_readme.py",
    "fuzz/test_fuzz.py",
    "gpu/test_kept.py",
    "measure/test_blocked.py",
    "measure/test_by_hand_cpu.py",
    "measure/test_clock_jumps.py",
    "measure/test_completeness.py",
    "measure/test_flat_units.py",
    "measure/test_inferred.py",
    "measure/test_inferred_batches.py",
    "measure/test_inferred_buckets.py",
    "measure/test_lag.py",
    "measure/test_longer.py",
    "measure/test_matching.py",
    "measure/test_process_groups.py",
    "measure/test_rank_time.py",
    "patch/test_argument.py",
    "present/test_html.py",
    "present/test_inferred.py",
    "present/test_outliers.py",
    "present/test_tui.py",
    "present/test_tui_map.py",
    "present/test_tui_run.py",
    "present/test_tui_screens.py",
    "present/test_tui_straggler.py",
    "present/test_verified.py",
    "prove/test_again.py",
    "prove/test_copies.py",
    "prove/test_sequential.py",
    "rules/test_recorded.py",
    "simulator/test_engine.py",
    "simulator/test_traces.py",
    "test_kept_figures.py",
    "test_samples.py",
    "trace/test_cache.py",
    "trace/test_facts.py",
    "trace/test_hta_bridge.py",
    "trace/test_incomplete_recordings.py",
    "trace/test_remote.py",
    "whatif/test_buckets.py",
    "whatif/test_gpu.py",
    "whatif/test_gpu_units.py",
    "whatif/test_memory_on_gpus.py",
    "whatif/test_recorded_hybrid.py",
    "whatif/test_tracked_memory.py",
    "whatif/test_unit_building.py",
}
STARTING = {"subprocess", "DPTUNE"}  # what a test module imports to start a program
READING = "reading"  # the module by which a test, or what it is given, reads a recording or a sample


def pytest_configure(config: pytest.Config) -> None:
    """Where several processes run tests, make the folder of what tests/reading.py keeps for all of them.

    Hypothesis parses all of dptune in each process, to draw constants of its source, too: seconds, and other examples
    after each change. Only `make test-thorough` lets it.
    """
    if config.getoption("--hypothesis-profile") != "thorough" and hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants
    config.pluginmanager.register(process_state)
    if config.option.markexpr == "quick" and not config.getoption("--hypothesis-profile"):
        settings.load_profile("brief")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        shared = tempfile.mkdtemp(prefix="dptune-tests-")
        config.add_cleanup(lambda: shutil.rmtree(shared, ignore_errors=True))
        os.environ[sharing.FOLDER] = shared


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only quick tests are asked for, files that have none are not imported."""
    if config.option.markexpr != "quick" or not collection_path.name.startswith("test_"):
        return None
    records = "mark.records" in collection_path.read_text(encoding="utf-8")
    return True if records or _is_in_long_file(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the compiled tests, also where Python writes no bytecode: compiling them is most of collecting."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test with the same random numbers, whatever ran before it; hypothesis does so for its examples."""
    random.seed(0)
    np.random.seed(0)
    torch = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)


def pytest_collection_finish() -> None:
    """What is decoded, and what commands measure, is kept, from when tests have imported what they use.

    The process that hands tests to others collects none, and need not import dptune. All that is there before the first
    test is left out of looks at the objects of this process: observers look.
    """
    from . import kept_figures, kept_traces

    kept_figures.keep(kept_traces.keep())
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and put the files in the order of ordering.py."""
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    recording = {item.path for item in items if "records" in marks[item]}
    long = {item for item in items if item.path in recording or _is_long(item, marks[item])}
    in_long_files = {item.path for item in long}
    files = ordering.ordered(dict.fromkeys(item.path for item in items), recording, in_long_files)
    places = {file: place for place, file in enumerate(files)}
    items.sort(key=lambda item: places[item.path])
    for item in items:
        if item not in long:
            item.add_marker("quick")


def _is_long(item: pytest.Item, marks: set[str]) -> bool:
    starts_programs = reads = False
    fixtures = getattr(item, "fixturenames", ())
    if isinstance(item, pytest.Function):
        starts_programs = not STARTING.isdisjoint(vars(item.module))
        fixtures_of = item._fixtureinfo.name2fixturedefs
        used = (each.func for name in fixtures for each in fixtures_of.get(name, ()))
        reads = _reads(item.function) or any(map(_reads, used))
    marked = not marks.isdisjoint(("thorough", "alone", "long"))
    by_use = starts_programs or reads or not LONG_FIXTURES.isdisjoint(fixtures)
    return by_use or marked or _is_in_long_file(item.path)


@functools.cache
def _reads(function: object) -> bool:
    return READING in getattr(getattr(function, "__code__", None), "co_names", ())


@functools.cache
def _is_in_long_file(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix() in LONG_FILES


def _is_each_time(entry: dict[str, Any], first: dict[str, dict[str, Any]]) -> bool:
    folder = entry["file"].partition("/")[0]
    alike = entry["file"].startswith(RANKS_OF_ONE_RUN) and entry is not first[folder]
    return not alike and bool(entry["uncompressed_bytes"] <= LARGEST_EACH_TIME)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `manifest_entry` once per torch trace in the manifest.

    The largest are thorough, and so are further ranks of a run.
    """
    if "manifest_entry" not in metafunc.fixturenames:
        return
    manifest = REAL_TRACES / "MANIFEST.json"
    if manifest.is_file():
        entries = [entry for entry in json.loads(manifest.read_text()) if entry["torch_trace"]]
        first = {entry["file"].partition("/")[0]: entry for entry in reversed(entries)}
        params = [
            pytest.param(entry, id=entry["file"], marks=() if _is_each_time(entry, first) else pytest.mark.thorough)
            for entry in entries
        ]
        metafunc.parametrize("manifest_entry", params)
    else:
        metafunc.parametrize("manifest_entry", [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT))])
