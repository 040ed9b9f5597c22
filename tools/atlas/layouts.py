"""Read the layouts in which packages store models. Each returns (model, state dict or None, tokenizer or None).

A model whose state dict is None is loaded already. `settings` come from the checkpoint's table entry.
"""

from __future__ import annotations

import json
import tarfile
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
        stored = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, weights_only=True, map_location="cpu")
        )
        stored = stored.get("state_dict", stored)
        return {name: tensor for name, tensor in stored.items() if not name.endswith("position_ids")}
    raise SystemExit(f"{raw} holds no weights.")


def onnx(raw: Path, settings: dict[str, Any]) -> Read:
    """An ONNX export, or several of one model. `config` is the whole configuration, unless config.json is there."""
    import transformers

    from tools.atlas.onnx_file import read
    from tools.atlas.onnx_weights import named_weights

    for packed in raw.glob("*.tar.gz"):
        with tarfile.open(packed) as archive:
            archive.extractall(raw, filter="data")
    state: dict[str, Tensor] = {}
    for file in sorted(raw.glob("*.onnx")):
        state |= named_weights(read(file))
    stored = raw / "config.json"
    config = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    made = transformers.AutoConfig.for_model(**(config | settings.get("config", {})))
    if adapt := settings.get("adapt"):
        state = _ADAPTED[adapt](state)
    model = getattr(transformers, settings["class"])(made)
    if settings.get("own_head"):  # transformers ties the output of every T5, but T5 1.1 has its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model, state, tokenizer(raw, settings)


def _with_group_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name Moonshine's group norm, which an export stores as the factor and the summand of two nodes."""
    for part, start in (("weight", "onnx::Mul_"), ("bias", "onnx::Add_")):
        (name,) = (key for key, tensor in state.items() if key.startswith(start) and tensor.shape[1:] == (1,))
        state[f"groupnorm.{part}"] = state.pop(name).flatten()
    return state


def _with_positions(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join DINOv2's positions, which an export stores as those of the class token and those of patches."""
    first = [key for key, tensor in state.items() if key.startswith("onnx::") and tensor.shape == (1, 1, 384)]
    patches = [key for key, tensor in state.items() if key.startswith("onnx::") and tensor.shape == (1, 1369, 384)]
    joined = torch.cat([state[first[0]], state[patches[0]]], dim=1)
    return state | {"backbone.embeddings.position_embeddings": joined}


_ADAPTED = {"moonshine": _with_group_norm, "dinov2": _with_positions}


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
    words: Any = loaded.tokenizer
    if settings.get("opens_with_bos"):
        from tokenizers import processors

        opening = [(words.bos_token, words.bos_token_id)]
        framed = processors.TemplateProcessing(single=f"{words.bos_token} $A", special_tokens=opening)
        words.backend_tokenizer.post_processor = framed
    return loaded.model, None, words


def marian(raw: Path, settings: dict[str, Any]) -> Read:
    """A Marian model inside the joined archive."""
    import transformers

    archive = zipfile.ZipFile(raw / "store.zip")
    for name in ("config.json", "pytorch_model.bin", "source.spm", "target.spm", "tokenizer_config.json", "vocab.json"):
        (raw / name).write_bytes(archive.read(settings["inside"] + name))
    config = json.loads((raw / "config.json").read_text(encoding="utf-8"))
    model = transformers.MarianMTModel(transformers.AutoConfig.for_model(**config))
    return model, state_dict(raw), transformers.MarianTokenizer.from_pretrained(raw)


def ctranslate2_whisper(raw: Path, settings: dict[str, Any]) -> Read:
    """Whisper in the binary format of CTranslate2."""
    from transformers import PreTrainedTokenizerFast

    from tools.atlas.ctranslate2 import whisper

    model, state = whisper(raw / "model.bin")
    marks = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    return model, state, PreTrainedTokenizerFast(tokenizer_file=str(raw / "tokenizer.json"), **marks)


def known_whisper(raw: Path, settings: dict[str, Any]) -> Read:
    """Whisper tiny.en as real_models.py loads it (strictly)."""
    from tools import real_models

    return real_models.whisper(), None, real_models.whisper_words()


def known_dinov2(raw: Path, settings: dict[str, Any]) -> Read:
    """DINOv2 with registers as real_models.py loads it (strictly)."""
    from tools import real_models

    return real_models.dinov2(), None, None


def tokenizer(raw: Path, settings: dict[str, Any]) -> Any:
    """Return the stored tokenizer. `words` names the material whose tokenizer it shares, `marks` the special tokens."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if words := settings.get("words"):
        from tools import fetch_models

        return AutoTokenizer.from_pretrained(fetch_models.path(words))
    if (raw / "tokenizer_config.json").is_file() and "lower" not in settings and not settings.get("marks"):
        return AutoTokenizer.from_pretrained(raw)
    if (raw / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(raw / "tokenizer.json"), **settings.get("marks", {}))
    if symbol := settings.get("symbol"):
        from tools import fetch_models

        fetch_models._symbol_tokenizer(raw, getattr(fetch_models, symbol))
        made = AutoTokenizer.from_pretrained(raw)
        if frame := settings.get("frame"):
            from tokenizers import processors

            ends = [("[SEP]", made.convert_tokens_to_ids("[SEP]"))]
            made.backend_tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ends)
        return made
    if (raw / "vocab.txt").is_file():
        from transformers import BertTokenizerFast

        lower = settings.get("lower", True)
        return BertTokenizerFast(str(raw / "vocab.txt"), do_lower_case=lower, strip_accents=lower)
    return None
