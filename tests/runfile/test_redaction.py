from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.runfile.redaction import HIDDEN, redacted_command, redacted_environment

NAMES = [
    "token",
    "hf_token",
    "api-key",
    "wandb-key",
    "password",
    "db.passwd",
    "auth",
    "apiKey",
    "client_secret",
    "TOKEN",
]
# Every way a value may follow its name in the words of a command line.
SPELLINGS = {
    "option": lambda name, value: [f"--{name}", value],
    "option-with-equals": lambda name, value: [f"--{name}={value}"],
    "assignment": lambda name, value: [f"{name}={value}"],
    "of-hydra": lambda name, value: [f"+logger.{name}={value}"],
    "in-a-url": lambda name, value: [f"https://host/?x=1&{name}={value}&y=2"],
    "in-a-list": lambda name, value: ["--opts", f"a=1,{name}={value},b=2"],
    "in-json": lambda name, value: ["--cfg", f'{{"a": 1, "{name}": "{value}", "b": 2}}'],
    "in-yaml": lambda name, value: ["--cfg", f"{{a: 1, {name}: {value}}}"],
    "in-a-header": lambda name, value: ["--header", f"X-{name}: {value}"],
    "in-a-shell's-command": lambda name, value: ["-c", f"python train.py --{name} {value} --lr 1"],
    "bearer": lambda name, value: ["--header", f"Authorization: Bearer {value}"],
    "basic": lambda name, value: ["--header", f"Basic {value}"],
    "login": lambda name, value: [f"https://me:{value}@host/set"],
}


def test_secrets_leave_the_command_line_and_nothing_else_does() -> None:
    words = ["train.py", "--api-key", "s3cret", "--hf_token=abc", "--lr", "0.1", "WANDB_API_KEY=k", "--auth", "--fast"]
    assert redacted_command(words) == [
        "train.py",
        "--api-key",
        HIDDEN,
        f"--hf_token={HIDDEN}",
        "--lr",
        "0.1",
        f"WANDB_API_KEY={HIDDEN}",
        "--auth",
        "--fast",
    ]


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(
    name=st.sampled_from(NAMES),
    value=st.text(string.ascii_letters + string.digits + "-_+.~%!", min_size=6).filter(
        lambda text: not text.startswith("--")
    ),
)
def test_a_secret_never_survives(spelling: str, name: str, value: str) -> None:
    secret = f"{value}9Z"  # nothing that stands there anyway
    shown = redacted_command(["train.py", *SPELLINGS[spelling](name, secret), "--epochs", "2"])
    assert secret not in " ".join(shown)
    assert "9Z" not in " ".join(shown)
    assert shown[0] == "train.py"
    assert shown[-2:] == ["--epochs", "2"]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "512"],
        ["--tokenizer", "gpt2"],
        ["--tokenizer=gpt2"],
        ["--num-tokens", "-1"],
        ["--author", "x"],
        ["--auth-free", "x"],
        ["--keyboard", "us", "key=value"],
        ["--compass", "north", "--bypass", "3"],
        ["--cfg", '{"max_tokens": 5, "tokenizer": "gpt2", "author": "x"}'],
        ["--opts", "a=1,tokenizer=gpt2,lr=0.1"],
        ["https://host/data?x=1&tokens=5"],
        ["-m", "token", "train.py"],
    ],
    ids=" ".join,
)
def test_what_only_looks_like_a_secret_stays(words: list[str]) -> None:
    assert redacted_command(words) == words


def test_what_is_hidden_leaves_the_rest_readable() -> None:
    shown = redacted_command(["--token", "-abc123", "--opts", "a=1,password=ab,c,b=2", "https://h/?x=1&token=abc&y=2"])
    assert shown == ["--token", HIDDEN, "--opts", f"a=1,password={HIDDEN},b=2", f"https://h/?x=1&token={HIDDEN}&y=2"]
    assert redacted_command(['{"password": "a \\"b", "lr": 1}']) == [f'{{"password": "{HIDDEN}", "lr": 1}}']
    assert redacted_command(["Authorization:", "Bearer", "abc", "--x"]) == ["Authorization:", "Bearer", HIDDEN, "--x"]
    assert redacted_command(["-c", "python x.py --token --lr 1"]) == ["-c", "python x.py --token --lr 1"]


def test_a_login_in_a_url_is_hidden() -> None:
    assert redacted_command(["--data", "s3://me:pw@host/set", "https://host/x@y", "https://me:p@w@host/"]) == [
        "--data",
        f"s3://{HIDDEN}@host/set",
        "https://host/x@y",
        f"https://{HIDDEN}@host/",
    ]


def test_only_variables_of_training_are_recorded() -> None:
    environment = {"NCCL_DEBUG": "INFO", "HOME": "/home/me", "TORCH_AUTH_TOKEN": "x", "OMP_NUM_THREADS": "2"}
    assert redacted_environment(environment) == {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "TORCH_AUTH_TOKEN": HIDDEN,
    }
