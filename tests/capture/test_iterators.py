"""Which lines of a real script make iterators of a DataLoader, counted by hand."""

import pytest

pytestmark = pytest.mark.records

SCRIPT = """
    import time, torch
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    class Shuffled(RandomSampler):
        def __iter__(self):
            time.sleep(0.005)
            return super().__iter__()

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def data(samples):
        return TensorDataset(torch.randn(samples, 4))

    def task():
        return next(iter(DataLoader(data(64), 8)))[0]

    class Trainer:
        def __init__(self):
            self.train = DataLoader(data(32), 8, drop_last=True)  # four batches
            field = data(200_000)
            self.field = DataLoader(field, 8, sampler=Shuffled(field))

        def fit(self):
            for epoch in range(100):
                for (x,) in self.train:
                    other = next(iter(self.field))[0]
                    model(torch.cat([x, other, task()])).sum().backward()
                    optimizer.step()

    Trainer().fit()
"""


def test_iterators_by_the_line_that_makes_them(profile):
    run = profile(SCRIPT, "--warmup", "2", "--untraced", "8", "--light", "2", "--detailed", "0", "--window-time", "0")
    assert run.status == 0, run.err
    facts = run.facts()
    assert facts.unread == {}
    lines = {one.where: one for one in facts.iterators}
    field, tasks, epochs = (lines[f"train.py:{line}"] for line in (28, 17, 27))
    assert (field.function, field.loader, field.samples, field.sampler) == (
        "Trainer.fit",
        "train.py:23",
        200_000,
        "Shuffled",
    )
    assert (field.made, field.batches, field.epoch_batches, field.other_data) == (8, 8, 25_000, 0)
    assert (tasks.made, tasks.batches, tasks.other_data) == (8, 8, 7)
    # Eight steps are two epochs of four: each is begun once, and of one that began before the end is not counted.
    assert (epochs.made, epochs.used_up) in {(2, 1), (2, 2)}
    assert [one.is_left_early for one in (field, tasks, epochs)] == [True, False, False]
    window = facts.window("untraced")
    assert len(field.spent_ns) == window.steps == 8
    assert min(field.spent_ns) >= 5_000_000  # what its sampler sleeps
    assert all(ns < took for ns, took in zip(field.spent_ns, window.durations_ns, strict=True))


@pytest.mark.thorough
def test_workers_of_an_iterator_are_counted_from_their_start_to_their_end(profile):
    """Each start forks a process: of eight steps, that takes most of the time."""
    run = profile(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(64, 4)), 8, num_workers=1)
        while True:
            for (x,) in loader:
                break
            model(x).sum().backward()
            optimizer.step()
        """,
        *("--warmup", "2", "--untraced", "4", "--light", "2", "--detailed", "0", "--window-time", "0"),
    )
    assert run.status == 0, run.err
    (line,) = run.facts().iterators
    assert (line.where, line.num_workers, line.made, line.batches, line.used_up) == ("train.py:8", 1, 4, 4, 0)
    assert 2 * sum(line.spent_ns) > sum(run.facts().window("untraced").durations_ns)
