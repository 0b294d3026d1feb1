"""The README as a package registry shows it: the registry has neither the repository's files nor its address."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_PICTURE_BELOW = re.compile(r"(?P<end>:?)\n\n!\[[^\]]*\]\((?!https?://)[^)]*\)(?=\n)")
_LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?!https?://)(?P<file>[^)#]*)[^)]*\)")
_DEVELOPMENT = re.compile(r"^## Development\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
_RELEASED = {
    "$ pip install .               # in a checkout; see Install": "$ pip install dptune",
    "; until the first release, `pip install .` in a checkout.": ".",
}
_PAGES = "\nThe pages named `docs/...` are in the source distribution.\n"


class RegistryReadme(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, object]) -> None:
        """Add the text."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": registry_text(readme)}


def registry_text(readme: str) -> str:
    """The README without pictures, links into the repository, and what concerns a checkout alone."""
    for here, there in _RELEASED.items():
        if here not in readme:
            raise ValueError(f"README.md no longer holds {here!r}, which the registry's text replaces")
        readme = readme.replace(here, there)
    parts = _FENCE.split(_DEVELOPMENT.sub("", readme))
    text = "".join(part if part.startswith("```") else _without_files(part) for part in parts)
    return text.replace("\n## Licence\n", f"{_PAGES}\n## Licence\n")


def _without_files(markdown: str) -> str:
    """Pictures are taken out, a colon before one is a full stop; a link is its words and the page that it leads to."""
    text = _PICTURE_BELOW.sub(lambda found: "." if found["end"] else "", markdown)
    return _LINK.sub(_words_of, text)


def _words_of(link: re.Match[str]) -> str:
    words, file = link["words"], link["file"]
    return words if words == file or not file.endswith(".md") else f"{words} ({file})"
