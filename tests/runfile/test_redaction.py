from __future__ import annotations

from dptune.runfile.redaction import HIDDEN, redacted_command, redacted_environment


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


def test_a_login_in_a_url_is_hidden() -> None:
    assert redacted_command(["--data", "s3://me:pw@host/set", "https://host/x@y"]) == [
        "--data",
        f"s3://{HIDDEN}@host/set",
        "https://host/x@y",
    ]


def test_only_variables_of_training_are_recorded() -> None:
    environment = {"NCCL_DEBUG": "INFO", "HOME": "/home/me", "TORCH_AUTH_TOKEN": "x", "OMP_NUM_THREADS": "2"}
    assert redacted_environment(environment) == {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "TORCH_AUTH_TOKEN": HIDDEN,
    }
