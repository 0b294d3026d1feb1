"""First on PYTHONPATH of the scripts that tests start: torch takes a third of the time, for its compiler is left out.

Importing torch takes 2 s of a core, and the first optimizer or DDP 1.4 s more: it imports all of torch._dynamo, only to
leave some functions uncompiled, as they are without it. Here an object answers for torch._dynamo that leaves functions
as they are, and one for torch.export. Whoever asks them for anything else, or imports what is in them, gets the real
ones. Operators on meta tensors, 0.7 s, are registered with the first import of what computes with them, sharded tensors
among them. The compiler's configuration, which these read, and activation checkpointing too, is loaded alone. Garbage
is not collected while torch is imported, nor at the exit of the process, 0.3 s; nor are modules taken apart there, but
for the script itself, 0.1 s.
tests/capture/test_kinds.py runs scripts without any of this.
"""

import atexit
import gc
import importlib
import importlib.util
import sys
import types

COMPILER, CONFIG = "torch._dynamo", "torch._dynamo.config"
EXPORT, META = "torch.export", "torch._meta_registrations"
NEED_META = ("torch.distributed.tensor", "torch.distributed.fsdp", COMPILER, EXPORT, "torch._inductor")


class _AroundTorch:
    """Lets the import of torch pass without collections and without what is left out."""

    def find_spec(self, name, path=None, target=None):
        if name in NEED_META and META in sys.modules and sys.modules[META].__spec__ is None:
            del sys.modules[META]
            importlib.import_module(META)
            if isinstance(sys.modules.get(COMPILER), _Compiler):
                sys.modules[CONFIG] = sys.modules[COMPILER].configuration()
        if name == CONFIG and name in sys.modules:  # loaded meanwhile: its import has found the compiler only now
            return importlib.util.spec_from_loader(name, _AsItIs())
        if name != "torch" or name in sys.modules:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_without(module):
                sys.modules[META] = types.ModuleType(META)
                sys.modules[EXPORT] = _Part(EXPORT)
                gc.disable()
                try:
                    run(module)
                    _allow_generators(module)
                finally:
                    gc.enable()
                if COMPILER not in sys.modules:
                    sys.modules[COMPILER] = _Compiler()

            spec.loader.exec_module = run_without
        return spec


class _AsItIs:
    """Loads a module that is loaded."""

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module):
        """It has run."""


def _allow_generators(torch):
    """Allow torch.Generator as torch._prims.rng_prims does, which the operators on meta tensors import."""
    if hasattr(torch._C, "_set_generator_metaclass"):  # without it no torch.Generator can be made
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


class _Part(types.ModuleType):
    """Part of torch._dynamo or torch.export: what it lacks is asked of the real one."""

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        root, *parts = self.__name__.removeprefix("torch.").split(".")
        part = sys.modules.get(f"torch.{root}")
        if isinstance(part, _Part):
            del sys.modules[f"torch.{root}"]
            if "config" in vars(part):  # the real one takes it, with what a script has set in it
                sys.modules[CONFIG] = part.config
        real = importlib.import_module(f"torch.{root}")
        for inner in parts:
            real = getattr(real, inner)
        return getattr(real, name)


class _Compiler(_Part):
    def __init__(self):
        super().__init__(COMPILER)
        self.disable = lambda fn=None, *how, **more: fn if fn is not None else lambda fn: fn
        self.graph_break = lambda *why, **more: None
        self.utils = _Part(f"{COMPILER}.utils")
        self.utils.get_optimize_ddp_mode = lambda: "ddp_optimizer"
        self.trace_rules = _Part(f"{COMPILER}.trace_rules")
        self.trace_rules.clear_lru_cache = lambda: None

    def __getattr__(self, name):
        if name == "config":  # which activation checkpointing reads and sets for a moment
            return self.configuration()
        return super().__getattr__(name)

    def configuration(self):
        """The configuration, loaded once, without the compiler.

        `import torch._dynamo.config` finds it only with operators on meta tensors: fake tensors import it, and need
        those.
        """
        if "config" not in vars(self):
            file = importlib.util.find_spec("torch").submodule_search_locations[0] + "/_dynamo/config.py"
            spec = importlib.util.spec_from_file_location(CONFIG, file)
            sys.modules[CONFIG] = self.config = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.config)
            del sys.modules[CONFIG]
        return self.config


def _leave_whole():
    """Let Python find no modules to take apart but the script; they hold each other, and garbage is not collected."""
    left = {name: sys.modules.pop(name) for name in [*sys.modules] if name not in ("__main__", "builtins", "sys")}
    left[""] = left
    gc.freeze()


atexit.register(_leave_whole)  # the first to be registered is the last to be called
sys.meta_path.insert(0, _AroundTorch())
