"""A program's bytes: its syntax tree, its encoding, and whether an edit of it is the one that was meant."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Callable

from dptune.advise.edit_call import EditError
from dptune.advise.edit_text import Text


def parsed(source: bytes) -> ast.Module:
    """The syntax tree; raises EditError where it is no program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape in a string that Python does not know is not our business
            return ast.parse(source)
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        raise EditError(f"the file is not valid Python: {error.msg}{where}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise EditError("the file cannot be parsed") from error


def encoding_of(source: bytes) -> str:
    """As the file declares it; "utf-8-sig" for one with a byte order mark, which that puts back."""
    try:
        lines = io.BytesIO(source.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        return tokenize.detect_encoding(lines.readline)[0]
    except SyntaxError as error:
        raise EditError(f"the file's encoding is not known: {error.msg}") from error


def rewritten(source: bytes, edit: Callable[[Text], str], meant: Callable[[], ast.Module], unsafe: str) -> bytes:
    """The program as `edit` makes it, in its own encoding; `unsafe` is raised where its tree is not what was meant."""
    encoding = encoding_of(source)
    try:
        text = Text(source.decode(encoding))
        result = edit(text).encode(encoding)
        same = text.content.encode(encoding) == source and ast.dump(parsed(result)) == ast.dump(meant())
    except (ValueError, LookupError, SyntaxError, tokenize.TokenError, RecursionError, EditError) as error:
        raise EditError(unsafe) from error
    if not same:
        raise EditError(unsafe)
    return result
