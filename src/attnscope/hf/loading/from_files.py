"""Load a model from a folder, the hub, a GGUF file, a bare configuration, or this package.

Weights are read from safetensors. Pickles, and code that comes with a model, are used only if the caller allows it.
Missing parameters are not replaced by random ones: a head without weights is dropped, and other gaps are refused. The
exception is a pooler, on which attention does not depend: it is kept and named in the provenance.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import transformers

from attnscope.core.errors import RefusalError
from attnscope.hf.exchanging.recipe import PREFIX
from attnscope.hf.loading.classes import candidates, cast, device_named, dtype_named, is_pooler, remote_class
from attnscope.hf.loading.loaded import Loaded, fields_of
from attnscope.hf.loading.model_files import (
    Header,
    described,
    hash_of_files,
    hash_of_json,
    open_gguf,
    refuse_impossible_settings,
    refuse_whole_numbers,
    without_broken_packing,
)
from attnscope.hf.loading.options import Loading
from attnscope.hf.loading.placing import (
    is_spread,
    keep_while_used,
    placed_where,
    refuse_what_cannot_be_spread,
    refuse_what_memory_cannot_hold,
    spread_options,
)
from attnscope.hf.loading.quiet import pretrained, quiet, refuse_foreign_kernels
from attnscope.hf.loading.sources import Source, find
from attnscope.hf.loading.treated import put_back

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "tekken.json", "tokenizer.model*")


def from_files(source: str, loading: Loading) -> Loaded:
    """Load the model that `source` names."""
    precision, device = dtype_named(loading.dtype), device_named(loading.device)
    origin = find(source, loading)
    if is_spread(loading):
        refuse_what_cannot_be_spread(origin, loading)
    opened = open_gguf(origin.weights[0]) if origin.form == "gguf" else nullcontext(Header())
    with quiet(), _refusing(origin), opened as header:
        config = _config(origin, loading)
        if not _uses_remote_code(origin, loading) and not is_spread(loading):
            refuse_what_memory_cannot_hold(_choices(config, origin)[0], config, precision, origin.name)
        if loading.random_init:
            model, notes = _with_random_weights(config, origin, precision, loading)
        else:
            model, notes = _with_weights(config, origin, precision, loading)
        if origin.treated is not None:
            put_back(model, origin.folder, origin.treated)
            notes["treated"] = origin.treated.note()
        cast(model, precision)
        tokenizer = _tokenizer(origin, config, loading)
    model = model.eval().requires_grad_(False)
    if not is_spread(loading):
        model = _placed(model, device, origin.name)
    name = f"{origin.name} (random weights, seed {loading.seed})" if loading.random_init else origin.name
    sha256 = notes.pop("sha256")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = model.config.get_text_config()
    provenance = {
        "model": name,
        "source": source,
        "class": type(model).__name__,
        "model_type": model.config.model_type,
        "weights": "random" if loading.random_init else origin.form,
        "sha256": sha256,
        "parameters": parameters,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": str(device),
        **({"placed": placed_where(model)} if is_spread(loading) else {}),
        "tokenizer": tokenizer is not None,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        **({"revision": loading.revision} if loading.revision else {}),
        **notes,
    }
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        name=name,
        class_name=type(model).__name__,
        sha256=sha256,
        parameters=parameters,
        pad=getattr(tokenizer, "pad_token_id", None),
        bos=getattr(text, "bos_token_id", None),
        header=header,
        provenance=provenance,
        **fields_of(model),
    )


@contextmanager
def _refusing(origin: Source) -> Iterator[None]:
    """Turn an error of transformers into a refusal with the first line of its message."""
    try:
        yield
    except RefusalError:
        raise
    except torch.OutOfMemoryError as error:
        raise RefusalError(f"{origin.name} does not fit into memory: pass `dtype='bfloat16'`.") from error
    except pickle.UnpicklingError as error:
        raise RefusalError(
            f"The pickle of {origin.name} holds more than tensors and is not loaded: use safetensors."
        ) from error
    except Exception as error:  # broken files make transformers raise any kind of error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
        raise RefusalError(
            f"{origin.name} cannot be loaded ({type(error).__name__}: {lines[0][:200]}): check that its files "
            "belong together and that this version of transformers supports them."
        ) from error


def _config(origin: Source, loading: Loading) -> Any:
    if origin.form == "gguf":
        return pretrained(
            transformers.AutoConfig,
            origin.folder,
            trust_remote_code=loading.trust_remote_code,
            gguf_file=origin.gguf_file,
        )
    refuse_foreign_kernels(origin.config, origin.name, trust_remote_code=loading.trust_remote_code)
    refuse_impossible_settings(origin.config, origin.name)
    model_type = origin.config["model_type"]
    if model_type in transformers.CONFIG_MAPPING:
        kwargs = without_broken_packing(origin.config, origin.name, architecture_only=origin.form == "config")
        del kwargs["model_type"]
        config = transformers.CONFIG_MAPPING[model_type].from_dict(kwargs)
    elif "auto_map" not in origin.config:
        raise RefusalError(
            f"transformers {transformers.__version__} does not know the model type '{model_type}' of "
            f"{origin.name}: install a version that does."
        )
    elif not loading.trust_remote_code:
        raise RefusalError(
            f"{origin.name} ('{model_type}') needs the code that comes with its weights: read that code, and pass "
            "`trust_remote_code=True` if you trust it."
        )
    else:
        config = pretrained(transformers.AutoConfig, origin.folder, trust_remote_code=True)
    if quantised := getattr(config, "quantization_config", None):
        return _unpacked(config, quantised, origin)
    return config


def _unpacked(config: Any, quantised: Any, origin: Source) -> Any:
    """Refuse quantised weights; drop quantization_config if only the architecture is needed."""
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
    if origin.form == "config":
        del config.quantization_config
        return config
    raise RefusalError(
        f"The weights of {origin.name} are quantised ({method}) and cannot be read as plain numbers: give the "
        "original weights, or a GGUF file of the model."
    )


def _with_random_weights(
    config: Any, origin: Source, precision: torch.dtype | None, loading: Loading
) -> tuple[Any, dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(loading.seed)
        if _uses_remote_code(origin, loading):
            cls = remote_class(origin.config)
            model = cls.from_config(config, trust_remote_code=True, dtype=precision or torch.float32)
        else:
            model = _choices(config, origin)[0]._from_config(config, dtype=precision or torch.float32)
    description = {"seed": loading.seed, "class": type(model).__name__, "config": described(model.config)}
    return model, {"seed": loading.seed, "sha256": hash_of_json(description)}


def _with_weights(
    config: Any, origin: Source, precision: torch.dtype | None, loading: Loading
) -> tuple[Any, dict[str, Any]]:
    remote = _uses_remote_code(origin, loading)
    options: dict[str, Any] = {
        "config": config,
        "dtype": precision or "auto",
        "output_loading_info": True,
        "trust_remote_code": remote,
        "use_safetensors": origin.form == "safetensors",
    }
    if origin.form == "gguf":
        del options["use_safetensors"]
        options |= {
            "gguf_file": origin.gguf_file,
            "quantization_config": transformers.GgufConfig(dequantize=True),
        }
    if origin.form == "safetensors":
        refuse_whole_numbers(origin.weights, origin.name)
    if origin.treated is not None:
        config.transformers_weights = origin.treated.weights
    left_off: list[str] = []
    missing: dict[str, tuple[int, ...]] = {}
    for cls in [remote_class(origin.config)] if remote else _choices(config, origin):
        spread = spread_options(cls, config, precision, loading, origin.name) if is_spread(loading) else {}
        model, info = pretrained(cls, origin.folder, **options, **spread)
        if spread:
            keep_while_used(model, spread["offload_folder"])
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        missing = {name: shapes.get(name, ()) for name in sorted(info["missing_keys"])}
        if all(is_pooler(name, shape) for name, shape in missing.items()):
            of_files = hash_of_files(origin.weights)
            what = {} if origin.treated is None else {"treated": origin.treated.recipe.to_json()}
            notes = {
                "sha256": hash_of_json({"weights": of_files, "config": described(model.config), **what}),
                "files_sha256": of_files,
                "files": sorted(file.name for file in origin.weights),
                "random_parameters": list(missing),
                "unused_weights": sorted(name for name in info["unexpected_keys"] if f".{PREFIX}" not in name)[:20],
                "classes_without_weights": left_off,
                **({"dequantised": True} if origin.form == "gguf" else {}),
            }
            return model, notes
        left_off.append(cls.__name__)
    raise RefusalError(
        f"The weights of {origin.name} lack {len(missing)} parameters that its configuration needs, "
        f"such as {next(iter(missing))}: give weights and a configuration that belong together."
    )


def _choices(config: Any, origin: Source) -> list[Any]:
    choices = candidates(config)
    if not choices:
        raise RefusalError(
            f"transformers {transformers.__version__} has no model class for '{config.model_type}' "
            f"({origin.name}): install a version that has."
        )
    return choices


def _uses_remote_code(origin: Source, loading: Loading) -> bool:
    known = origin.config.get("model_type") in transformers.CONFIG_MAPPING
    return loading.trust_remote_code and "auto_map" in origin.config and not known


def _tokenizer(origin: Source, config: Any, loading: Loading) -> Any | None:
    inside = any(any(origin.folder.glob(pattern)) for pattern in _TOKENIZER_FILES)
    if origin.form != "gguf" and not inside:
        return None
    tokenizer = pretrained(
        transformers.AutoTokenizer,
        origin.folder,
        trust_remote_code=loading.trust_remote_code,
        **({"gguf_file": origin.gguf_file} if origin.form == "gguf" else {}),
        **({} if origin.treated is None else {"config": config}),
    )
    tokenizer.model_max_length = 1 << 60  # windows are cut later, so a warning about long text would be wrong
    return tokenizer


def _placed(model: Any, device: torch.device, name: str) -> Any:
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise RefusalError(
            f"{name} does not fit into the memory of {device}: pass `dtype='bfloat16'` or `device='cpu'`."
        ) from error
