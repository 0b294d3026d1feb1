"""Arrays that grow in place while a file is read, and words that are numbered as they are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST_ROWS = 64
_GROWTH = 1.5


class Table:
    """Columns of one length. They grow by realloc, which moves pages and does not copy them: no second copy is held."""

    def __init__(self, dtypes: Mapping[str, DTypeLike]) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(_FIRST_ROWS, dtype) for name, dtype in dtypes.items()}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def extend(self, values: Sequence[Any]) -> None:
        """Append rows: an array, or a sequence that numpy takes, for each column in their order, all of one length."""
        more = len(values[0])
        need = self._rows + more
        for column, new in zip(self._columns.values(), values, strict=True):
            if need > len(column):
                column.resize(max(need, int(len(column) * _GROWTH)), refcheck=False)
            column[self._rows : need] = new
        self._rows = need

    def append_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append rows given as tuples."""
        if rows:
            self.extend(list(zip(*rows, strict=True)))

    def columns(self) -> dict[str, Any]:
        """The columns, cut to their length; nothing can be added afterwards."""
        columns, self._columns = self._columns, {}
        for column in columns.values():
            column.resize(self._rows, refcheck=False)
        return columns


class WordTable(dict[str, int]):
    """Distinct words, numbered in the order they are first asked for; `characters` is what they hold together."""

    characters = 0

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        self.characters += len(word)
        return number


class Labels(dict[Any, int]):
    """The number of a pid or tid, which may be written as 5555 or "5555": both are the same label."""

    def __init__(self, words: WordTable) -> None:
        super().__init__()
        self.words = words

    def __missing__(self, value: Any) -> int:
        self[value] = number = self.words["" if value is None else str(value)]
        return number


class WordMask:
    """Which words of a growing table are wanted; each is asked for once."""

    def __init__(self, words: WordTable, wanted: Callable[[str], object]) -> None:
        self._words, self._wanted = words, wanted
        self._chosen = np.zeros(0, dtype=np.bool_)

    def of(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """For each number whether its word is wanted."""
        if len(self._chosen) < len(self._words):
            more = [bool(self._wanted(word)) for word in islice(self._words, len(self._chosen), None)]
            self._chosen = np.concatenate((self._chosen, np.array(more, dtype=np.bool_)))
        return self._chosen[numbers]
