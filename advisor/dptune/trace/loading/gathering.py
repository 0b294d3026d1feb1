"""What a user names -> a Run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from dptune.errors import DptuneError, NotATraceError, RunError, UsageError
from dptune.finding import Finding
from dptune.runfile.exit_status import exit_text
from dptune.runfile.facts import Facts
from dptune.runfile.ranks import spans
from dptune.trace.events import Trace
from dptune.trace.kineto.header import RANK_IMPOSSIBLE
from dptune.trace.loading import ranks, run_folder
from dptune.trace.loading.reading import Digest, Digested, Outcome, read, read_all
from dptune.trace.loading.same_device import without_contradictions
from dptune.trace.loading.same_run import DOUBTFUL_NS, apart, one_after_another
from dptune.trace.places.files import Files, find
from dptune.trace.places.source import located, redacted, shown
from dptune.trace.run import MOST_RANKS, Progress, RankTrace, Run

DigestOf = Callable[[int, Facts | None, Callable[[], Trace] | None], Digest]

_MOST_SIZES = 8  # that are named where traces contradict each other
_MOST_NAMED = 3  # files that are left out for one rank


def load(
    paths: Sequence[str | os.PathLike[str]],
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    jobs: int = 1,
    cached: bool = False,
    digest: DigestOf | None = None,
) -> Run:
    """Read a run folder, one trace, several files or globs, or a folder of foreign traces.

    `progress` is called with what is being read, how many bytes are done, and how many there are. `jobs` processes read
    several large traces at once; a script that asks for more than one needs its `if __name__ == "__main__":`. Or
    `executor` does: any concurrent.futures.Executor, of one machine or of many that see the same files. `cached` takes
    the columns of traces that were read before, and keeps those of new ones. `digest` is given a rank (0 where only its
    trace has the number), its facts and what reads its detailed window, where there are any, and returns a function
    that is called with the trace where it is read: the run then holds its results in place of events, and `with_events`
    reads ranks in full. A file that cannot be read is a finding as long as another can; otherwise its TraceError, or a
    RunError that counts them, is raised.
    """
    files = find(paths)
    recorded = [run_folder.contents(path) for path in files.run_folders]
    _check_one_run(recorded)
    report = progress or (lambda _what, _done, _total: None)
    named = [path for part in recorded for path in part.traces.values()] + files.traces
    names = list(map(os.fspath, named))
    digests = {} if digest is None else _digests(digest, recorded, names, cached)
    gathered = _Gathered(files, read_all(names, executor, jobs, cached, report, digests), cached)
    for part in recorded:
        gathered.add_folder(part)
        for rank, path in part.traces.items():
            trace = gathered.take(path)
            if trace is not None and gathered.is_of(rank, trace, part):
                gathered.recorded.append(trace)
                gathered.place(rank, ranks.FACTS, trace, part.details.get(rank))
    for path in files.traces:
        trace = gathered.take(path)
        if trace is not None and not gathered.is_later_window(path, trace):
            gathered.foreign.append(trace)
            known = ranks.rank_of(trace, path)
            if ranks.beyond(path.name):
                text = f"{shown(path)}: the rank in the file name is above {MOST_RANKS:,} and is ignored"
                gathered.findings.append(Finding(code=RANK_IMPOSSIBLE, level="partial", text=text))
            if known is None:
                gathered.rankless.append(trace)
            else:
                gathered.place(*known, trace)
    return gathered.run()


def with_events(
    run: Run,
    wanted: Collection[int],
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    jobs: int = 1,
    cached: bool = False,
) -> Run:
    """The run with the events of some ranks of which it has a digest; one that can no longer be read is a finding.

    Raises UsageError for a rank that the run does not have.
    """
    if unknown := sorted(set(wanted) - run.by_rank.keys()):
        raise UsageError(f"no rank {unknown[0]} was read", f"these were: {spans(run.by_rank)}")
    chosen = {rank.light.path: rank for rank in run.digested if rank.rank in wanted}
    outcomes = read_all(list(chosen), executor, jobs, cached, progress or (lambda _what, _done, _total: None))
    ranks, findings = list(run.ranks), list(run.findings)
    for path, rank in chosen.items():
        outcome = outcomes[path]
        if isinstance(outcome, Trace):
            ranks.append(replace(rank, light=outcome, digest=None))
        elif isinstance(outcome, DptuneError):
            findings.append(Finding(code="file-unreadable", level="partial", text=outcome.message))
    whole = {rank.rank for rank in ranks}
    digested = [rank for rank in run.digested if rank.rank not in whole]
    if digested:
        text = (
            f"ranks read in full: {spans(whole) or 'none'}. Kernels, gaps, copies, memory and call sites cover these "
            f"only; of {len(digested):,} others, only steps and collectives were read "
            "(--detail-ranks all reads everything)"
        )
        findings.append(Finding(code="ranks-read-in-part", level="info", text=text))
    return replace(run, ranks=sorted(ranks, key=lambda rank: rank.rank), digested=digested, findings=findings)


def _digests(
    digest: DigestOf, recorded: Sequence[run_folder.Contents], names: Sequence[str], cached: bool
) -> dict[str, Digest]:
    """By file the function that makes its digest."""
    found = {name: digest(0, None, None) for name in names}
    for part in recorded:
        for rank, path in part.traces.items():
            detail = part.details.get(rank)
            read_detailed = None if detail is None else partial(read, os.fspath(detail), cached)
            found[os.fspath(path)] = digest(rank, part.facts.get(rank), read_detailed)
    return found


def _check_one_run(recorded: Sequence[run_folder.Contents]) -> None:
    """Folders of several nodes hold different ranks; folders that share a rank are different recordings."""
    seen: dict[int, run_folder.Contents] = {}
    for part in recorded:
        for rank in {*part.facts, *part.traces}:
            if rank in seen:
                both = f"{shown(seen[rank].path)} and {shown(part.path)}"
                raise RunError(
                    f"{both} are different recordings: both hold rank {rank}, and their figures would be mixed",
                    "name one recording, or the folders of the nodes of one; two recordings: `dptune compare A B`",
                )
            seen[rank] = part


class _Gathered:
    """What was read, where it has its place, and what went wrong on the way."""

    def __init__(self, files: Files, read: dict[str, Outcome], cached: bool) -> None:
        self.read = read
        self.digests: dict[str, object] = {}
        self.cached = cached
        self.placed: dict[int, RankTrace] = {}
        self.foreign: list[Trace] = []
        self.recorded: list[Trace] = []
        self.rankless: list[Trace] = []
        self.failed: list[DptuneError] = []
        self.parts: list[run_folder.Contents] = []
        self.bare = [run_folder.contents(path) for path in files.bare]
        self.findings: list[Finding] = list(files.findings)
        self.bases: list[str] = []
        self.left_out: dict[int, list[str]] = {}
        self.first_windows: dict[tuple[Path, str], Trace] = {}
        self.later_windows: list[Trace] = []

    def add_folder(self, part: run_folder.Contents) -> None:
        self.parts.append(part)
        self.findings += part.findings

    def take(self, path: Path) -> Trace | None:
        found = self.read.pop(os.fspath(path))
        if isinstance(found, Digested):
            self.digests[found.head.path] = found.digest
            return found.head
        if isinstance(found, Trace):
            return found
        self.failed.append(found)
        if isinstance(found, NotATraceError) and not _claims_a_rank(path):
            self.findings.append(Finding(code="file-not-a-trace", level="info", text=f"skipped: {found.message}"))
        else:
            self.findings.append(Finding(code="file-unreadable", level="partial", text=found.message))
        return None

    def is_of(self, rank: int, trace: Trace, part: run_folder.Contents) -> bool:
        """Whether a trace of a run folder is of the rank in its name: not if it says to be of another of them."""
        claimed_rank = trace.distributed.rank
        if claimed_rank == rank or claimed_rank not in part.traces:
            return True
        ranks = f"its name is that of rank {rank}, its content that of rank {claimed_rank}"
        text = f"{shown(trace.path)} is left out: {ranks}"
        self.findings.append(Finding(code="rank-differs", level="partial", text=text))
        return False

    def is_later_window(self, path: Path, trace: Trace) -> bool:
        """Whether a trace of the same process came before: a schedule with `repeat` writes a file for each window."""
        process = ranks.process_in_name(path.name)
        if process is None:
            return False
        first = self.first_windows.setdefault((path.parent, process), trace)
        later = first is not trace and one_after_another(first, trace)
        if later:
            self.later_windows.append(trace)
        return later

    def place(self, rank: int, basis: str, trace: Trace, detailed: Path | None = None) -> None:
        if basis not in self.bases:
            self.bases.append(basis)
        if rank in self.placed:
            self.left_out.setdefault(rank, []).append(shown(trace.path))
            return
        self.findings += (_with_rank(finding, rank, basis) for finding in trace.findings)
        detail = None if detailed is None else os.fspath(detailed)
        read_detailed = None if detail is None else partial(read, detail, self.cached)
        self.placed[rank] = RankTrace(
            rank, redacted(trace.path), trace, detail, read_detailed, self.digests.get(trace.path)
        )

    def run(self) -> Run:
        if why := apart([*self.recorded, *self.foreign]):
            raise RunError(
                f"these traces are not of one run: {why}", "name the traces of one run; two runs: `dptune compare A B`"
            )
        if not self.parts and (why := apart(self.foreign, DOUBTFUL_NS)):
            text = f"{why}: ranks of one run record at the same time, so these may be traces of two runs"
            self.findings.append(Finding(code="ranks-apart", level="partial", text=text))
        if self.later_windows:
            count, example = len(self.later_windows), shown(self.later_windows[0].path)
            which = f"{count:,} traces are" if count > 1 else "1 trace is"
            example = f"for example {example}" if count > 1 else example
            windows = "later windows" if count > 1 else "a later window"
            text = f"{which} left out ({example}): {windows} of a process whose first trace is used"
            self.findings.append(Finding(code="windows-left-out", level="info", text=text))
        free = 0
        for trace in self.rankless:
            while free in self.placed:
                free += 1
            self.place(free, ranks.ORDER, trace)
        if self.left_out:
            self.findings.append(Finding(code="rank-duplicate", level="partial", text=self._duplicates()))
        facts = {rank: rank_facts for part in self.parts for rank, rank_facts in part.facts.items()}
        if not self.placed and not facts:
            self._nothing()
        for rank, rank_facts in facts.items():
            light = self.placed[rank].light if rank in self.placed else None
            facts[rank], contradicted = without_contradictions(rank_facts, light)
            self.findings += contradicted
        placed = [self.placed[rank] for rank in sorted(self.placed)]
        run = Run(
            ranks=[rank for rank in placed if rank.digest is None],
            digested=[rank for rank in placed if rank.digest is not None],
            record=next((part.record for part in self.parts if part.record is not None), None),
            facts=dict(sorted(facts.items())),
            repeats=self.parts[0].repeats if len(self.parts) == 1 else [],
            findings=self.findings,
            rank_basis="; ".join(self.bases),
            sources=[str(part.path) for part in self.parts]
            + [trace.source for trace in self.placed.values() if not self._inside(trace.light.path)],
        )
        run.findings.extend(_absent(run))
        return run

    def _duplicates(self) -> str:
        """Which files are left out because others are of the same ranks; of several ranks the first as an example."""
        first = min(self.left_out)
        kept, others = shown(self.placed[first].source), ", ".join(self.left_out[first][:_MOST_NAMED])
        count = sum(map(len, self.left_out.values()))
        if count == 1:
            return f"two files claim rank {first}: {kept} is used, {others} left out"
        which = f"the same rank ({first})" if len(self.left_out) == 1 else f"the same ranks ({spans(self.left_out)})"
        example = f"for rank {first}, {kept} is used, {others} left out"
        return f"{count:,} files are left out, because others claim {which}; pass the files of one run: {example}"

    def _inside(self, name: str) -> bool:
        return any(part.path in located(name).parents for part in self.parts)

    def _nothing(self) -> None:
        if self.bare and all(isinstance(error, NotATraceError) for error in self.failed):
            self.parts += self.bare
            self.failed = []
        if len(self.failed) == 1:
            raise self.failed[0]
        if self.failed:
            first = self.failed[0]
            raise RunError(f"none of {len(self.failed)} files could be read; the first: {first.message}", first.hint)
        where = ", ".join(str(part.path) for part in self.parts)
        raise RunError(f"{where} holds neither traces nor facts{self._ended()}", "the recording did not reach a step")

    def _ended(self) -> str:
        """How the recording ended, where the folder says it."""
        record = next((part.record for part in self.parts if part.record is not None), None)
        if record is None or record.ending.how in ("recording", "complete"):
            return ""
        status = "" if record.ending.exit_status is None else f" with {exit_text(record.ending.exit_status)}"
        return f": the script ended ({record.ending.how}){status}" + (
            f", {record.ending.note}" if record.ending.note else ""
        )


def _with_rank(finding: Finding, rank: int, basis: str) -> Finding:
    """An impossible rank with the one that is used for the trace."""
    if finding.code != RANK_IMPOSSIBLE:
        return finding
    source = "the order of the files" if basis == ranks.ORDER else basis
    return replace(finding, text=f"{finding.text}; rank {rank} from {source} is used instead")


def _claims_a_rank(path: Path) -> bool:
    """Whether the file name is that of a rank's trace: if it is not a trace, one is missing."""
    return ranks.rank_in_name(path.name) is not None or ".trace." in path.name


