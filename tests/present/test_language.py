"""What a user reads is in the field's terms: no message and no page has constructions that native speakers avoid."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptune.present.tui.background import uncollected

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = re.compile(
    r"what is learned|learns? something else|\bcomes? (?:late|last)\b|\bhow sure\b|\b(?:is|are|was|were|be) told\b"
    r"|\btells?\b|pieces? of advice|beside which|\bso many\b|\bmeanwhile\b|\bbegun\b|\banew\b|\bceiling\b"
    r"|\bexchang(?:e|es|ed|ing)\b"
    r"|\bin vain\b|prove it|lies? among|stands? (?:in|under|there)\b|\bcalculat\w+|\bquicker\b|\bgoes by\b|made before"
    r"|\b(?:trials?|runs?) a side\b|\bunprofiled\b|\b(?:lean|rich) window\b|\bsuch as\b|\bas it is\b"
    # One word per idea: saving, results, rules, input, untraced, light and detailed, prediction, latency, create.
    r"|\bgain(?:s|ed)?\b|(?<!--)\bnumerics\b|\bchecks? (?:ran|could not)|\bloader waits?\b|steps? without the profiler"
    r"|traced (?:lightly|in detail)|\bpromised\b|\bverbs?\b"
    r"|\b(?:do|does) not say\b|\bnothing says\b|\bhad no effect\b|\bstart-ups\b|\bstart-up (?:dominates|takes)"
    r"|\b(?:optimizer|scheduler|loader|scaler|sampler|generator)s? (?:is |was |are )?made (?:at|after|before|in)\b"
    r"|\bcosts? (?:correctness|convergence|accuracy|quality)\b",
    re.IGNORECASE,
)
# In documentation that is published: the pages of rules, and the schemas and tables of figures.
AVOIDED_IN_PAGES = re.compile(
    rf"{AVOIDED.pattern}|\bspeaks?\b|\bsays?\b|\bsaid\b|\btold\b|\bcome by\b|\bas ever\b|\bbeside\b"
    r"|\bbeg(?:in|ins|an)\b",
    re.IGNORECASE,
)
# Names of fields, and of what a trace or another library calls so.
EXEMPT = {"expert-parallel exchange"}
FIELD = re.compile(r"numerics=|`numerics`")  # of JSON and of the rules' interface
TITLES = re.compile("Machine Calculation of Complex Fourier Series")  # of works that pages refer to


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module, without docstrings and descriptions of fields."""
    silent: set[int] = set()
    for node in ast.walk(tree):  # what is in a node comes after it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
            silent.update(map(id, ast.walk(node)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def published(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The page of a rule; descriptions of fields, and docstrings of the records that hold them."""
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "RULE" in assigned:
        yield 1, ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (described := list(_descriptions(node))):
            yield node.lineno, ast.get_docstring(node) or ""
            yield from described


def _descriptions(record: ast.ClassDef) -> Iterator[tuple[int, str]]:
    for node in ast.walk(record):
        if isinstance(node, ast.keyword) and node.arg == "description" and isinstance(node.value, ast.Constant):
            yield node.value.lineno, str(node.value.value)


def avoided(text: str) -> re.Match[str] | None:
    return AVOIDED_IN_PAGES.search(TITLES.sub("", text))


@pytest.mark.long
@uncollected()  # to look at all objects again for every few files takes a fifth of the time
def test_messages_pages_and_schemas_are_in_plain_terms():
    found, with_pages = [], set()
    for path in sorted(path for folder in ("advisor", "rules") for path in (ROOT / folder).rglob("*.py")):
        tree, place = parsed(path), path.relative_to(ROOT)
        shown = [(line, text, AVOIDED.search(text)) for line, text in messages(tree) if " " in text]
        pages = [(line, text, avoided(text)) for line, text in published(tree)]
        with_pages |= {path.name} if pages else set()
        texts = [one for one in shown if one[1] not in EXEMPT] + pages
        found += [f"{place}:{line}: {match[0]!r} in {text!r}" for line, text, match in texts if match]
    assert with_pages >= {"advice.py", "account.py", "bucket_size.py"}
    assert found == []


def test_documentation_is_in_plain_terms():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "sample_traces").rglob("README.md")]
    assert len(pages) > 20
    found = [
        f"{page.relative_to(ROOT)}:{number}: {match[0]!r}"
        for page in pages
        for number, row in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if (match := AVOIDED.search(row)) and not FIELD.search(row)
    ]
    assert found == []


def test_it_sees_what_is_avoided(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""So many."""\nprint(f"rank {0} comes late")\n')
    assert [match[0] for _, text in messages(parsed(module)) if (match := AVOIDED.search(text))] == ["comes late"]


def test_it_sees_what_is_avoided_in_a_page_and_in_a_description(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""The rule speaks."""\nRULE = 1\nclass Figures:\n    """What is told."""\n'
        '    idle_ns: int = Field(description="with compute beside it")\n'
    )
    assert [match[0] for _, text in published(parsed(module)) if (match := avoided(text))] == [
        "speaks",
        "is told",
        "beside",
    ]
    module.write_text('"""It speaks."""\n')
    assert list(published(parsed(module))) == []
