"""What a user reads is in the field's terms: constructions that native speakers do not use are not in any message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = re.compile(
    r"what is learned|learns? something else|\bcomes? (?:late|last)\b|\bhow sure\b|\b(?:is|are|was|were|be) told\b"
    r"|\btells?\b|pieces? of advice|beside which|\bso many\b|\bmeanwhile\b|\bbegun\b|\banew\b|\bceiling\b"
    r"|\bexchang(?:e|es|ed|ing)\b"
    r"|\bin vain\b|prove it|lies? among|stands? (?:in|under|there)\b|\bcalculat\w+|\bquicker\b|\bgoes by\b|made before"
    r"|\b(?:trials?|runs?) a side\b|\bunprofiled\b|\b(?:lean|rich) window\b",
    re.IGNORECASE,
)
# Names of fields, and of what a trace or another library calls so.
EXEMPT = {"expert-parallel exchange"}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module, without docstrings and descriptions of fields."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
            silent.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def test_messages_are_in_plain_terms():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text!r}"
        for folder in ("advisor", "rules")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in messages(path)
        if " " in text and text not in EXEMPT and (match := AVOIDED.search(text))
    ]
    assert found == []


def test_it_sees_what_is_avoided(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""So many."""\nprint(f"rank {0} comes late")\n')
    assert [match[0] for _, text in messages(module) if (match := AVOIDED.search(text))] == ["comes late"]
