"""What a user reads is in the field's terms: no message and no page has constructions that native speakers avoid."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import CodeType

import pytest

from dptune.present.tui.background import uncollected

ROOT = Path(__file__).resolve().parents[2]
_AVOIDED = (
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
    r"|\bcosts? (?:correctness|convergence|accuracy|quality)\b"
)
AVOIDED = re.compile(rf"\b(?:{_AVOIDED})", re.IGNORECASE)  # looked for where a word begins only: a third of the time
# In documentation that is published: the pages of rules, and the schemas and tables of figures.
AVOIDED_IN_PAGES = re.compile(
    rf"\b(?:{_AVOIDED}|speaks?\b|says?\b|said\b|told\b|come by\b|as ever\b|beside\b|beg(?:in|ins|an)\b)",
    re.IGNORECASE,
)
# Names of fields, and of what a trace or another library calls so.
FIELD = re.compile(r"numerics=|`numerics`")  # of JSON and of the rules' interface
TITLES = re.compile("Machine Calculation of Complex Fourier Series")  # of works that pages refer to


def messages(source: str) -> set[str]:
    """The texts of a module, without docstrings, which compiling leaves out, and descriptions of fields."""
    evaluated = source.replace("from __future__ import annotations\n", "\n")  # else annotations are texts, too
    return {*_texts(compile(evaluated, "module", "exec", dont_inherit=True, optimize=2))} - _of_fields(source)


def _texts(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, CodeType):
        yield from chain.from_iterable(map(_texts, constant.co_consts))
    elif isinstance(constant, tuple | frozenset):
        yield from chain.from_iterable(map(_texts, constant))


def _of_fields(source: str) -> set[str]:
    if "Field(" not in source:
        return set()
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    fields = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Field")
    inside = chain.from_iterable(map(ast.walk, fields))
    return {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def published(source: str) -> Iterator[str]:
    """The page of a rule; descriptions of fields, and docstrings of the records that hold them."""
    if "RULE" not in source and "description" not in source:
        return
    tree = ast.parse(source)
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "RULE" in assigned:
        yield ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (described := list(_descriptions(node))):
            yield ast.get_docstring(node) or ""
            yield from described


def _descriptions(record: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(record):
        if isinstance(node, ast.keyword) and node.arg == "description" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def avoided(text: str) -> re.Match[str] | None:
    return AVOIDED_IN_PAGES.search(TITLES.sub("", text))


@pytest.mark.long
@uncollected()  # to look at all objects again for every few files takes a fifth of the time
def test_messages_pages_and_schemas_are_in_plain_terms():
    found, with_pages = [], set()
    for path in sorted(path for folder in ("advisor", "rules") for path in (ROOT / folder).rglob("*.py")):
        source, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        shown = [(text, AVOIDED.search(text)) for text in messages(source) if " " in text]
        pages = [(text, avoided(text)) for text in published(source)]
        with_pages |= {path.name} if pages else set()
        found += [f"{place}: {match[0]!r} in {text!r}" for text, match in shown + pages if match]
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


def test_it_sees_what_is_avoided():
    source = '"""So many."""\nprint(f"rank {0} comes late")\nprint({"a": ("in vain",)})\nFigure = Field("it tells")\n'
    found = sorted(match[0] for text in messages(source) if (match := AVOIDED.search(text)))
    assert found == ["comes late", "in vain"]


def test_it_sees_what_is_avoided_in_a_page_and_in_a_description():
    source = (
        '"""The rule speaks."""\nRULE = 1\nclass Figures:\n    """What is told."""\n'
        '    idle_ns: int = Field(description="with compute beside it")\n'
    )
    assert [match[0] for text in published(source) if (match := avoided(text))] == ["speaks", "is told", "beside"]
    assert list(published('"""It speaks."""\n')) == []
