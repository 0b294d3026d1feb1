"""Which line of what a script printed says why it failed."""

import pytest

from dptune.prove.trial import error_in

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (f"{TRACEBACK}ValueError: the data are gone\n", "ValueError: the data are gone"),
        (f"{TRACEBACK}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (
            "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nModuleNotFoundError: No module named 'team'\n",
            "ModuleNotFoundError: No module named 'team'",
        ),
        (
            "[rank1]: torch.distributed.DistBackendError: Connection closed by peer\n"
            "[rank0]: torch.OutOfMemoryError: CUDA out of memory\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ("Error rate: 3 %\nErrors are usual here\n", ""),
    ],
)
def test_it_is_the_first_that_python_reports(said: str, error: str) -> None:
    assert error_in(said) == error
