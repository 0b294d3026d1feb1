"""`[tool.dptune]` in pyproject.toml (or dptune.toml): which rules run, and the thresholds they decide by.

    [tool.dptune]
    select = ["DP1", "DP501"]        # codes or prefixes; every stable rule where it is left out
    ignore = ["DP102"]
    preview = true                   # run rules that are not stable yet

    [tool.dptune.rules.DP501]
    warning_share = 0.10

    [tool.dptune.budget]             # what `dptune check` fails for
    step_ms = 120
    peak_memory_gb = 70

    [tool.dptune.cluster]            # for --cluster
    rank_timeout_s = 300             # longer is tried again, `attempts` times in all
    workers = 16                     # how many --cluster slurm starts
    slurm = { queue = "cpu", account = "ml", walltime = "00:30:00", memory = "8GB" }

In dptune.toml the same keys stand at the top, without `tool.dptune`. Whether the run can be judged at all is not a
rule: it cannot be ignored.
"""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from dptune.errors import UsageError
from dptune.rule import Rule

Codes = Annotated[tuple[str, ...], Field(strict=False, description="rule codes, or prefixes of them like DP1")]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_NEAR = 0.82  # of the name of a table to `dptune`: a letter lost, doubled or swapped, and not `tune`


class ClusterSettings(BaseModel):
    """How `--cluster` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="how many slurm or local starts")
    wait_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = Field(120, description="for a worker")
    rank_timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = Field(
        600, description="for one trace"
    )
    attempts: Annotated[int, Field(ge=1, le=100)] = Field(3, description="to read a trace")
    slurm: dict[str, Any] = Field(default_factory=dict, description="arguments of dask-jobqueue's SLURMCluster")


class Settings(BaseModel):
    """What the user configured. The defaults run every stable rule with its own thresholds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    select: Codes | None = None
    ignore: Codes = ()
    preview: bool = False
    rules: dict[str, dict[str, Limit]] = Field(default_factory=dict, description="code -> threshold -> value")
    budget: dict[str, Limit] = Field(default_factory=dict, description="figure -> upper limit")
    cluster: ClusterSettings = Field(ClusterSettings(), description="how --cluster reads")
    _source: str = PrivateAttr("the configuration")

    @property
    def source(self) -> str:
        """The file that they are from."""
        return self._source

    def runs(self, rule: Rule) -> bool:
        """Whether this rule is to be run: the longest matching entry decides, and `ignore` wins a tie.

        A preview rule runs when its whole code is selected, or with `preview = true`.
        """
        selected = 0 if self.select is None else _longest_match(rule.code, self.select)
        if selected is None:
            return False
        ignored = _longest_match(rule.code, self.ignore)
        if ignored is not None and ignored >= selected:
            return False
        return not rule.preview or self.preview or rule.code in (self.select or ())

    def limits(self, rule: Rule) -> dict[str, float]:
        """The thresholds of this rule that the user set."""
        return dict(self.rules.get(rule.code, {}))

    def check_budgets(self, known: Iterable[str]) -> None:
        """Raise UsageError for a budget of what is no such figure, naming the nearest one."""
        names = list(known)
        for name in self.budget:
            if name not in names:
                raise _unknown(f"`budget` in {self._source}", "budget", name, names)
            self._check_share(f"budget.{name}", self.budget[name])

    def check_against(self, rules: Iterable[Rule]) -> None:
        """Raise UsageError for a code or threshold that no installed rule has, naming the nearest one."""
        known = {rule.code: rule for rule in rules}
        by_name = {rule.name: rule.code for rule in known.values()}
        for key, codes in (("select", self.select or ()), ("ignore", self.ignore)):
            for code in codes:
                if code in by_name:
                    raise _by_name(f"`{key}` in {self._source}", code, by_name)
                if not code or not any(name.startswith(code) for name in known):
                    raise _unknown(f"`{key}` in {self._source}", "rule", code, known)
        for code, thresholds in self.rules.items():
            if code in by_name:
                raise _by_name(f"`rules` in {self._source}", code, by_name)
            if code not in known:
                raise _unknown(f"`rules` in {self._source}", "rule", code, known)
            names = [threshold.name for threshold in known[code].thresholds]
            for name in thresholds:
                if name not in names:
                    raise _unknown(f"`rules.{code}` in {self._source}", "threshold", name, names)
                self._check_share(f"rules.{code}.{name}", thresholds[name])

    def _check_share(self, key: str, value: float) -> None:
        if key.endswith("_share") and value > 1:
            message = f"`{key}` in {self._source} is {value:g}, but a share is at most 1"
            raise UsageError(message, "a tenth of a step is 0.10")


