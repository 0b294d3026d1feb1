"""The sdist holds what a developer needs, the wheel what a user needs, and nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = (ROOT / "advisor", ROOT / "rules")
BUILT = "TESTS_DIST"  # the folder into which .ci/run builds the same with the same command


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    built_before = os.environ.get(BUILT)
    if built_before is not None and Path(built_before).is_dir():
        return Path(built_before)
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> dict[str, str]:
    """File name in the wheel -> its text, for the files that are text."""
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist(dist: Path) -> dict[str, str]:
    """File or folder in the sdist -> its text, for the one that a registry shows; read through once."""
    (path,) = dist.glob("*.tar.gz")
    found = {}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            file = archive.extractfile(member) if name == "PKG-INFO" else None
            found[name] = file.read().decode() if file is not None else ""
    return found


def metadata(wheel: dict[str, str], file: str) -> str:
    return next(text for name, text in wheel.items() if name.endswith(f".dist-info/{file}"))


def source_files() -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for root in SOURCE_ROOTS
        for path in root.rglob("*")
        if path.is_file() and not {"__pycache__", ".mypy_cache", ".ruff_cache"} & set(path.parts)
    }


def test_nothing_but_the_two_packages_lands_in_site_packages(wheel: dict[str, str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dptune", "dptune_rules"}
    assert not [name for name in wheel if ".data/" in name]


def test_every_file_of_the_packages_ships(wheel: dict[str, str]) -> None:
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert source_files() - shipped == set()
    assert shipped - source_files() == set()


@pytest.mark.parametrize("file", ["dptune/py.typed", "dptune_rules/py.typed", "dptune/capture/injected/__init__.py"])
def test_files_that_no_import_would_miss_ship(wheel: dict[str, str], file: str) -> None:
    assert file in wheel


def test_the_demo_has_its_recorded_run(wheel: dict[str, str]) -> None:
    sample = [name for name in wheel if name.startswith("dptune/demo/run/")]
    assert [name for name in sample if name.endswith("run.json")]
    assert [name for name in sample if name.endswith(".trace.json.gz")]


def test_the_schemas_ship(wheel: dict[str, str]) -> None:
    assert [name for name in wheel if name.startswith("dptune/schemas/") and name.endswith(".json")]


def test_the_command_and_the_rules_are_entry_points(wheel: dict[str, str]) -> None:
    assert metadata(wheel, "entry_points.txt").split("\n\n") == [
        "[console_scripts]\ndptune = dptune.cli:main",
        "[dptune.rules]\ndptune = dptune_rules\n",
    ]


def test_installing_dptune_never_touches_the_users_torch(wheel: dict[str, str]) -> None:
    requirements = message_from_string(metadata(wheel, "METADATA")).get_all("Requires-Dist", [])
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert not [requirement for requirement in always if requirement.startswith(("torch", "pandas", "traceinsight"))]
    assert [r for r in requirements if r.startswith("torch") and "extra == 'profile'" in r]


def test_a_registry_shows_the_readme_without_what_only_the_repository_has(
    wheel: dict[str, str], sdist: dict[str, str]
) -> None:
    """Links to files and pictures lead nowhere there; its reader has no checkout."""
    described = message_from_string(metadata(wheel, "METADATA"))
    assert described["Description-Content-Type"] == "text/markdown"
    text = described.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]*)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert not [link for link in links if not link.startswith("https://")]
    assert "![" not in text
    assert "$ pip install dptune\n" in text
    assert "pip install ." not in text
    assert "make test" not in text
    assert "(`?` for help, `q` to quit).\n" in text
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall("^## .*$", text, re.MULTILINE) == [
        title for title in re.findall("^## .*$", readme, re.MULTILINE) if title != "## Development"
    ]
    blocks = re.findall(r"^```text\n.*?^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 3
    assert all(block in text for block in blocks)
    assert message_from_string(sdist["PKG-INFO"]).get_payload() == text


@pytest.mark.thorough
def test_the_wheel_works_without_this_source_tree(dist: Path, tmp_path: Path) -> None:
    """As pipx and uvx run it: by its entry points, its rules and its packaged run; CI runs it so each time."""
    (path,) = dist.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(installed)
    code = (
        "import sys, importlib.metadata as m; d = m.distribution('dptune'); print(d.locate_file(''));"
        "main = next(iter(d.entry_points.select(group='console_scripts', name='dptune'))).load();"
        "print(sys.modules['dptune'].__file__); sys.stdout.flush(); sys.exit(main(['demo']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert run.returncode == 0, run.stderr
    where, module, *screen = run.stdout.splitlines()
    assert Path(where) == installed
    assert Path(module).is_relative_to(installed)
    assert any("DP102" in row for row in screen)


def test_the_licence_ships(wheel: dict[str, str]) -> None:
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


def test_the_sdist_can_be_worked_in(sdist: dict[str, str]) -> None:
    assert {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        ".ci/run",
        "README.md",
        "hatch_build.py",
        "CHANGELOG.md",
        "LICENSE",
        "mkdocs.yml",
        "docs/index.md",
        "advisor/dptune/py.typed",
        "rules/dptune_rules/py.typed",
        "tests/packaging/test_wheel.py",
    } <= {*sdist}
    assert not [name for name in sdist if "__pycache__" in name or name.startswith((".venv", "dptune-runs"))]


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("pipx", "run", "--spec"), ("uvx", "--from")], ids=lambda words: words[0])
def test_programs_that_run_a_wheel_run_it(command: tuple[str, ...], dist: Path, tmp_path: Path) -> None:
    """With what it needs, from a package index. CI runs the wheel in an environment of its own each time."""
    program = Path(sys.executable).with_name(command[0])
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed: make test-thorough installs it")
    (path,) = dist.glob("*.whl")
    environment = {**os.environ, "PIPX_HOME": str(tmp_path / "pipx"), "UV_CACHE_DIR": str(tmp_path / "uv")}
    environment.pop("PYTHONPATH", None)
    words = [str(program), *command[1:], str(path), "dptune", "demo"]
    run = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stderr
    assert "DP102 no-sync-missing" in run.stdout


def test_a_package_index_takes_the_files(dist: Path) -> None:
    """The index takes files of up to 100 MB."""
    sizes = {path.name: path.stat().st_size for path in dist.iterdir()}
    assert len(sizes) == 2
    assert max(sizes.values()) < 95_000_000, sizes
