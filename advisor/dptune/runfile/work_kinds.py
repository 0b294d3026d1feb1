"""What a function is for, by the words of its name, where no library says it."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise

_WORDS = {
    "saving": {"save", "saves", "checkpoint", "checkpointing", "ckpt", "snapshot"},
    "plotting": {"plot", "plots", "draw", "figure", "visualize", "visualise"},
    "logging": {
        *("log", "logs", "logging", "logger", "report", "print", "dump", "summary", "summarize", "summarise"),
        *("monitor", "histogram", "histograms", "progress"),
    },
    "metrics": {"metric", "metrics", "accuracy", "auc", "f1", "confusion", "stats", "statistics"},
    "evaluation": {"evaluate", "evaluation", "validate", "validation", "eval"},
    "experience": {
        *("rollout", "rollouts", "trajectory", "trajectories", "episode", "episodes", "experience", "experiences"),
        *("selfplay",),
    },
}
# A method of such a name returns the value of a metric if its class is one: `Accuracy.compute`, as in torchmetrics.
# `update` is not among them: each step has to count, and statistics that normalize observations have it too.
_READS = {"compute", "result", "results"}
_METRICS = {"metric", "metrics", "accuracy", "auc", "auroc", "f1", "recall", "perplexity"}
_UNDER_CURVE = {"under", "curve"}
_NO_METRICS = {"loss", "losses", "learner", "learning", "trainer", "agent", "model", "net", "policy"}
# Of reinforcement learning where they stand alone or with one another; `collect_paths` may be anything.
_ACTING = {"collect", "play", "explore", "interact", "act"}
_BESIDE = {
    *("self", "run", "do", "one", "and", "with", "in", "agent", "agents", "policy", "env", "envs", "environment"),
    *("environments", "game", "games", "world", "worlds", "transitions"),
}
# Of environments and of those that act in them, in the name of a function or its class.
_OF_ACTING = {
    *(
        "env",
        "envs",
        "environment",
        "environments",
        "reward",
        "rewards",
        "policy",
        "actor",
        "agent",
        "action",
        "actions",
    ),
    *("observe", "observation", "observations"),
}
_ENVIRONMENTS = {
    *("gym", "gymnasium", "pettingzoo", "envpool", "dm_env", "dm_control", "stable_baselines3", "torchrl", "ale_py"),
    *("procgen", "vizdoom", "mo_gymnasium", "gymnax"),
}
_DRAWS = re.compile(r"torch\.\w+\.r?sample(_n)?$")  # from a distribution: `torch.Categorical.sample`
# Functions of a library that evaluate have names of these words alone: `evaluation_loop`, not `_maybe_log_evaluate`.
_EVALUATION = {
    *("evaluate", "evaluation", "eval", "validate", "validation", "val", "predict", "prediction"),
}
_PARTS = {"run", "do", "loop", "step", "epoch"}
# Of the standard library: the work is done elsewhere. `os.fork` releases the lock of logging in the parent process,
# where a sample taken during the fork finds it.
_WAITS = {
    *("_acquireLock", "_releaseLock", "Handler.acquire", "Handler.release", "Handler.createLock"),
    *("Condition.wait", "Condition.wait_for", "Event.wait", "Barrier.wait", "Semaphore.acquire", "Thread.join"),
    *("Thread._wait_for_tstate_lock", "Queue.get", "Queue.put", "Queue.join", "JoinableQueue.join", "SimpleQueue.get"),
    *("_ConnectionBase.recv", "_ConnectionBase.recv_bytes", "_ConnectionBase.poll", "Connection._recv"),
    *("Connection._poll", "BaseProcess.join", "Popen.wait", "Popen.poll", "Popen._wait", "Popen.communicate"),
    *("Future.result", "Future.exception", "_SelectorImpl.select", "SelectSelector.select", "PollSelector.select"),
    *("EpollSelector.select", "SyncManager.join"),
}
# With torch's name in front, as stack samples have them.
_OF_TENSORS = {f"torch.Tensor.{name}" for name in ("__format__", "__repr__", "__str__")} | {"torch._str"}


def kind_of(name: str) -> str:
    """`saving`, `logging`, `plotting`, `metrics`, `evaluation`, `experience` (of reinforcement learning), or empty."""
    words = _split(name)
    joined = words | {first + second for first, second in pairwise(_words(name))}  # `roll_out`
    found = next((kind for kind, known in _WORDS.items() if joined & known), "")
    if not found and words & _ACTING and words <= _ACTING | _BESIDE:
        return "experience"
    if not found and words <= _READS and _is_metric(name.rpartition(".")[0]):
        return "metrics"
    return found


def acts(functions: Collection[str], through: Collection[str]) -> bool:
    """Whether a part of the loop acts in an environment, by the functions of the script that it is in, and those of
    libraries that it calls.

    It draws from a distribution and calls a `step`, or does one of these in a function or class that is named for it.
    """
    if any(name.partition(".")[0] in _ENVIRONMENTS for name in through):
        return True
    draws = any(_DRAWS.match(name) for name in through)
    steps = any(name.rpartition(".")[2] in ("step", "act") and "." in name for name in functions)
    named = any(_split(part) & _OF_ACTING for name in functions for part in name.split("."))
    return draws + steps + named > 1


def _is_metric(owner: str) -> bool:
    words = _split(owner)
    return bool(words & _METRICS or words >= _UNDER_CURVE) and not words & _NO_METRICS


def evaluates(name: str) -> bool:
    """Whether a function of a training library evaluates, by its name with its class."""
    words = _split(name)
    owner = name.rpartition(".")[0]
    if words <= _PARTS and owner:
        return bool(_split(owner) & _EVALUATION)  # `_EvaluationLoop.run`
    return bool(words & _EVALUATION) and words <= _EVALUATION | _PARTS


def makes_text(name: str) -> bool:
    """Whether a library's function makes text of a tensor: torch formats it element by element."""
    return name in _OF_TENSORS


def waits(name: str) -> bool:
    """Whether a function of the standard library only waits, or takes or releases a lock."""
    return name in _WAITS


def _split(name: str) -> set[str]:
    return set(_words(name))


def _words(name: str) -> list[str]:
    last = name.rpartition(".")[2]
    return [word for word in re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower().split("_") if word]
