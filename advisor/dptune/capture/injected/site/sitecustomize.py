"""Started by Python itself in every process of a recorded run: waits for torch, then lets dptune hook in.

It must work in any Python that the script happens to start (hence the plain syntax), cost nothing where torch is not
imported, and leave everything else as it was: the `sitecustomize` it hides is run, and its folder leaves sys.path.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _WaitForTorch:
    """Lets the import of torch pass, then starts the recorder; finds `dptune` where the launcher's own copy is."""

    def find_spec(self, name, path=None, target=None):
        """Answer for `torch` and `dptune` alone."""
        if name == "dptune":
            return _dptune_spec()
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            import importlib.util

            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then_start(module):
                run(module)
                from dptune.capture.injected import start

                start.start()

            spec.loader.exec_module = run_then_start
        return spec


def _dptune_spec():
    import importlib.util

    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    return importlib.util.spec_from_file_location(
        "dptune", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )


def _run_the_hidden_one():
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if sys.version_info >= (3, 10) and "DPTUNE_CAPTURE" in os.environ:
    sys.meta_path.insert(0, _WaitForTorch())
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
if sys.version_info >= (3, 10):
    _run_the_hidden_one()
