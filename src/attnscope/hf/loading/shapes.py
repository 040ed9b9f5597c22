"""Models of the shapes of arXiv:2103.03404, with random weights: 12 layers, 12 heads, width 768, as transformers
initialises them. Sizes are those of bert-base-uncased, albert-base-v2 and xlnet-base-cased.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from attnscope.hf.loading.devices import device_named, dtype_named
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.quiet import quiet

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
    """A model of one of `SHAPES`; `changes` are settings of its configuration (fewer layers, say)."""
    model_type, sizes = SHAPES[name]
    config = transformers.CONFIG_MAPPING[model_type](**{**sizes, **changes})
    precision = dtype_named(dtype) or torch.float32
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config, dtype=precision)
    # XLNet makes some of its parameters in float32, whatever is asked for: hence the dtype again
    model = model.eval().requires_grad_(False).to(device_named(device), precision)
    return in_memory(model, name=f"{name} (random weights, seed {seed})")
