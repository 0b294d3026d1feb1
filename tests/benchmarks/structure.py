"""How packages are built: files, lines, functions, who imports whom, circles and repeated lines.

    python tests/benchmarks/structure.py [NAME=]FOLDER[,FOLDER] ...

Each folder is a package, or holds packages; tests in it are left out. Only Python is read, nothing is imported.

fan-out   modules of the same code that a module imports, also in functions; not those for types only
fan-in    modules that import it
circles   modules that import each other, directly or through others, and the same of rooms (the packages' own packages)
repeated  share of the lines in runs of six or more that stand in two places; blank lines, comments, docstrings, imports
          and lines without a letter are left out
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median, quantiles

RUN = 6  # lines
HEADER = (
    "                        lines of a file  functions: lines   fan-out       fan-in      in circles       repeated\n"
    "              files  lines median  most   count median 90 %  median most  median most  modules rooms"
)
Graph = dict[str, set[str]]


def modules(folders: Iterable[Path]) -> dict[str, Path]:
    """The files of the packages by the name that they are imported by."""
    found = {}
    for folder in folders:
        top = folder.parent if (folder / "__init__.py").exists() else folder
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            if "tests" in parts:
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, tree: ast.Module, is_package: bool, known: dict[str, Path]) -> set[str]:
    """The modules of the same code that a module imports."""
    package = name if is_package else name.rpartition(".")[0]
    found = set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            start = ".".join(part for part in (base if node.level else "", node.module) if part)
            inner = {f"{start}.{alias.name}" for alias in node.names}
            found |= inner & known.keys()
            if not inner <= known.keys():
                found.add(start)
    return (found & known.keys()) - {name}


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those in `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run(child)


def circles(graph: Graph) -> list[set[str]]:
    """Sets of two or more nodes, each of which is reached from every other of its set."""
    reached = {node: _reached(graph, node) for node in graph}
    found: list[set[str]] = []
    for node in graph:
        together = {other for other in reached[node] if node in reached[other]} | {node}
        if len(together) > 1 and together not in found:
            found.append(together)
    return found


def _reached(graph: Graph, node: str) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        for other in graph.get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


def of_rooms(graph: Graph) -> Graph:
    """The same between rooms: the packages in a package, and its own modules, each with all that they hold."""
    found: Graph = defaultdict(set)
    for name, imported in graph.items():
        found[_room(name)] |= {_room(other) for other in imported if other.count(".")} - {_room(name)}
    return dict(found)


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def repeated_lines(texts: Iterable[tuple[str, ast.Module]]) -> tuple[int, int]:
    """The lines in runs that stand in two places, and all lines that are looked at."""
    files = [_looked_at(text, tree) for text, tree in texts]
    places = defaultdict(list)
    for number, lines in enumerate(files):
        for start in range(len(lines) - RUN + 1):
            places[tuple(lines[start : start + RUN])].append((number, start))
    repeated = [place for found in places.values() if len(found) > 1 for place in found]
    within = {(number, start + at) for number, start in repeated for at in range(RUN)}
    return len(within), sum(map(len, files))


def _looked_at(text: str, tree: ast.Module) -> list[str]:
    left_out: set[int] = set()
    for node in ast.walk(tree):
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if said or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return [line for line in lines if any(map(str.isalpha, line)) and not line.startswith("#")]


def row(title: str, folders: list[Path]) -> str:
    """One line of the table."""
    known = modules(folders)
    texts = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    graph = {name: imports(name, tree, known[name].name == "__init__.py", known) for name, tree in trees.items()}
    used = {name: sum(name in imported for imported in graph.values()) for name in graph}
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = [text.count("\n") for text in texts.values()]
    outs, ins = [len(imported) for imported in graph.values()], list(used.values())
    in_circles = [sum(map(len, circles(each))) for each in (graph, of_rooms(graph))]
    repeated, looked_at = repeated_lines([(texts[name], trees[name]) for name in known])
    return (
        f"{title:14s}{len(lines):5,d} {sum(lines):6,d} {median(lines):6.0f} {max(lines):5,d} {len(lengths):7,d} "
        f"{median(lengths):6.0f} {quantiles(lengths, n=10)[-1]:4.0f} {median(outs):7.0f} {max(outs):4d} "
        f"{median(ins):7.0f} {max(ins):4d} {in_circles[0]:8d} {in_circles[1]:5d} {100 * repeated / looked_at:8.1f} %"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(HEADER)
    for word in sys.argv[1:]:
        title, _, names = word.rpartition("=")
        folders = [Path(name) for name in names.split(",")]
        print(row(title or folders[0].name, folders))
