"""Who may import what, where import-linter cannot say it: allow-lists, and what happens when modules are loaded."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DPTUNE = ROOT / "advisor" / "dptune"
RULES = ROOT / "rules" / "dptune_rules"
ABSENT = ("torch", "pandas", "isal", "hta")  # where reports are only read
STANDARD_LIBRARY = sys.stdlib_module_names | {"__future__"}


def module_name(path: Path) -> str:
    root = ROOT / ("advisor" if path.is_relative_to(ROOT / "advisor") else "rules")
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Full dotted name of everything that a file imports, wherever in the file; `from a import b` gives `a.b`."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements below one, without what they compute: an import is a statement."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(block, part, ()):
            yield node
            yield from statements(node)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def strays(folder: Path, *allowed: str) -> dict[str, list[str]]:
    """File -> what it imports beyond the standard library and the allowed packages."""
    found = {
        str(path.relative_to(ROOT)): [
            name for name in imports(path) if name.split(".")[0] not in STANDARD_LIBRARY and not within(name, *allowed)
        ]
        for path in folder.rglob("*.py")
    }
    assert found, f"no Python files in {folder}"
    return {file: names for file, names in found.items() if names}


def test_the_run_folders_format_needs_the_standard_library_only() -> None:
    assert strays(DPTUNE / "runfile", "dptune.runfile") == {}


def test_what_runs_in_the_users_process_needs_torch_knobs_and_the_run_folders_format_only() -> None:
    here = DPTUNE / "capture" / "injected"
    assert strays(here, "dptune.capture.injected", "dptune.runfile", "dptune.knobs", "torch") == {}


def test_knobs_need_the_standard_library_only() -> None:
    assert strays(DPTUNE / "knobs", "dptune.knobs", "dptune.errors") == {}


def test_a_rule_knows_four_words_of_dptune_and_no_other_package() -> None:
    words = ("dptune.advice", "dptune.rule", "dptune.knobs", "dptune.measured", "dptune_rules")
    assert strays(RULES, *words) == {}


def test_dptune_never_names_the_rules_package() -> None:
    named = [str(path) for path in DPTUNE.rglob("*.py") if "dptune_rules" in path.read_text(encoding="utf-8")]
    assert named == []


def loaded_by(code: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """Top-level packages outside the standard library that `code` loads in a fresh interpreter."""
    program = (
        "import json, sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"  # None there makes an import fail
        "before = set(sys.modules)\n"
        f"{code}\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])) - STANDARD_LIBRARY


def test_importing_dptune_loads_nothing_else() -> None:
    assert loaded_by("import dptune") == {"dptune"}


def test_the_run_folders_format_loads_nothing_else() -> None:
    names = ", ".join(module_name(path) for path in (DPTUNE / "runfile").glob("*.py"))
    assert loaded_by(f"import {names}") == {"dptune"}


def test_the_command_line_starts_without_the_terminal_interface_or_numpy() -> None:
    assert loaded_by("import dptune.cli") & {"textual", "numpy", "torch", "pandas", "hta"} == set()


def readers() -> dict[str, Path]:
    """Every module that a machine which only reads reports may load; a folder without __init__.py is data."""
    elsewhere = ("dptune.capture.injected", "dptune.integrations", "dptune.demo", "dptune.trace.hta", "dptune.__main__")
    paths = (path for folder in (DPTUNE, RULES) for path in folder.rglob("*.py"))
    names = {module_name(path): path for path in paths if (path.parent / "__init__.py").is_file()}
    return {name: names[name] for name in sorted(names) if not within(name, *elsewhere)}


def test_no_reader_of_reports_imports_torch_pandas_or_isal_as_it_is_loaded() -> None:
    at_once = re.compile(rf"^(?:import|from) (?:{'|'.join(ABSENT)})\b", re.MULTILINE)
    found = readers()
    assert len(found) > 500
    assert [name for name, path in found.items() if at_once.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.thorough
def test_a_report_can_be_read_without_torch_pandas_or_isal() -> None:
    """Every module is loaded. CI runs `dptune demo` each time where none of these packages is installed."""
    loaded_by("\n".join(f"import {name}" for name in readers()), blocked=ABSENT)
