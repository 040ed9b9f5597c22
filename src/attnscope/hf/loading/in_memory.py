"""Describe a model in memory as if it had been loaded; the model is not changed."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.exchanging.call import recipe_of
from attnscope.hf.intercepting.wrappers import in_reach, note_on, uncompiled
from attnscope.hf.loading.classes import device_named, dtype_named
from attnscope.hf.loading.loaded import Loaded, accepted_by, fields_of
from attnscope.hf.loading.model_files import described, hash_of_json
from attnscope.hf.loading.quiet import quiet

_MOST_NAMED = 5


def broken_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the first parameters that hold NaN or infinity.

    Activations do not show all of them: an unused row of an embedding is never read.
    """
    names: list[str] = []
    with torch.no_grad():
        for name, parameter in in_reach(model).items():
            if len(names) < _MOST_NAMED and not _finite(parameter):
                names.append(name)
    return tuple(names)


def refuse_broken_weights(loaded: Loaded) -> None:
    for name in broken_weights(loaded.model)[:1]:
        raise RefusalError(f"The weights {name} of {loaded.name} hold NaN or infinite numbers: load other weights.")


def _finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite. Try the sum first, which needs no second tensor but may overflow."""
    if tensor.is_meta or not tensor.is_floating_point():
        return True
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def in_memory(model: nn.Module, tokenizer: Any | None = None, name: str | None = None) -> Loaded:
    """Describe a transformers model, or any module that is scanned with ready batches.

    A compiled model is replaced by the module inside it. The hash covers the configuration too: with another rotary
    base or window, the same weights attend differently.
    """
    wrapped, model = model, uncompiled(model)
    refuse_quantised(model)
    config = getattr(model, "config", None)
    known = config is not None and hasattr(config, "is_encoder_decoder")
    unknown = {"kind": "masked", "accepts": accepted_by(model), "reads_text": False}
    class_name = type(model).__name__
    title = name or getattr(config, "_name_or_path", "") or class_name
    recipe = recipe_of(model)
    treated = {} if recipe is None else {"treated": recipe.to_json()}
    sha256 = hash_of_json({"weights": hash_of_parameters(model), "config": described(config), **treated})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        name=title,
        class_name=class_name,
        sha256=sha256,
        parameters=parameters,
        pad=getattr(tokenizer, "pad_token_id", None),
        bos=getattr(config, "bos_token_id", None),
        provenance={
            "model": title,
            "source": "memory",
            "class": class_name,
            "weights": "memory",
            "sha256": sha256,
            "parameters": parameters,
            **note_on(wrapped, model),
            **treated,
        },
        **(fields_of(model) if known else unknown),
    )


def refuse_quantised(model: nn.Module) -> None:
    """Refuse packed integers and scaled 8-bit weights."""
    for path, module in model.named_modules():
        packed = "quantized" in type(module).__module__.split(".")
        own = [*module.parameters(recurse=False), *(b for b in module.buffers(recurse=False) if b.dtype.itemsize == 1)]
        narrow = (t.dtype for t in own if t.ndim > 1 and t.dtype != torch.bool)
        if packed or any(not dtype.is_floating_point or dtype.itemsize == 1 for dtype in narrow):
            raise RefusalError(
                f"{path or 'The model'} of {type(model).__name__} is quantised ({type(module).__name__}), so its "
                "weights cannot be read: give the model before it was quantised."
            )


def hash_of_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of all saved parameters and buffers, in order of name."""
    digest = hashlib.sha256()
    saved: dict[str, Any] = model.state_dict()
    reach = in_reach(model)
    for name, tensor in sorted(saved.items()):
        if not isinstance(tensor, torch.Tensor):  # extra state of a custom module
            digest.update(f"{name} {tensor!r}".encode())
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        tensor = reach[name] if tensor.is_meta else tensor  # noqa: PLW2901
        flat = tensor.detach().cpu().contiguous().flatten()
        if flat.numel():
            content: Any = flat.view(torch.uint8).numpy()
            digest.update(content)  # without a copy
    return digest.hexdigest()


# Models of arXiv:2103.03404 with the random weights of transformers: 12 blocks, 12 heads, width 768. Sizes are taken
# from bert-base-uncased, albert-base-v2 and xlnet-base-cased.

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {"vocab_size": 30522}),
    "albert-base": (
        "albert",
        {
            "vocab_size": 30000,
            "embedding_size": 128,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu_new",
        },
    ),
    "xlnet-base": (
        "xlnet",
        {"vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "ff_activation": "gelu"},
    ),
}


def shaped(name: str, *, seed: int = 0, dtype: str = "float64", device: str = "cpu", **changes: Any) -> Loaded:
    """Return a model of one of `SHAPES`. `changes` are settings of its configuration, such as fewer blocks."""
    model_type, sizes = SHAPES[name]
    config = transformers.CONFIG_MAPPING[model_type](**{**sizes, **changes})
    precision = dtype_named(dtype) or torch.float32
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config, dtype=precision)
    # XLNet creates some parameters in float32 whatever dtype is requested, so cast again.
    model = model.eval().requires_grad_(False).to(device_named(device), precision)
    return in_memory(model, name=f"{name} (random weights, seed {seed})")
