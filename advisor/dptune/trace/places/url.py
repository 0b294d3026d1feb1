"""URLs as users write them: what is one, its parts, and how it is shown without its secrets."""

from __future__ import annotations

import re

from dptune.runfile.redaction import HIDDEN

_PROTOCOL = r"[A-Za-z][A-Za-z0-9+.-]+"  # one letter is a Windows drive
_URL = re.compile(rf"(?P<head>(?:{_PROTOCOL}::)*{_PROTOCOL}://)(?P<path>.*?)(?P<rest>::.*)?", re.DOTALL)
_WEB = ("http://", "https://")
_LOGIN = re.compile(rf"({_PROTOCOL}://)[^/?#]*:[^/?#]*@|(https?://)[^/?#]*@", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^?#\s]*)[?#].*|([^?]*)\?[\w.-]+=.*", re.IGNORECASE | re.DOTALL)


def is_url(name: str) -> bool:
    """Whether a name is a URL and no path; `C:\\x` is a path."""
    return _URL.match(name) is not None


def parts(url: str) -> tuple[str, str, str]:
    """What stands before a URL's path, the path, and what follows it: a query, or the URL that it lies in.

    `zip://a/b.json::s3://bucket/c.zip` is `zip://`, `a/b.json` and the rest; a host or a bucket begins the path.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"{url} is not a URL")
    head, path, rest = found["head"], found["path"], found["rest"] or ""
    if head.lower().endswith(_WEB):
        cut = min(at for at in (path.find("?"), path.find("#"), len(path)) if at >= 0)
        path, rest = path[:cut], path[cut:] + rest
    return head, path, rest


def redacted(name: str) -> str:
    """A URL without its login and its query, which may hold a password, a signature or a token; a path as it is."""
    return "::".join(map(_redacted, name.split("::"))) if is_url(name) else name


def _redacted(url: str) -> str:
    url = _LOGIN.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}@", url)
    return _QUERY.sub(lambda found: f"{found[1] or found[2]}?{HIDDEN}", url)
