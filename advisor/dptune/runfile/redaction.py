"""Keeps secrets out of what is written down: the environment and the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

HIDDEN = "<redacted>"

Setting = bool | int | float | str | None

# Variables that change how training communicates or computes; nothing else of the environment is recorded.
_RECORDED = (
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "CUDA_",
    "HIP_",
    "OMP_",
    "MKL_",
    "TORCH_",
    "PYTORCH_",
    "TORCHELASTIC_",
)
# Parts of a name that make it a secret's: whole, at the end of a part, or anywhere in it. `--max-tokens`, `--tokenizer`
# and `--author` name no secret.
_WHOLE = {"token", "pwd", "creds", "authorization", "bearer"}
_ENDS = ("token", "password", "passwd", "pwd", "apikey", "accesskey", "privatekey", "secretkey")
_ANYWHERE = ("secret", "credential", "passw", "passphrase")
_LAST = {"auth", "key"}  # `--basic-auth`, `--wandb-key`

_URL_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/?#\s]*@")
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+")
_OPTION = re.compile(r"(?P<name>[-+~]*[\w.@/-]+)=")
_LONG_OPTION = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_WORD_OF_OPTION = re.compile(r"(?<![^\s\"'])(?P<name>--?[A-Za-z][\w.-]*)\s+(?=\S)(?!--[A-Za-z])")
_KEY = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)[\\\"']*\s*[:=]\s*")
# A quoted text; a list or an object and all that follows; else up to white space, or to where another name begins.
_VALUE = re.compile(
    r"""
    (?:(?:bearer|basic|digest|token)\s+)?
    (?: (?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\.)*(?:(?P=quote)|$)
      | [\[{].*
      | (?:[^\s,;&]|[,;&](?!\s|[\\"']*[\w.-]+[\\"']*\s*[:=]))+ )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def redacted_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The recorded variables that are set, with secrets hidden."""
    source = os.environ if environment is None else environment
    return {
        name: HIDDEN if _is_secret(name) else redacted_text(value)
        for name, value in sorted(source.items())
        if name.startswith(_RECORDED)
    }


def redacted_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """What is set by the names of knobs; `env.NAME` holds a secret where NAME does."""
    return {
        name: value if not isinstance(value, str) else HIDDEN if _is_secret(name) else redacted_text(value)
        for name, value in settings.items()
    }


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of options that name a secret, logins in URLs, and what else looks like one.

    The word after such an option is hidden whatever it looks like, unless it is a long option itself.
    """
    shown: list[str] = []
    hide_next = False
    for word in words:
        if hide_next and word.lower() in ("bearer", "basic"):
            shown.append(word)  # the next one is it
        elif hide_next and not _LONG_OPTION.fullmatch(word):
            shown.append(HIDDEN)
            hide_next = False
        else:
            option = _OPTION.match(word)
            secret = option is not None and _is_secret(option["name"])
            shown.append(f"{option['name']}={HIDDEN}" if option and secret else redacted_text(word))
            hide_next = option is None and _announces(word)
    return shown


def _announces(word: str) -> bool:
    """Whether the next word is a secret: after `--token`, `Authorization:` or `Bearer`."""
    named = re.fullmatch(r"(-+[\w.-]+)|([\w-]+):", word)
    return word.lower() == "bearer" or (named is not None and _is_secret(named[1] or named[2]))


def _is_secret(name: str) -> bool:
    """Whether a value of that name is to be hidden."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Za-z0-9]+", apart.lower()) if part]
    if not parts:
        return False
    if parts[-1] in _LAST and (parts[-1] != "key" or len(parts) > 1 or name.startswith("-")):
        return True
    return any(part in _WHOLE or part.endswith(_ENDS) or any(secret in part for secret in _ANYWHERE) for part in parts)


def redacted_text(text: str) -> str:
    """A word, a value or a line without the logins and secrets inside it."""
    text = _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
    text = _hidden_after(_KEY, text)
    text = _hidden_after(_WORD_OF_OPTION, text)
    return _SCHEME.sub(rf"\1 {HIDDEN}", text)


def _hidden_after(pattern: re.Pattern[str], text: str) -> str:
    """`text` without the value after each name of a secret that `pattern` finds."""
    shown, at = "", 0
    while found := pattern.search(text, at):
        shown += text[at : found.end()]
        at = found.end()
        value = _VALUE.match(text, at) if _is_secret(found["name"]) else None
        if value is not None:
            quote = value["quote"] or ""
            shown += f"{quote}{HIDDEN}{quote}"
            at = value.end()
    return shown + text[at:]
