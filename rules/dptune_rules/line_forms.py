"""Remedies for lines of the script with a known costly pattern, if stack samples show that they take the time."""

from __future__ import annotations

from dptune.rule import LineForm, RunView

MANY_RUNS = 16  # of a function in a step: it runs for each sample or each tensor
_REMEDIES = {
    "constants": "{called} is called with the same constants each time: call it once, before training, and keep the "
    "result.",
    "copy": "Each copy allocates new tensors: copy less often, for example once per evaluation, or keep one copy and "
    "update it in place with `torch._foreach_copy_`.",
    "tensor": "Values of Python lists are converted one by one: keep the data in one tensor from the start and "
    "select rows by index; for a list of arrays, use `torch.from_numpy(np.stack(arrays))`.",
    "reading": "If the result depends on the sample alone, compute it once, before training, and keep it in memory or "
    "in a file.",
    "writing": "Write every N steps or from a thread, and do not flush after each write.",
    "histogram": "Compute histograms every N steps.",
    "rows": "Convert the columns to NumPy arrays or tensors once, before training, and index those.",
    "sorting": "Python sorts all values: compute this once per epoch, or use `torch.sort` on one tensor.",
    "weighted": "Each weighted draw sums the weights of all items: draw the items of many steps in one call.",
    "draws": "Random numbers are drawn one at a time: draw those of a whole batch in one call (`rng.integers(high, "
    "size=n)`, `torch.randint`), and draw again only those that must be replaced.",
    "deque": "A deque walks to each item that is drawn: keep the items in a list, or in arrays that one index reads.",
    "joining": "All values so far are copied each time: append to a list and join once per epoch, or keep sums.",
    "items": "Each `.item()` reads one value: index with tensors (`table[rows] = losses`), or call `.tolist()` once "
    "for all values.",
    "elements": "This is a Python loop over single values: use NumPy or torch operators on whole arrays, or compile "
    "it with Numba.",
}
_FORMS = {  # by the function that a line calls
    **dict.fromkeys(("tensor", "as_tensor", "array", "asarray", "FloatTensor", "LongTensor"), "tensor"),
    **dict.fromkeys(("deepcopy",), "copy"),
    **dict.fromkeys(("sorted",), "sorting"),
    **dict.fromkeys(("histc", "histogram", "histogramdd"), "histogram"),
    **dict.fromkeys(("write", "flush", "dump", "dumps"), "writing"),
}


def remedy(found: LineForm | None) -> str:
    """The remedy, with its line first; empty where no form is known."""
    if found is None or found.form not in _REMEDIES:
        return ""
    called = f"`{found.called}`" if found.called else "The function"
    return f"{found.at}: {_REMEDIES[found.form].format(called=called)}"


def of_function(run: RunView, name: str, at: str) -> str:
    """The remedy for a function of the script and what it calls."""
    return remedy(run.line_form(name, at))


def of_call(run: RunView, name: str, at: str, called: str) -> str:
    """The remedy for what a function that runs the training loop calls itself."""
    form = _FORMS.get(called)
    return remedy(run.line_form(name, at, form)) if form else ""