def _absent(run: Run) -> list[Finding]:
    """Ranks of which something is missing."""
    found = []
    traced = {rank.rank for rank in run.every_rank}
    for rank in sorted(set(run.facts) - traced):
        text = f"rank {rank} has facts but no readable trace"
        found.append(Finding(code="trace-missing", level="partial", text=text))
    detailed = {rank.rank for rank in run.every_rank if rank.detailed_source}
    written = {rank for rank, facts in run.facts.items() if (window := facts.window("detailed")) and window.trace}
    if lost := sorted((written & traced) - detailed):
        which = f"rank {spans(lost)}" if len(lost) == 1 else f"ranks {spans(lost)}"
        text = f"the trace of the detailed window of {which} is missing: rules that need it are skipped"
        found.append(Finding(code="detailed-window-missing", level="info", text=text))
    world = run.world_size or 0
    if differing := _sizes_that_differ(run.world_sizes):
        found.append(Finding(code="world-size-differs", level="partial", text=f"{differing}: {world} is used"))
    absent = [rank for rank in range(world) if rank not in traced and rank not in run.facts]
    asked = None if run.record is None or run.record.ranks is None else set(run.record.ranks)
    missing = [rank for rank in absent if asked is None or rank in asked]
    if missing:
        which = f"rank {spans(missing)} is" if len(missing) == 1 else f"ranks {spans(missing)} are"
        text = f"{which} missing: {world - len(absent):,} of {world:,} ranks were given"
        found.append(Finding(code="ranks-missing", level="partial", text=text))
    if sampled := sorted(set(absent) - set(missing)):
        which = f"rank {spans(sampled)} was" if len(sampled) == 1 else f"ranks {spans(sampled)} were"
        text = f"{which} not recorded, as asked: what {'it' if len(sampled) == 1 else 'they'} did is not known"
        found.append(Finding(code="ranks-sampled", level="partial", text=text))
    return found


def _sizes_that_differ(claims: Mapping[str, Mapping[int, int]]) -> str:
    """World sizes that contradict each other, and where they are from; "" where there are none."""
    if len({size for sizes in claims.values() for size in sizes}) < 2:
        return ""
    shown = {source: ", ".join(map(str, sorted(sizes)[:_MOST_SIZES])) for source, sizes in claims.items()}
    if len(shown) == 1:
        ((source, sizes),) = shown.items()
        return f"{source} give different world sizes ({sizes})"
    return f"world sizes differ ({'; '.join(f'{source}: {sizes}' for source, sizes in shown.items())})"
