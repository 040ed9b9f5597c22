"""A probe leaves a model as it was: every module's mode, and the modules themselves.

Some models rebuild themselves when they run (BigBird exchanges its block-sparse attention for a full one on short
inputs, and keeps it). What a probe finds then is not the model that was given, so it is put back and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attnscope.core.errors import RefusalError


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode again outside."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def keeping_its_modules(model: nn.Module) -> Iterator[None]:
    """Refuses models that exchange modules of their own inside the context, after putting the old ones back."""
    paths = {module: path for path, module in model.named_modules()}
    children = {module: dict(module._modules) for module in paths}
    words = {module: _words(module) for module in paths}
    config = getattr(model, "config", None)
    settings = {} if config is None else _words(config)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    changed = [path for module, path in paths.items() if dict(module._modules) != children[module]]
    if changed:
        for module, before in children.items():
            module._modules.clear()
            module._modules.update(before)
            vars(module).update(words[module])
        if config is not None:
            vars(config).update(settings)
        raise RefusalError(
            f"{type(model).__name__} exchanges modules of its own in {changed[0] or 'itself'} when it runs on a few "
            "tokens, so what a probe finds is not what you gave: configure it for full attention "
            "(attention_type='original_full' for BigBird)."
        ) from failure
    if failure is not None:
        raise failure


def _words(thing: object) -> dict[str, str]:
    """Settings that are words: which kind of attention, for one."""
    return {name: value for name, value in vars(thing).items() if isinstance(value, str)}
