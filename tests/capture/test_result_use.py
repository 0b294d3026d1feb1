"""What a script does with the results of collectives, by its source: functions compiled from a file of their own."""

import linecache
import textwrap

import pytest

from dptune.capture.injected.observe.result_use import used_in_training

SOURCE = textwrap.dedent("""\
    class Queue:
        def put(self, keys):
            self.keys[self.rows] = keys

        def count(self, keys):
            self.seen += len(keys)

    def tokens(model, batch, number):
        dist.all_reduce(number)  # HERE
        share = model(batch).sum() / number
        share.backward()

    def queue(accelerator, queue, keys):
        queue.put(accelerator.gather(keys))  # HERE

    def rows(self, keys):
        keys = self.accelerator.gather(keys)  # HERE
        self.bank[self.at] = keys

    def contrast(accelerator, one, two):
        others = accelerator.gather(two)  # HERE
        logits = one @ others.T
        accelerator.backward(cross_entropy(logits, labels))

    def prototype(self, features):
        mean = self.accelerator.reduce(features)  # HERE
        self.centre.lerp_(mean, 0.01)

    def accuracy(accelerator, logits, labels):
        found, wanted = accelerator.gather((logits.argmax(1), labels))  # HERE
        return (found == wanted).float().mean()

    def logged(self, loss):
        loss.backward()
        dist.all_reduce(loss)  # HERE
        self.history["loss"] = loss.item()
        print(loss.item())

    def counted(accelerator, queue, keys):
        queue.count(accelerator.gather(keys))  # HERE

    def summed(self, loss):
        total = loss.detach().clone()
        dist.all_reduce(total)  # HERE
        self.total += total
    """)


@pytest.fixture
def used(tmp_path):
    """Whether training uses the result of the call in the marked line of a function."""
    file = tmp_path / "uses.py"
    file.write_text(SOURCE)
    linecache.checkcache(str(file))
    module = compile(SOURCE, str(file), "exec")
    codes = {each.co_name: each for each in module.co_consts if hasattr(each, "co_name")}

    def found(name, called):
        code = codes[name]
        lines = SOURCE.splitlines()
        line = next(at for at in range(code.co_firstlineno, len(lines) + 1) if "# HERE" in lines[at - 1])
        return used_in_training(code, line, called)

    return found


@pytest.mark.parametrize(
    ("name", "called", "expected"),
    [
        ("tokens", "all_reduce", True),
        ("queue", "gather", True),
        ("rows", "gather", True),
        ("contrast", "gather", True),
        ("prototype", "reduce", True),
        ("accuracy", "gather", False),
        ("logged", "all_reduce", False),  # the pass is before, and a dictionary has names
        ("counted", "gather", False),
        ("summed", "all_reduce", False),
        ("tokens", "gather", False),  # no such call in that line
    ],
)
def test_what_goes_into_a_backward_pass_or_rows_of_a_tensor(used, name, called, expected):
    assert used(name, called) is expected
