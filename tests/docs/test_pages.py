"""The documentation says what the code does: generated pages are complete, and the example rule works."""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dptune.knobs import KNOBS
from dptune.measured import Account, AccumulationFigures, InputFigures, MatmulFigures, Measured, StepTime
from dptune.rule import Missing, RunView
from dptune.trace.loading.reading import LEAST_BYTES

from .. import forks, in_process  # noqa: TID252 - tests are no installed package

DOCS = Path(__file__).parents[2] / "docs"
TESTS = Path(__file__).parents[1]
SMALL = TESTS / "rules" / "recorded" / "runs" / "same-order"
RULES = Path(__file__).parents[2] / "rules"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    return load("generated", DOCS / "generated.py")


def pack_files() -> dict[str, str]:
    """The files of the pack that writing-a-rule.md shows, by their path."""
    page = (DOCS / "writing-a-rule.md").read_text("utf-8")
    return dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', page, re.M | re.S))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The rule that writing-a-rule.md shows."""
    code = pack_files()["acme_rules/exposed_copies.py"]
    path = tmp_path_factory.mktemp("acme_rules") / "exposed_copies.py"
    path.write_text(code, encoding="utf-8")
    return load("exposed_copies", path)


def trace(copy_ns: int | None) -> RunView:
    """A trace, not recorded by dptune, of one 1,000 ns step that copies for `copy_ns` with nothing beside it."""
    account = copy_ns is not None and Account(window_ns=1000, compute_ns=1000 - copy_ns, copy_ns=copy_ns)
    why = "the example does not need it"
    return RunView(
        Measured.only(
            why,
            step=StepTime.only(why, basis="traced", time_ns=1000),
            account=account or None,
            ranks=[],
            input=InputFigures.only(why),
            accumulation=AccumulationFigures.only(why),
            matmul=MatmulFigures.only(why),
        ),
        facts=[],
    )


@pytest.fixture
def large_traces(tmp_path: Path) -> Path:
    """Two ranks with kernels, in files so large that several processes read them, not of many kernels."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        args = {"grid": [rank, 1, 1], "of no use": "-" * 1000}
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 2, "args": args}
        text = json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
                "traceEvents": [{**kernel, "ts": 10 * n} for n in range(2_000)],
            }
        )
        (folder / f"rank{rank}.json").write_text(text, encoding="utf-8")
    assert sum(path.stat().st_size for path in folder.iterdir()) > LEAST_BYTES
    return folder


def examples() -> list[str]:
    """The scripts that reading-traces.md shows."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / "reading-traces.md").read_text("utf-8"), re.M | re.S)


