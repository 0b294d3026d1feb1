"""The scripts behind tests/benchmarks/HOUSE.md, on code and figures that are counted by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_who_imports_whom_circles_and_repeated_lines(tmp_path: Path) -> None:
    """a.x and b.y import each other; a.types is imported for types only; six of a.x's eight lines repeat in b.y."""
    same = "".join(f"    number{at} = {at}\n" for at in range(6))
    files = {
        "a/__init__.py": "",
        "a/x.py": f"from top.b import y\n\ndef f():\n{same}\n\nname = y\n",
        "a/types.py": "class T: ...\n",
        "b/__init__.py": "from .y import g\n",
        "b/y.py": (
            f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from top.a.types import T\n\n"
            f"def g():\n    import top.a.x\n{same}\n    return top.a.x\n"
        ),
        "__init__.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    structure = script("structure")
    known = structure.modules([tmp_path / "top"])
    assert sorted(known) == ["top", "top.a", "top.a.types", "top.a.x", "top.b", "top.b.y"]
    trees = {name: structure.ast.parse(path.read_text()) for name, path in known.items()}
    graph = {
        name: structure.imports(name, tree, known[name].name == "__init__.py", known) for name, tree in trees.items()
    }
    assert {name: sorted(found) for name, found in graph.items() if found} == {
        "top.a.x": ["top.b.y"],
        "top.b": ["top.b.y"],
        "top.b.y": ["top.a.x"],
    }
    assert structure.circles(graph) == [{"top.a.x", "top.b.y"}]
    assert structure.circles(structure.of_rooms(graph)) == [{"top.a", "top.b"}]
    texts = [(path.read_text(), trees[name]) for name, path in known.items()]
    assert structure.repeated_lines(texts)[0] == 12


def test_figures_of_two_commits() -> None:
    before = {
        "run": {"step": {"median_ns": 5, "lean_steps": 2}, "gap": [1, 2], "missing": {"peak": "no GPU"}, "old": 1}
    }
    now = {"run": {"step": {"time_ns": 5, "light_steps": 2}, "gap": [1, 3], "missing": {"peak": "a CPU"}}}
    assert script("figures").compare(before, now).splitlines() == [
        "1 runs: 3 figures equal, 1 differ, 1 only before, 0 only after",
        "gap: 1 in 1 runs: run",
        "    gap[1]: 2 -> 3",
    ]


@pytest.mark.parametrize(("names", "shown"), [([], ["rules", "trace"]), (["trace"], ["trace"])])
def test_coverage_by_room(tmp_path: Path, names: list[str], shown: list[str]) -> None:
    rooms = script("room_coverage")

    def counted(lines: int, branches: int) -> dict[str, dict[str, int]]:
        return {
            "summary": {
                "covered_lines": lines,
                "num_statements": 4,
                "covered_branches": branches,
                "num_branches": 2,
            }
        }

    files = {
        "advisor/dptune/trace/columns.py": counted(3, 1),
        "advisor/dptune/trace/kineto/text.py": counted(4, 2),
        "rules/dptune_rules/host/full_sorts.py": counted(1, 0),
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    found = rooms.rooms(tmp_path / "report.json")
    assert found == {"trace": [7, 8, 3, 4], "rules": [1, 4, 0, 2]}
    lines = rooms.table(found, found, names).splitlines()[1:]
    assert [line.split()[0] for line in lines] == shown
    assert lines[-1].split() == ["trace", "87.5", "%", "87.5", "%", "75.0", "%", "75.0", "%", "8"]
