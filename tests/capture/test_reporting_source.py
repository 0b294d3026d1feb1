"""Functions that read values to write them, by their source: compiled from a file of their own."""

import linecache
import textwrap

import pytest

from dptune.capture.injected.observe.reporting_source import writes_values

SOURCE = textwrap.dedent("""\
    def describe(model, table):
        for name, p in model.named_parameters():
            table.writerow([name, p.grad.abs().max().item()])

    def watch(loss):
        print(f"loss {float(loss):.3f}")

    def send(board, losses, step):
        board.log({"losses": losses.tolist()})
        return None

    def only_writes(table, name):
        table.writerow([name])

    def only_reads(self, loss):
        self.losses.append(loss.item())

    def logarithm(self, loss):
        self.kept = torch.log(loss).item()

    def clips(model, table):
        for p in model.parameters():
            table.writerow([torch.nn.utils.clip_grad_norm_([p], 1.0).item()])

    def trains(model, optimizer, loss):
        loss.backward()
        optimizer.step()
        print(loss.item())

    def loss_of(model, x, y):
        loss = (model(x) - y).abs().mean()
        print(loss.item())
        return loss

    def batches(loader):
        for batch in loader:
            print(batch.sum().item())
            yield batch
    """)


@pytest.fixture
def functions(tmp_path):
    """By name, the code of each function."""
    file = tmp_path / "reporting.py"
    file.write_text(SOURCE)
    linecache.checkcache(str(file))
    code = compile(SOURCE, str(file), "exec")
    return {each.co_name: each for each in code.co_consts if hasattr(each, "co_name")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("describe", True),
        ("watch", True),
        ("send", True),
        ("only_writes", False),
        ("only_reads", False),
        ("logarithm", False),
        ("clips", False),  # it also changes gradients
        ("trains", False),
        ("loss_of", False),  # what it returns may be trained
        ("batches", False),
    ],
)
def test_functions_that_read_values_to_write_them(functions, name, expected):
    assert writes_values(functions[name]) is expected


def test_without_its_source_nothing_is_known(functions):
    assert not writes_values(compile("def f(x):\n    print(x.item())\n", "/nowhere/gone.py", "exec").co_consts[0])
