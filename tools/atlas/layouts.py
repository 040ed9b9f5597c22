"""Read the layouts in which packages store models. Each function returns (model, state dict or None, tokenizer or None).

A model whose state dict is None is loaded already. `settings` come from the checkpoint's table entry.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Read = tuple[Any, dict[str, Tensor] | None, Any]


def stored_folder(raw: Path, settings: dict[str, Any]) -> Read:
    """A transformers folder. `class` names the class, `config` replaces entries of the configuration."""
    import transformers

    if archive := settings.get("archive"):
        with zipfile.ZipFile(raw / archive) as packed:
            for member in packed.namelist():
                if member.startswith(settings["inside"]) and not member.endswith("/"):
                    target = raw / member.removeprefix(settings["inside"])
                    if "/" not in member.removeprefix(settings["inside"]):
                        target.write_bytes(packed.read(member))
        (raw / archive).unlink()
    config = json.loads((raw / "config.json").read_text(encoding="utf-8")) | settings.get("config", {})
    made = transformers.AutoConfig.for_model(**config)
    model = getattr(transformers, settings["class"])(made)
    return model, state_dict(raw), tokenizer(raw, settings)


def state_dict(raw: Path) -> dict[str, Tensor]:
    """Return the tensors of the one weight file of a folder."""
    from safetensors.torch import load_file

    for file in (*raw.glob("*.safetensors"), *raw.glob("*.bin"), *raw.glob("*.pt"), *raw.glob("*.ckpt")):
        stored = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True, map_location="cpu")
        stored = stored.get("state_dict", stored)
        return {name: tensor for name, tensor in stored.items() if not name.endswith("position_ids")}
    raise SystemExit(f"{raw} holds no weights.")


def onnx(raw: Path, settings: dict[str, Any]) -> Read:
    """An ONNX export, or several of one model. `config` is the whole configuration, unless config.json is there."""
    import transformers

    from tools.atlas.onnx_file import read
    from tools.atlas.onnx_weights import named_weights

    state: dict[str, Tensor] = {}
    for file in sorted(raw.glob("*.onnx")):
        state |= named_weights(read(file))
    stored = raw / "config.json"
    config = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    made = transformers.AutoConfig.for_model(**(config | settings.get("config", {})))
    if adapt := settings.get("adapt"):
        state = adapt(state)
    return getattr(transformers, settings["class"])(made), state, tokenizer(raw, settings)


def plain(raw: Path, settings: dict[str, Any]) -> Read:
    """A state dict with a configuration from the table."""
    import transformers

    model = getattr(transformers, settings["class"])(transformers.AutoConfig.for_model(**settings["config"]))
    return model, state_dict(raw), tokenizer(raw, settings)


def gguf(raw: Path, settings: dict[str, Any]) -> Read:
    """A GGUF file; transformers dequantises it."""
    from attnscope.hf.loading.load import load

    (file,) = raw.glob("*.gguf")
    loaded = load(str(file))
    return loaded.model, None, loaded.tokenizer


def tokenizer(raw: Path, settings: dict[str, Any]) -> Any:
    """Return the stored tokenizer. `words` names the material whose tokenizer it shares, `marks` the special tokens."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if words := settings.get("words"):
        from tools import fetch_models

        return AutoTokenizer.from_pretrained(fetch_models.path(words))
    if (raw / "tokenizer_config.json").is_file() and not settings.get("marks"):
        return AutoTokenizer.from_pretrained(raw)
    if (raw / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(raw / "tokenizer.json"), **settings.get("marks", {}))
    if symbol := settings.get("symbol"):
        from tools import fetch_models

        fetch_models._symbol_tokenizer(raw, getattr(fetch_models, symbol))
        return AutoTokenizer.from_pretrained(raw)
    if (raw / "vocab.txt").is_file():
        from transformers import BertTokenizerFast

        return BertTokenizerFast(str(raw / "vocab.txt"))
    return None
