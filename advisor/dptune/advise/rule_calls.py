"""Asks one rule, such that no rule of somebody else ends the report, holds it up for long, or changes what it says.

A rule of another pack gets figures and facts of its own, and so many seconds; those of dptune need neither.
"""

from __future__ import annotations

import ctypes
import pickle
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice

from dptune.advice import CONFIDENCES, Advice
from dptune.advise.known_facts import known
from dptune.advise.packs import LoadedRule
from dptune.capture.effect import in_force
from dptune.config import Settings
from dptune.errors import described
from dptune.measured import Measured, Missing
from dptune.rule import Predictor, RunView
from dptune.runfile.facts import Facts
from dptune.whatif.memory.predicting import predict_memory

LIMIT_S = 30.0  # for a rule of another pack, which has what it asks for at hand
END_S = 1.0  # for a thread to end after SystemExit is raised in it
MOST_ADVICE = 1000  # a rule that yields without end would fill the memory before its time is up
_UNSAID = "a figure is missing, and the rule does not name it"


@dataclass(frozen=True)
class Answer:
    """What a rule said; or the reason why a figure that it asked for is `missing`; or why it `failed`."""

    said: list[Advice] = field(default_factory=list)
    missing: str = ""
    failed: str = ""


@dataclass
class Questioner:
    """What rules are asked about."""

    measured: Measured
    facts: Sequence[Facts]
    settings: Settings
    predictor: Predictor | None = None
    times_hold: bool = True

    def ask(self, loaded: LoadedRule, advised: Sequence[Advice] = ()) -> Answer:
        """What the rule says; `advised` is what others said before it.

        Raises KeyboardInterrupt where Ctrl-C is pressed meanwhile, and nothing else.
        """
        if loaded.ours:
            return _answer(loaded, self._view(loaded, self.measured, self.facts, advised))
        measured, facts = pickle.loads(self._pickled)
        return _in_time(
            loaded, self._view(loaded, measured, facts, [advice.model_copy(deep=True) for advice in advised])
        )

    def _view(
        self, loaded: LoadedRule, measured: Measured, facts: Sequence[Facts], advised: Sequence[Advice]
    ) -> RunView:
        return RunView(
            measured,
            [known(rank_facts) for rank_facts in facts],
            self.settings.limits(loaded.rule),
            self.predictor,
            advised,
            self.times_hold,
            memory_predictor=partial(predict_memory, measured, facts),
        )

    @cached_property
    def _pickled(self) -> bytes:
        """Figures and facts: records are frozen, the lists in them are not. A copy this way takes half the time."""
        return pickle.dumps((self.measured, list(self.facts)), pickle.HIGHEST_PROTOCOL)


def _in_time(loaded: LoadedRule, view: RunView) -> Answer:
    """The answer of a thread of its own, which is left behind, and keeps no process alive, when the time is up."""
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: answers.put(_answer(loaded, view)), daemon=True)
    try:
        thread.start()  # which waits, too: the rule may run before it returns
        return answers.get(timeout=LIMIT_S)
    except queue.Empty:
        _end(thread)
        return Answer(failed=f"it did not end within {LIMIT_S:g} s")
    except KeyboardInterrupt:
        _end(thread)
        raise


def _end(thread: threading.Thread) -> None:
    """Raise SystemExit in the thread as soon as it runs Python: a loop goes on and prints otherwise.

    Waits for it, so that a loop cannot print to the stdout of the report; for a call that does not return, `END_S`.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    if thread.is_alive():
        thread.join(END_S)


def _answer(loaded: LoadedRule, view: RunView) -> Answer:
    try:
        said = [
            _no_surer(_checked(advice, loaded.rule.code, view.facts), view)
            for advice in islice(loaded.check(view), MOST_ADVICE + 1)
        ]
        if len(said) > MOST_ADVICE and loaded.ours:  # each is about a fact of its own
            raise Missing(f"the recorded facts yield more than {MOST_ADVICE:,} recommendations, which no run has")
        if len(said) > MOST_ADVICE:
            raise ValueError(f"it yielded more than {MOST_ADVICE:,} recommendations")
    except Missing as missing:
        return Answer(missing=_reason(missing))
    except BaseException as error:  # a rule that calls sys.exit() ends no report
        if loaded.ours and isinstance(error, KeyboardInterrupt):  # Ctrl-C; in a thread it is the rule's own
            raise
        return Answer(failed=f"the rule failed: {described(error)}")
    return Answer(said=said)


def _no_surer(advice: Advice, view: RunView) -> Advice:
    """The advice, no surer than the facts that the rule went by."""
    most = view.confidence_in()
    if CONFIDENCES.index(advice.confidence) <= CONFIDENCES.index(most):
        return advice
    return advice.model_copy(update={"confidence": most})


def _reason(missing: Missing) -> str:
    try:
        return missing.reason or _UNSAID
    except Exception:  # it has none, or one without words
        return _UNSAID


def _checked(advice: Advice, code: str, facts: Sequence[Facts]) -> Advice:
    """The advice as its fields have it; raises where they do not hold what they should, or what is another rule's.

    Nor may its changes set what the run has already.
    """
    if not isinstance(advice, Advice):
        raise TypeError(f"it yielded {type(advice).__name__}, not Advice")
    advice = Advice.model_validate(advice.model_dump(warnings=False))  # it may have been made past their checks
    if advice.rule != code:
        raise ValueError(f"its advice names another rule, {advice.rule}")
    if advice.fingerprint != code and not advice.fingerprint.startswith(f"{code}:"):
        raise ValueError(f"the fingerprint of its advice, {advice.fingerprint!r}, does not start with {code}")
    for change in advice.changes:
        if in_force(change.knob, change.then, facts):
            raise ValueError(f"it sets {change.knob} to {change.then}, which the run has already")
    return advice