def test_the_examples_of_reading_traces_run_as_scripts(large_traces: Path, tmp_path: Path) -> None:
    recipe, alone, arguments, several = examples()
    script = "import torch\nloader = range(20)\ntrain_step = lambda batch: torch.ones(8) * batch\n"
    (tmp_path / "recipe.py").write_text(script + recipe, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": forks.WITHOUT_COMPILER}
    done = forks.run("recipe.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "traces").glob("*.pt.trace.json")
    assert len(set(re.findall(r"ProfilerStep#\d+", written.read_text("utf-8")))) == 6
    written.unlink()
    arguments = re.sub(r"^arguments\(.*\)", r"print([each['grid'] for each in \g<0>[:2]])", arguments, flags=re.M)
    with contextlib.chdir(large_traces.parent), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(f"{alone}\n{arguments}", {})
    first, second = printed.getvalue().splitlines()
    assert first == "4000000 ns in 2000 kernels"  # of 2 us each
    assert second == "[[0, 1, 1], [0, 1, 1]]"
    with contextlib.chdir(large_traces.parent), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(several.replace("jobs=8", "jobs=1"), {"__name__": "__main__"})
    assert printed.getvalue() == "2 ranks\n"


@pytest.mark.thorough  # starts a Python for each file; each time it reads them by itself
def test_the_example_of_several_processes_runs_as_a_script(large_traces: Path, tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(examples()[-1], encoding="utf-8")  # which what it starts imports
    done = subprocess.run([sys.executable, "several.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 ranks\n", "")


def test_the_example_rule_is_skipped_where_what_it_asks_for_is_missing(example: ModuleType) -> None:
    with pytest.raises(Missing, match="the example does not need it"):
        list(example.check(trace(None)))
    with pytest.raises(Missing, match="needs a recording by `dptune profile`"):
        list(example.check(trace(200)))
    assert list(example.check(trace(40))) == []


def test_the_example_rule_has_a_page(generated: ModuleType, example: ModuleType) -> None:
    page = generated.rule_page(example.RULE, example.__doc__)
    assert page.startswith("# ACME001 exposed-copies\n")
    for heading in ("What it measures", "Why it matters", "What to change", "When to leave it alone", "References"):
        assert f"\n## {heading}\n" in page
    assert "[tool.dptune.rules.ACME001]\nworth_share = 0.05\n" in page


# What pip does with a folder, without starting Python for each step of it; and the tests of what it installed.
INSTALL = """\
import importlib, pathlib, sys, tomllib, zipfile
backend = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["build-system"]["build-backend"]
zipfile.ZipFile(importlib.import_module(backend).build_wheel(".")).extractall(sys.argv[1])
"""
TEST = """\
import sys
import pytest
sys.path.insert(0, sys.argv[1])
sys.exit(pytest.main(["-p", "no:cacheprovider", "--rootdir", ".", "tests"]))
"""


def test_the_example_pack_installs_and_shows_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files as the page has them, built and installed into a folder of their own beside dptune; its tests pass."""
    files = pack_files()
    assert {*files} == {"pyproject.toml", "acme_rules/exposed_copies.py", "tests/test_exposed_copies.py"}
    source, target = tmp_path / "acme", tmp_path / "installed"
    for name, text in {**files, "acme_rules/__init__.py": ""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": forks.WITHOUT_COMPILER, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name, script in (("install.py", INSTALL), ("test.py", TEST)):
        (tmp_path / name).write_text(script, encoding="utf-8")
        done = forks.run(str(tmp_path / name), str(target), cwd=source, env=env)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        shutil.rmtree(source / "acme_rules", ignore_errors=True)  # what is tested is what was installed
    assert "2 passed" in done.stdout

    def dptune(*words: str) -> str:
        done = in_process.dptune(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    monkeypatch.syspath_prepend(target)
    assert "ACME001 exposed-copies (from acme-rules 0.1)" in " ".join(dptune("rules", "list").split())
    assert "worth_share = 0.05" in dptune("rules", "explain", "ACME001")
    report = json.loads(dptune("report", str(SMALL), "--format", "json", "--no-cache"))
    assert "ACME001" in report["quiet"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_rules"]:
        del sys.modules[name]


def test_every_rule_of_ours_is_listed_and_has_a_page(generated: ModuleType) -> None:
    files = [path for path in RULES.rglob("*.py") if "\nRULE = " in path.read_text(encoding="utf-8")]
    listed = generated.rules()
    assert files
    assert listed.count("](DP") == len(files)
    for loaded in generated.loaded_rules():
        (row,) = [row for row in listed.splitlines() if f"[{loaded.rule.code}]({loaded.rule.code}.md)" in row]
        assert row.endswith(" (preview) |") == loaded.rule.preview
        assert "\n## References\n" in generated.rule_page(loaded.rule, loaded.doc)


def test_the_navigation_has_the_page_of_every_rule_under_its_family(generated: ModuleType) -> None:
    pages = [{"All rules": "rules/index.md"}, {"Writing a rule": "writing-a-rule.md"}]
    config = SimpleNamespace(nav=[{"Rules": list(pages)}])
    first, *families, last = generated.on_config(config).nav[0]["Rules"]
    assert [first, last] == pages
    shown = {
        path: family
        for part in families
        for family, entries in part.items()
        for entry in entries
        for path in entry.values()
    }
    rules = [loaded.rule for loaded in generated.loaded_rules()]
    assert shown == {f"rules/{rule.code}.md": rule.family.capitalize() for rule in rules}


def test_every_figure_is_documented(generated: ModuleType) -> None:
    page = generated.figures()
    for record in (Measured, Account, StepTime, InputFigures, AccumulationFigures, MatmulFigures):
        assert f"## {record.__name__}\n" in page
        for figure in set(record.model_fields) - {"missing"}:
            assert f"| `{figure}` |" in page


def test_every_knob_is_documented(generated: ModuleType) -> None:
    page = generated.knobs()
    assert KNOBS
    assert all(f"## `{name}`" in page and knob.paste in page for name, knob in KNOBS.items())


def test_the_commands_page_has_every_verb(generated: ModuleType) -> None:
    from dptune.cli import VERBS

    page = (DOCS / "commands.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", page, re.M) == list(VERBS)
    shown = [found[2].split()[0] for found in generated.PLACEHOLDER.finditer(page)]
    assert list(dict.fromkeys(shown)) == list(VERBS)


def test_help_is_what_the_command_prints(generated: ModuleType) -> None:
    assert "usage: dptune profile" in generated.usage("profile")


def test_placeholders_are_replaced(generated: ModuleType) -> None:
    assert "ddp.bucket_cap_mb" in generated.on_page_markdown("before\n\n<!-- dptune: knobs -->\n")
    assert "mkdocs" not in sys.modules, "the pages are written without mkdocs, so that these tests need none"


@pytest.mark.parametrize("page", ["ci.md", "workflows/training-speed.yml"])
def test_commands_for_ci_are_such_that_dptune_takes_them(page: str) -> None:
    from dptune.cli import VERBS
    from dptune.commands.shared.parsing import Parser

    lines = re.findall(r"^(?:\$|\s*run:) dptune (.*)$", (DOCS / page).read_text("utf-8"), re.M)
    assert len(lines) >= 3
    for line in lines:
        verb, *words = shlex.split(line)
        module = importlib.import_module(VERBS[verb][0])
        parser = Parser.of_verb(verb, module.__doc__ or "")
        module.arguments(parser)
        parser.parse_args(words)  # raises where an option or a value is none


def test_what_ran_on_a_gpu_comes_from_kept_results(
    generated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpu.stage import STAGES

    assert list(generated.STAGES) == [stage.name for stage in STAGES]
    monkeypatch.setattr(generated, "GPU_RESULTS", tmp_path)
    assert generated.gpu_checks().count("not run on a GPU yet") == len(STAGES)
    machine = {"card": "NVIDIA H100 80GB HBM3", "torch": "2.11.0"}
    result = {"when": "2026-11-26T10:00:00", "commit": "abc1234", "machine": machine}
    stages = {"capture": {"status": "complete"}, "known": {"status": "failed"}}
    (tmp_path / "card.json").write_text(json.dumps({**result, "stages": stages}))
    lines = generated.gpu_checks().splitlines()
    assert lines[2].endswith("complete: NVIDIA H100 80GB HBM3, torch 2.11.0, 2026-11-26, commit abc1234 |")
    assert "| failed: NVIDIA" in lines[3]
    assert lines[4].endswith("| not run on a GPU yet |")


def test_the_pages_stay_short() -> None:
    """All words of all pages, code included; the lines of tables and what is generated from the code do not count."""
    pages = [path for path in DOCS.rglob("*.md") if path.name != "changelog.md"]
    assert len(pages) > 20
    words = {path.name: len(re.findall(r"\S*\w\S*", path.read_text("utf-8"))) for path in pages}
    assert sum(words.values()) <= 13_000, words
