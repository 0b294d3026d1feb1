"""What preparing batches is made of, against what a script's data set says it slept and computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dptune.runfile.loader import PreparingFacts

from .conftest import SHORT, Run

pytestmark = pytest.mark.records

SCRIPT = """
    import sys, time
    from functools import partial
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

    def computes(ms):
        until = time.thread_time() + ms / 1e3
        while time.thread_time() < until:
            pass

    class Samples(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, at):
            time.sleep(0.002)
            return torch.ones(8)

    class Stream(IterableDataset):
        def __iter__(self):
            for _ in range(64):
                computes(2)
                yield torch.ones(8)

    def collate(samples, ms):
        computes(ms)
        return torch.stack(samples)

    class Collates:
        def __call__(self, samples):
            return torch.stack(samples)

    kind, workers = sys.argv[1], int(sys.argv[2])
    data = Stream() if kind == "stream" else Subset(Samples(), range(64))
    collates = {"collates": partial(collate, ms=12), "stream": Collates(), "reads": torch.stack}[kind]
    loader = DataLoader(data, 4, num_workers=workers, collate_fn=collates)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture
def prepared(profile: Callable[..., Run]) -> Callable[..., PreparingFacts]:
    def record(kind: str, workers: int) -> PreparingFacts:
        run = profile(SCRIPT, *SHORT, "-q", arguments=(kind, str(workers)))
        assert run.status == 0, run.err
        (loader,) = run.facts().loaders
        assert loader.num_workers == workers
        assert loader.preparing is not None
        return loader.preparing

    return record


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_reading_that_sleeps_and_collating_that_computes(prepared: Callable[..., PreparingFacts], workers: int) -> None:
    """A batch of four samples sleeps 8 ms, and collating it computes for 12 ms."""
    told = prepared("collates", workers)
    assert told.batches >= 8  # of as many steps as were recorded at least
    reading, computed = told.reading_ns / told.batches / 1e6, told.reading_cpu_ns / told.batches / 1e6
    assert reading >= 8
    assert computed <= reading / 2
    assert told.collating_ns / told.batches / 1e6 >= 12
    assert 12 <= told.collating_cpu_ns / told.batches / 1e6 <= 1.01 * told.collating_ns / told.batches / 1e6
    assert (told.read_by, told.collated_by) == ("Samples.__getitem__ (train.py:16)", "collate (train.py:26)")
    assert told.tensors == pytest.approx(told.batches, abs=workers)
    assert told.tensor_bytes is not None
    assert told.tensor_bytes / 128 == pytest.approx(told.batches, abs=workers)  # a worker may be between two numbers


@pytest.mark.thorough
def test_a_stream_that_computes_and_an_object_that_collates(prepared: Callable[..., PreparingFacts]) -> None:
    told = prepared("stream", 0)
    assert told.reading_cpu_ns / told.batches / 1e6 >= 8
    assert (told.read_by, told.collated_by) == ("Stream.__iter__ (train.py:21)", "Collates.__call__ (train.py:31)")


@pytest.mark.thorough
def test_a_function_of_torch_has_no_line(prepared: Callable[..., PreparingFacts]) -> None:
    assert prepared("reads", 0).collated_by == "stack"


@pytest.mark.thorough
def test_an_iterable_data_set_and_the_part_of_the_wait_that_prepares(profile):
    """The script prepares batches itself, and its sampler takes longer than they do."""
    run = profile(
        """
        import time, torch
        from torch.utils.data import DataLoader, IterableDataset, Sampler
        class Lines(IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.randn(8)
        class Slow(Sampler):
            def __iter__(self):
                for at in range(400):
                    time.sleep(0.004)
                    yield at % 40
            def __len__(self):
                return 400
        lines, rows = iter(DataLoader(Lines(), 4)), iter(DataLoader(torch.randn(40, 8), 4, sampler=Slow()))
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(60):
            model(next(lines) + next(rows)).sum().backward()
            optimizer.step()
        """,
        *SHORT,
    )
    facts = run.facts()
    assert {one.dataset: (one.iterable, one.sharded_by) for one in facts.loaders} == {
        "Lines": (True, None),
        "Tensor": (False, None),
    }
    window = facts.window("untraced")
    for waited, fetched in zip(window.loader_wait_ns, window.loader_fetch_ns, strict=True):
        assert waited > 16_000_000 + fetched > 16_000_000