def load(start: Path | None = None) -> Settings:
    """The settings of the nearest dptune.toml, or pyproject.toml with `[tool.dptune]`, at `start` or above it.

    `start` is a folder, the current one by default. Without such a file: the defaults. Raises UsageError for a file
    that is not TOML and for keys or values that do not fit.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        dptune_toml, project = folder / "dptune.toml", folder / "pyproject.toml"
        if dptune_toml.exists():
            return _settings(_read(dptune_toml), dptune_toml)
        if project.exists():
            tool = _read(project).get("tool", {})
            if not isinstance(tool, dict):
                continue
            if "dptune" in tool:
                return _settings(tool["dptune"], project)
            for name in difflib.get_close_matches("dptune", tool, cutoff=_NEAR):
                _warn_of(name, project)
    return Settings()


@cache
def _warn_of(table: str, path: Path) -> None:
    """Once: a command may load its settings for each of several runs."""
    warning = f"[tool.{table}] in {path} is ignored: did you mean [tool.dptune]?"
    print(f"dptune: warning: {warning}", file=sys.stderr)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # reading a pipe or a device may never end
        raise UsageError(f"{path} is not a regular file", "dptune reads its settings from this path: move it away")
    try:
        return _parsed(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "fix the file, or move it away") from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise UsageError(f"{path} holds a number of thousands of digits", "fix the file") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply to be read", "fix the file, or move it away") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, Any]:
    """Once for each text: a command may load its settings for each of several runs. Nobody changes the result."""
    return tomllib.loads(text)


def _settings(table: Any, path: Path) -> Settings:
    try:
        settings = Settings.model_validate(table)
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if where == "tool" and path.name == "dptune.toml":
            raise UsageError(
                f"{path}: unknown key 'tool'", "write [budget] there: [tool.dptune.budget] is for pyproject.toml"
            ) from None
        if first["type"] == "extra_forbidden":
            known = [f"cluster.{name}" for name in ClusterSettings.model_fields]
            raise _unknown(
                str(path), "key", where, known if first["loc"][0] == "cluster" else list(Settings.model_fields)
            ) from None
        raise UsageError(
            f"{path}: `{where or 'tool.dptune'}` must be {_expected(first['loc'])}", f"found {_found(first['input'])}"
        ) from None
    settings._source = str(path)
    return settings


def _expected(loc: Sequence[int | str]) -> str:
    """What belongs at this place of the table, in a user's words."""
    if not loc:
        return "a table"
    if loc[0] in ("select", "ignore"):
        return 'a list of rule codes, for example ["DP1", "DP501"]'
    if loc[0] == "cluster":
        return _expected_of_cluster(loc)
    if loc[0] == "preview":
        return "true or false"
    if len(loc) > 2 or (len(loc) == 2 and loc[0] == "budget"):
        return "a number, 0 or above"
    if loc[0] == "budget":
        return "a table of figures and their limits, for example step_ms = 120"
    return "a table of thresholds and their numbers" if len(loc) == 2 else "a table of rules, for example rules.DP501"


def _expected_of_cluster(loc: Sequence[int | str]) -> str:
    if len(loc) == 1 or loc[1] == "slurm":
        return 'a table, for example slurm = { queue = "cpu", walltime = "00:30:00" }'
    whole = {"workers": "10000", "attempts": "100"}.get(str(loc[1]))
    return f"a whole number from 1 to {whole}" if whole else "a number of seconds, above 0 and at most 86400"


def _found(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return f"{value!r:.80}"
    except RecursionError:
        return "something nested too deeply"
    except ValueError:
        return "a number of thousands of digits"


def _longest_match(code: str, entries: Iterable[str]) -> int | None:
    return max((len(entry) for entry in entries if code.startswith(entry)), default=None)


def _by_name(where: str, name: str, codes: Mapping[str, str]) -> UsageError:
    return UsageError(f"{where}: '{name}' is the name of a rule, not its code", f"use '{codes[name]}'")


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> UsageError:
    known = sorted(known)
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    begun = next((full[: len(name)] for full in known if name and full.casefold().startswith(name.casefold())), None)
    if what == "rule" and begun:
        return UsageError(f"{where}: unknown {what} '{name}'", f"did you mean '{begun}'?")
    hint = f"did you mean '{folded[near[0]]}'?" if near else f"known: {', '.join(known) or 'none'}"
    return UsageError(f"{where}: unknown {what} '{name}'", hint)
