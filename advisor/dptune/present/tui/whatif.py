"""The what-if tab: change a setting with the arrow keys, and see the predicted step at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import Static
from textual.worker import get_current_worker

from dptune.advice import Advice, Report
from dptune.advise.trust import NO_VERDICT
from dptune.knobs import KNOBS, Value, written
from dptune.measured import Missing
from dptune.predicted import Prediction
from dptune.present.amounts import milliseconds, ns_as_ms, number
from dptune.present.lines import BLANK, Line, Role, Span, labelled, wrapped
from dptune.present.sections.advice import change, changes
from dptune.present.sections.whatif import unknown_samples
from dptune.present.sections.whatif_memory import sentence
from dptune.present.tui.background import uncollected
from dptune.present.tui.dials import NO_STRAGGLER, UNCHANGED, advised, dials, name_of, wanted_of
from dptune.present.tui.pane import FRAMED, Pane
from dptune.present.tui.rows import seen_rows
from dptune.present.tui.scene import late_ranks_of
from dptune.trace.run import Run
from dptune.whatif.memory.predicting import predict_memory
from dptune.whatif.predicting import known_settings
from dptune.whatif.run_model import RunModel
from dptune.whatif.scenarios import changes_results

_NAMED = 8  # runs or traces that a command names
_BAR, _LEAST_BAR, _LABEL, _AMOUNTS = 40, 10, 12, 28  # columns
_PER_STEP = "Per step"
_FRAMES, _WORDS, _LEAST_DIALS = 4, 8, 4  # lines: of both frames, of a prediction; settings that are always seen


class WhatIfPane(Container, can_focus=True):
    """The settings above, the prediction below."""

    DEFAULT_CSS = """
    WhatIfPane { layout: vertical; }
    WhatIfPane #dials { height: auto; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    WhatIfPane Pane { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding("up", "choose(-1)", "Setting", id="dial.up", tooltip="The setting above", show=False),
        Binding("down", "choose(1)", "Setting", id="dial.down", tooltip="The setting below", show=False),
        Binding("left", "turn(-1)", "Less", id="dial.less", tooltip="The previous value"),
        Binding("right", "turn(1)", "More", id="dial.more", tooltip="The next value"),
        Binding(
            "y", "copy_command", "Copy command", id="dial.copy", tooltip="Copy the command that verifies these settings"
        ),
        Binding("0", "reset", "Reset", id="dial.reset", tooltip="Reset all settings"),
    ]

    def __init__(self, run: Run, report: Report, paths: Sequence[str]) -> None:
        """`paths`: the run as commands name it."""
        super().__init__(id="whatif")
        self._run, self._measured = run, report.measured
        self._named = shlex.join(paths) if len(paths) <= _NAMED else ""
        self._recorded = report.run.command is not None
        made, known = dials(run, report.measured), known_settings(report.measured)
        self._dials, self._advised, self._advised_by = advised(made, report.advice, known)
        late = report.measured.known("straggler")
        straggles = [NO_STRAGGLER] * (late is not None and late.rank in late_ranks_of(report))
        self._set(self._advised, straggles)
        self._ground: RunModel | None = None
        no_trust = (finding.text for finding in report.trust.findings if finding.level == "unjudgeable")
        self._lack = next((f"{NO_VERDICT}: {why}" for why in no_trust), "")
        self._making = self._replaying = self._checked = self._moved = False
        self._unpredicted: frozenset[str] = frozenset()
        self._last: tuple[dict[str, Value], Prediction] | None = None

    def compose(self) -> ComposeResult:
        """Settings, then words."""
        settings = Static(id="dials", classes=FRAMED)
        yield settings
        pane = Pane(self._words, id="prediction", classes=FRAMED)
        pane.border_title = "Predicted step"
        yield pane

    def on_resize(self) -> None:
        """As many settings as there is room for."""
        self._draw()

    def on_show(self) -> None:
        """The model is made when someone looks, beside the interface."""
        if self._ground is None and not self._lack and not self._making:
            self._making = True
            self.run_worker(self._make, thread=True)
        self._draw()

    def _set(self, wanted: dict[str, Value], or_at: Sequence[str] = ()) -> None:
        """These settings and no others, with the first of them chosen; the one of `or_at` where there is none."""
        self._at = [dial.values.index(wanted.get(dial.knob, UNCHANGED)) for dial in self._dials]
        first = [*wanted, *or_at][:1]
        self._chosen = next((at for at, dial in enumerate(self._dials) if dial.knob in first), 0)

    def can_predict(self, advice: Advice) -> bool:
        """Whether the settings of a recommendation are among these."""
        return wanted_of(advice).keys() <= {dial.knob for dial in self._dials} and bool(wanted_of(advice))

    def open(self, advice: Advice) -> None:
        """Set what a recommendation changes."""
        self._advised, self._advised_by = wanted_of(advice), name_of(advice)
        self._set(self._advised)
        self._ask()

    def _make(self) -> None:
        try:
            with uncollected():
                self._ground = RunModel.of(self._run, self._measured)
        except Missing as lack:
            self._lack = lack.reason
        except Exception as error:
            self._lack = _failed(error)
        self.app.call_from_thread(self._made)

    def _made(self) -> None:
        """Predict what is set; where that is nothing, check the settings at once."""
        self._ask()
        if not self._replaying:
            self._check()

    def _check(self) -> None:
        """Find the settings that this model does not predict, beside the interface and after the first prediction."""
        if self._ground is not None and not self._checked:
            self._checked = True
            ground = self._ground
            self.run_worker(lambda: self._find_unpredicted(ground), thread=True)

    def _find_unpredicted(self, ground: RunModel) -> None:
        found = set()
        for dial in self._dials:
            try:
                with uncollected():
                    lack = ground.lack({dial.knob: dial.other})
            except Exception as error:
                lack = _failed(error)
            if get_current_worker().is_cancelled:
                return
            if lack:
                found.add(dial.knob)
        if found:
            self.app.call_from_thread(self._put_last, frozenset(found))

    def _put_last(self, unpredicted: frozenset[str]) -> None:
        """Settings without a prediction come last; one of them stays selected only where someone selected it."""
        chosen = self._dials[self._chosen].knob
        order = sorted(range(len(self._dials)), key=lambda place: self._dials[place].knob in unpredicted)
        self._dials, self._at = [self._dials[place] for place in order], [self._at[place] for place in order]
        kept = self._moved or chosen in self.changes or chosen not in unpredicted
        self._chosen = next(place for place, dial in enumerate(self._dials) if dial.knob == chosen) if kept else 0
        self._unpredicted = unpredicted
        self._draw()

    def _ask(self) -> None:
        """Have what is set predicted, beside the interface, one at a time: a replay of many ranks takes a while."""
        self._draw()
        if self._ground is not None and self.changes and not self._replaying:
            self._replaying = True
            ground, changes = self._ground, self.changes
            # A partial of the model would be written out by textual, with its million edges.
            self.run_worker(lambda: self._predict(ground, changes), thread=True)

    def _predict(self, ground: RunModel, changes: dict[str, Value]) -> None:
        try:
            with uncollected():
                prediction = ground.predict(changes)
        except Exception as error:
            prediction = Prediction.only(_failed(error), changes=changes)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._keep, changes, prediction)

    def _keep(self, changes: dict[str, Value], prediction: Prediction) -> None:
        """Show it; where other keys came meanwhile, what they set is next."""
        self._last, self._replaying = (changes, prediction), False
        if changes == self.changes:
            self._draw()
            self._check()
        else:
            self._ask()

    @property
    def changes(self) -> dict[str, Value]:
        """What is set otherwise than it is."""
        picked = ((dial.knob, dial.values[at]) for dial, at in zip(self._dials, self._at, strict=True))
        return {knob: value for knob, value in picked if value != UNCHANGED}

    @property
    def commands(self) -> dict[str, str]:
        """The command that predicts this in a shell, and the one that verifies it if all can be set from outside."""
        if not self._named or not self.changes:
            return {}
        settings = " ".join(f"--set {name}={written(value)}" for name, value in self.changes.items())
        found = {"Command": f"dptune whatif {self._named} {settings}"}
        if self._recorded and self.changes.keys() <= KNOBS.keys():
            found["Verify"] = f"dptune verify {self._named} {settings}"
        return found

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of settings are offered where there is a model, those of what is set where anything is."""
        if action in ("choose", "turn"):
            return not self._lack
        return action not in ("copy_command", "reset") or bool(self.changes)

    def action_choose(self, by: int) -> None:
        """Go to another setting."""
        self._moved = True
        self._chosen = (self._chosen + by) % len(self._dials)
        self._draw()

    def action_turn(self, by: int) -> None:
        """Give the setting its next value."""
        most = len(self._dials[self._chosen].values) - 1
        self._at[self._chosen] = min(max(self._at[self._chosen] + by, 0), most)
        self._ask()

    async def action_copy_command(self) -> None:
        """Copy the command that verifies what is set."""
        await self.app.run_action("copy")

    def action_reset(self) -> None:
        """All as it is, from the first setting on."""
        self._at, self._chosen = [dial.values.index(UNCHANGED) for dial in self._dials], 0
        self._draw()

    def _draw(self) -> None:
        if self.is_mounted and self.query("#dials"):  # a prediction may arrive while the report closes
            settings = self.query_one("#dials", Static)
            settings.display = not self._lack  # without a model there is nothing to set
            first, last = self._seen()
            part = "" if last - first == len(self._dials) else f"; {first + 1}-{last} of {len(self._dials)}"
            settings.border_title = f"Settings{part}"
            settings.update(Text("\n").join(self._settings()[first:last]))
            self.refresh_bindings()
            pane = self.query_one(Pane)
            what = "step time" if self._measured.known("samples_per_step") is None else "time per sample"
            pane.border_subtitle = "" if self._lack else f"bar: {what}, ▒ its interval, │ now"
            pane.show(self._words)

    def _seen(self) -> tuple[int, int]:
        """From which setting to which there is room for, beside a prediction."""
        room = max(self.size.height - _FRAMES - _WORDS, _LEAST_DIALS) if self.size.height else len(self._dials)
        return seen_rows(len(self._dials), self._chosen, room)

    def _settings(self) -> list[Text]:
        rows, room = [], max(len(dial.what) for dial in self._dials)
        for place, (dial, at) in enumerate(zip(self._dials, self._at, strict=True)):
            value = dial.values[at]
            shown = (dial.now or UNCHANGED) if value == UNCHANGED else written(value)
            was = f"(now {dial.now})  " if dial.now and value != UNCHANGED else ""
            was = "no prediction  " if dial.knob in self._unpredicted else was
            less, more = "<" if at else " ", ">" if at < len(dial.values) - 1 else " "
            mark = ">" if place == self._chosen else " "
            # what is cut on a narrow screen is the name, which the command has in full
            row = f"{mark} {dial.what:<{room}} {less} {shown:^11} {more}  {was}{dial.knob}"
            rows.append(Text(row, "bold" if place == self._chosen else "" if value != UNCHANGED else "dim"))
        return rows

    def _words(self, width: int) -> Iterator[Line]:
        if self._ground is None:
            yield from wrapped(f"No prediction: {self._lack}." if self._lack else "building the step model ...", width)
            return
        measured_ns = self._ground.step_ns
        before = self._measured.known("samples_per_step")
        yield _measure("Now", measured_ns, before, (1.0, 1.0), width, "plain")
        if not self.changes:
            yield from wrapped("Up and down: select a setting. Left and right: change it.", width)
            return
        if self.changes == self._advised:
            yield from labelled("Advised by", f"{self._advised_by}; left and right: change it, 0: reset", width)
        changes, prediction = self._last or ({}, None)
        if prediction is None or changes != self.changes:
            yield from labelled("Then", "replaying ...", width)
            return
        yield from self._predicted(prediction, measured_ns, width)

    def _predicted(self, prediction: Prediction, measured_ns: int, width: int) -> Iterator[Line]:
        before, after = self._measured.known("samples_per_step"), prediction.known("global_batch")
        per_sample, what = (before / after if before and after else 1.0) / measured_ns, _per(before, after)
        step_ns, samples = prediction.known("step_ns"), after
        if prediction.central_ns is None:
            yield from _bound(prediction, per_sample, samples, what, width)
        else:
            times, low, high = (
                ns * per_sample for ns in (prediction.central_ns, prediction.low_ns, prediction.high_ns)
            )
            role: Role = "warning" if low <= 1.0 <= high else "good" if times < 1.0 else "error"
            between = f"{ns_as_ms(prediction.low_ns)} to {ns_as_ms(prediction.high_ns)} ms"
            if step_ns is None:
                yield _barred("Then", between, (low, high), width, role)
            else:
                yield _measure("Then", step_ns, samples, (low, high), width, role)
                yield from labelled("Interval", f"{between}, {changes(low, high)} {what.lower()}", width)
            saved = changes(low, high) if step_ns is None else change(times)
            may = "save nothing" if times <= 1.0 else "change nothing"
            words = f"{saved}; the {'range' if step_ns is None else 'interval'} includes no change: this may {may}"
            yield from labelled(what, words if role == "warning" else saved, width, role=role)
            if step_ns is None:
                yield from labelled("Range", prediction.missing["step_ns"], width, role="dim")
        if what == _PER_STEP:
            yield from unknown_samples(prediction.changes, width)
        if changing := [name for name in prediction.changes if changes_results(name)]:
            yield from labelled("Results", f"may change ({', '.join(changing)})", width)
        memory = predict_memory(self._measured, list(self._run.facts.values()), prediction.changes)
        if memory.known("peak_bytes") is not None:
            peak, fits = sentence(memory)
            yield from labelled("Memory", peak, width, role=fits)
        for label, command in self.commands.items():
            yield from labelled(label, command, width, role="code")
        yield BLANK
        for words in prediction.assumptions:
            yield from labelled("Assumed", words, width, role="dim")


def _per(before: int | None, after: int | None) -> str:
    """What a saving is of: of the time per step where the samples of either are unknown."""
    return "Per sample" if before and after else _PER_STEP


def _bound(prediction: Prediction, per_sample: float, samples: int | None, what: str, width: int) -> Iterator[Line]:
    """What is known where no step is predicted: the shortest step that there may be, if any, and why no more."""
    why, least_ns = prediction.missing["step_ns"], prediction.known("low_ns")
    if least_ns is None:
        yield from labelled("Then", f"not predicted: {why}", width, role="warning")
        return
    low = least_ns * per_sample
    yield _measure("At least", least_ns, samples, (low, max(low, 1.0)), width, "warning")
    yield from labelled(what, f"{'up to' if low < 1.0 else 'at least'} {change(low)}", width, role="warning")
    yield from labelled("Reason", why, width, role="dim")


def _failed(error: Exception) -> str:
    return f"the step model failed: {type(error).__name__}: {error}"


def _measure(
    label: str, step_ns: float, samples: int | None, interval: tuple[float, float], width: int, role: Role
) -> Line:
    """The time of a step, and of a sample where their number is known, beside the bar of that."""
    each = f"{number(step_ns / samples / 1e3)} us/sample" if samples else ""
    return _barred(label, f"{milliseconds(step_ns / 1e6):<10}{each}", interval, width, role)


def _barred(label: str, words: str, interval: tuple[float, float], width: int, role: Role) -> Line:
    """Words beside the bar of an interval of the time per sample; the bar alone is cut."""
    words = f"{words:<{_AMOUNTS}}"
    room = min(max(width - _LABEL - len(words), _LEAST_BAR), _BAR)
    drawn = bar(*interval, room - room % 2)
    return Span(f"{label:<{_LABEL}}", "dim"), Span(words, "strong"), Span(drawn, role)


def bar(low: float, high: float, cells: int) -> str:
    """Time per sample: solid to the low end of its interval, shaded to the high end; what is now fills half of it and
    is marked where the interval ends elsewhere.
    """
    first, last = (min(max(round(cells * times / 2), 1), cells) for times in (low, high))
    now = cells // 2
    drawn = f"{'█' * first}{'▒' * (last - first)}"
    if round(cells * high / 2) > cells:
        drawn = f"{drawn[:-1]}▶"  # longer than there is room
    if last == now:
        return drawn
    return f"{drawn:<{now}}│" if last < now else f"{drawn[:now]}│{drawn[now + 1 :]}"
