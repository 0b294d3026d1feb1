"""First on PYTHONPATH of the scripts that tests start: torch takes half the time, for its compiler is left out.

Importing torch takes 1.6 s of a core, and the first optimizer or DDP as much again: it imports all of torch._dynamo,
only to leave some functions uncompiled, as they are without it. Here an object answers for torch._dynamo that leaves
functions as they are. Whoever asks it for anything else, or imports what is in it, gets the real one. Nor is garbage
collected while torch is imported, which saves another 0.2 s. tests/capture/test_kinds.py runs scripts without any of
this.
"""

import gc
import importlib
import importlib.util
import sys
import types

NAME = "torch._dynamo"


class _AfterTorch:
    """Lets the import of torch pass without collections, then puts the object in place."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then_replace(module):
                gc.disable()
                try:
                    run(module)
                finally:
                    gc.enable()
                if NAME not in sys.modules:
                    sys.modules[NAME] = _Compiler()

            spec.loader.exec_module = run_then_replace
        return spec


class _Part(types.ModuleType):
    """Part of torch._dynamo: what it lacks is asked of the real one."""

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if isinstance(sys.modules.get(NAME), _Part):
            del sys.modules[NAME]
        real = importlib.import_module(NAME)
        for part in self.__name__.split(".")[2:]:
            real = getattr(real, part)
        return getattr(real, name)


class _Compiler(_Part):
    def __init__(self):
        super().__init__(NAME)
        self.disable = lambda fn=None, *how, **more: fn if fn is not None else lambda fn: fn
        self.graph_break = lambda *why, **more: None
        self.utils = _Part(f"{NAME}.utils")
        self.utils.get_optimize_ddp_mode = lambda: "ddp_optimizer"
        self.trace_rules = _Part(f"{NAME}.trace_rules")
        self.trace_rules.clear_lru_cache = lambda: None


sys.meta_path.insert(0, _AfterTorch())
