"""Where the nodes of a syntax tree stand in the text they were parsed from.

`ast` counts lines as Python ends them (\\n, \\r\\n, \\r: no form feed, no U+2028) and columns in bytes of UTF-8.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize

_LINE_END = re.compile(r"\r\n?|\n")
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Text:
    """The text of a program, without its byte order mark, and edits of it; each returns another text."""

    def __init__(self, content: str) -> None:
        self.content = content
        self._starts = _starts(content)

    def replaced(self, node: ast.expr, new: str) -> str:
        """With `new` instead of the node."""
        begin, end = self._span(node)
        return self.content[:begin] + new + self.content[end:]

    def added(self, call: ast.Call, argument: str) -> str:
        """With one more argument at the end of the call's, before a comma that ends them."""
        begin, end = self._span(call)
        if not call.args and not call.keywords:
            return self._insert(self._last(begin, end), argument)
        first = call.args[0] if call.args else None
        if isinstance(first, ast.GeneratorExp) and self._span(first)[1] == end:
            # f(x for x in y): the call's parentheses count as the generator's, and it needs its own now
            return self._insert(self._span(first)[0], "(", end, f", {argument})")
        return self._insert(self._last(begin, end), f", {argument}")

    def with_line(self, new: str, before: int) -> str:
        """With one more line before that one, ended as that is."""
        return self._insert(self._starts[before - 1], f"{new}{_end_of(self._row(before))}")

    def nested(self, head: str, begin: int, end: int) -> str:
        """With the lines from `begin` to `end` in a block that `head` begins."""
        deeper = self._indentation()
        rows = [self._row(line) for line in range(begin, end + 1)]
        block = "".join(f"{deeper}{row}" if row.strip() else row for row in rows)
        margin = rows[0][: len(rows[0]) - len(rows[0].lstrip(" \t\f"))]
        first = f"{margin}{head}{_end_of(rows[0])}"
        after = self._starts[end] if end < len(self._starts) else len(self.content)
        return self.content[: self._starts[begin - 1]] + first + block + self.content[after:]

    def _row(self, line: int) -> str:
        start, *after = self._starts[line - 1 : line + 1]
        return self.content[start : after[0] if after else None]

    def _indentation(self) -> str:
        """What the program indents by, where that can be told."""
        words = tokenize.generate_tokens(io.StringIO(_LINE_END.sub("\n", self.content)).readline)
        return next((word.string for word in words if word.type == tokenize.INDENT), "    ")

    def _insert(self, at: int, new: str, then_at: int | None = None, then_new: str = "") -> str:
        then_at = at if then_at is None else then_at
        return self.content[:at] + new + self.content[at:then_at] + then_new + self.content[then_at:]

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._row(line).encode()[:column].decode())

    def _last(self, begin: int, end: int) -> int:
        """Where the last word of a call's arguments ends, parentheses around them included, or its own opening one."""
        enclosed = f"({self.content[begin:end]})"  # no indentation counts within
        lines = io.StringIO(_LINE_END.sub("\n", enclosed)).readline
        words = [word for word in tokenize.generate_tokens(lines) if word.type not in _NO_CODE]
        before, last, _, _ = words[-4:]
        line, column = before.end if last.string == "," else last.end
        return begin + _starts(enclosed)[line - 1] + column - 1


def _end_of(row: str) -> str:
    """How a line is ended."""
    end = _LINE_END.search(row)
    return end[0] if end else "\n"


def _starts(text: str) -> list[int]:
    return [0, *(end.end() for end in _LINE_END.finditer(text))]
