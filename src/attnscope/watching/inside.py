"""The module that is looked at: what stands inside the wrappers of distributed and compiled training.

DistributedDataParallel and torch.compile keep the very parameters that are trained, so the module inside is run for a
look as it is: no gradient is exchanged, nothing is compiled. Where parameters are cut up over processes (FSDP), a
forward of one process alone is none, and is refused.
"""

from __future__ import annotations

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.seeing.uncompiled import uncompiled

_KEEP_PARAMETERS = ("DistributedDataParallel", "DataParallel")  # by name: importing them costs seconds


def inside(model: nn.Module) -> nn.Module:
    """`model` itself where nothing is wrapped around it."""
    if not isinstance(model, nn.Module):
        raise RefusalError(f"A {type(model).__name__} is no module of torch: give the model that is trained.")
    while type(model).__name__ in _KEEP_PARAMETERS or type(model).__name__ == "OptimizedModule":
        inner = model._modules.get("module") or model._modules.get("_orig_mod")
        assert inner is not None
        model = inner
    for module in model.modules():
        if type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")):
            raise RefusalError(
                f"{type(model).__name__} is sharded over processes (FSDP), so no process can run it alone for a look: "
                "watch it under DistributedDataParallel, or scan its checkpoints with attnscope timeline."
            )
    return uncompiled(model)


def compiled_in_place(model: nn.Module) -> bool:
    """Whether calls of the module itself are compiled (`model.compile()`), so that no hook of it runs as Python."""
    return getattr(model, "_compiled_call_impl", None) is not None
