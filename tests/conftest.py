import json
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# `make tests` runs each property on so many examples; `--hypothesis-profile=default` on more.
settings.register_profile("quick", max_examples=60)
settings.load_profile("quick")

# Under nohup, or in the background of a script, signals are ignored, and what a test starts would ignore them as well.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

REAL_TRACES = Path(__file__).resolve().parents[1] / ".." / "shared" / "real_traces"
FINDINGS = REAL_TRACES.parent / "findings"
ABSENT = "the real traces are not here: expected ../shared/real_traces beside the repository"


@pytest.fixture
def real_traces() -> Path:
    """The folder of public traces; skips where it is absent."""
    if not REAL_TRACES.is_dir():
        pytest.skip(ABSENT)
    return REAL_TRACES


@pytest.fixture
def findings() -> Path:
    """The folder of inputs on which dptune was wrong; skips where it is absent."""
    if not FINDINGS.is_dir():
        pytest.skip(f"{ABSENT} (findings)")
    return FINDINGS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `manifest_entry` once per torch trace in the manifest."""
    if "manifest_entry" not in metafunc.fixturenames:
        return
    manifest = REAL_TRACES / "MANIFEST.json"
    if manifest.is_file():
        entries = [entry for entry in json.loads(manifest.read_text()) if entry["torch_trace"]]
        metafunc.parametrize("manifest_entry", entries, ids=[entry["file"] for entry in entries])
    else:
        metafunc.parametrize("manifest_entry", [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT))])
