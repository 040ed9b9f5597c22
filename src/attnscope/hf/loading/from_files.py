"""Load a model from a folder, the hub, a GGUF file, a bare configuration, or this package.

Weights are read as safetensors. Pickles, and code that comes with a model, are used only when asked for. Parameters
that the weights lack are never invented: a head without weights is left off, a pooling layer (attention does not
depend on it) is kept and named in the provenance, anything else is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import transformers

from attnscope.core.errors import RefusalError
from attnscope.hf.exchanging.recipe import PREFIX
from attnscope.hf.loading import classes
from attnscope.hf.loading.classes import cast, device_named, dtype_named
from attnscope.hf.loading.hashing import described, hash_of_files, hash_of_json
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.model_files import (
    Header,
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
    """Return the model that `source` names, or refuse and say why and what to do."""
    precision, place = dtype_named(loading.dtype), device_named(loading.device)
    found = find(source, loading)
    if is_spread(loading):
        refuse_what_cannot_be_spread(found, loading)
    with quiet(), _refusing(found), _open(found) as header:
        config = _config(found, loading)
        if not _uses_remote_code(found, loading) and not is_spread(loading):
            refuse_what_memory_cannot_hold(_choices(config, found)[0], config, precision, found.name)
        if loading.random_init:
            model, notes = _with_random_weights(config, found, precision, loading)
        else:
            model, notes = _with_weights(config, found, precision, loading)
        if found.treated is not None:
            put_back(model, found.folder, found.treated)
            notes["treated"] = found.treated.note()
        cast(model, precision)
        tokenizer = _tokenizer(found, config, loading)
    model = model.eval().requires_grad_(False)
    if not is_spread(loading):
        model = _placed(model, place, found.name)
    name = f"{found.name} (random weights, seed {loading.seed})" if loading.random_init else found.name
    sha256 = notes.pop("sha256")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = model.config.get_text_config()
    provenance = {
        "model": name,
        "source": source,
        "class": type(model).__name__,
        "model_type": model.config.model_type,
        "weights": "random" if loading.random_init else found.form,
        "sha256": sha256,
        "parameters": parameters,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": str(place),
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
        kind=classes.kind_of(model),
        positions=classes.positions_of(model),
        vocab_size=classes.vocab_size_of(model),
        pad=getattr(tokenizer, "pad_token_id", None),
        bos=getattr(text, "bos_token_id", None),
        decoder_start=classes.decoder_start_of(model),
        accepts=classes.accepted_by(model),
        reads_text=classes.reads_text(model),
        header=header,
        provenance=provenance,
    )


def _open(found: Source) -> AbstractContextManager[Header]:
    return open_gguf(found.weights[0]) if found.form == "gguf" else nullcontext(Header())


@contextmanager
def _refusing(found: Source) -> Iterator[None]:
    """Turn errors of transformers into one sentence with the first line of its message."""
    try:
        yield
    except RefusalError:
        raise
    except torch.OutOfMemoryError as error:
        raise RefusalError(f"{found.name} does not fit into memory: pass `dtype='bfloat16'`.") from error
    except pickle.UnpicklingError as error:
        raise RefusalError(
            f"The pickle of {found.name} holds more than tensors and is not loaded: ask for safetensors."
        ) from error
    except Exception as error:  # broken files make transformers stumble in every way that Python knows
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
        raise RefusalError(
            f"{found.name} cannot be loaded ({type(error).__name__}: {lines[0][:200]}): check that its files "
            "belong together and that this version of transformers knows them."
        ) from error


def _config(found: Source, loading: Loading) -> Any:
    if found.form == "gguf":
        return pretrained(
            transformers.AutoConfig,
            found.folder,
            trust_remote_code=loading.trust_remote_code,
            gguf_file=found.gguf_file,
        )
    refuse_foreign_kernels(found.config, found.name, trust_remote_code=loading.trust_remote_code)
    refuse_impossible_settings(found.config, found.name)
    model_type = found.config["model_type"]
    if model_type in transformers.CONFIG_MAPPING:
        kwargs = without_broken_packing(found.config, found.name, architecture_only=found.form == "config")
        del kwargs["model_type"]
        config = transformers.CONFIG_MAPPING[model_type].from_dict(kwargs)
    elif "auto_map" not in found.config:
        raise RefusalError(
            f"transformers {transformers.__version__} does not know the model type '{model_type}' of "
            f"{found.name}: install a version that does."
        )
    elif not loading.trust_remote_code:
        raise RefusalError(
            f"{found.name} ('{model_type}') needs code that comes with its weights: read that code, and pass "
            "`trust_remote_code=True` if you trust it."
        )
    else:
        config = pretrained(transformers.AutoConfig, found.folder, trust_remote_code=True)
    if quantised := getattr(config, "quantization_config", None):
        return _unpacked(config, quantised, found)
    return config


def _unpacked(config: Any, quantised: Any, found: Source) -> Any:
    """Refuse packed weights; drop the packing if only the architecture is needed."""
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
    if found.form == "config":
        del config.quantization_config
        return config
    raise RefusalError(
        f"The weights of {found.name} are quantised ({method}) and cannot be held as plain numbers: give the "
        "original weights, or a GGUF file of the model."
    )


def _with_random_weights(
    config: Any, found: Source, precision: torch.dtype | None, loading: Loading
) -> tuple[Any, dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(loading.seed)
        if _uses_remote_code(found, loading):
            cls = classes.remote_class(found.config)
            model = cls.from_config(config, trust_remote_code=True, dtype=precision or torch.float32)
        else:
            model = _choices(config, found)[0]._from_config(config, dtype=precision or torch.float32)
    description = {"seed": loading.seed, "class": type(model).__name__, "config": described(model.config)}
    return model, {"seed": loading.seed, "sha256": hash_of_json(description)}


def _with_weights(
    config: Any, found: Source, precision: torch.dtype | None, loading: Loading
) -> tuple[Any, dict[str, Any]]:
    remote = _uses_remote_code(found, loading)
    options: dict[str, Any] = {
        "config": config,
        "dtype": precision or "auto",
        "output_loading_info": True,
        "trust_remote_code": remote,
        "use_safetensors": found.form == "safetensors",
    }
    if found.form == "gguf":
        del options["use_safetensors"]
        options |= {
            "gguf_file": found.gguf_file,
            "quantization_config": transformers.GgufConfig(dequantize=True),
        }
    if found.form == "safetensors":
        refuse_whole_numbers(found.weights, found.name)
    if found.treated is not None:
        config.transformers_weights = found.treated.weights
    left_off: list[str] = []
    missing: dict[str, tuple[int, ...]] = {}
    for cls in [classes.remote_class(found.config)] if remote else _choices(config, found):
        spread = spread_options(cls, config, precision, loading, found.name) if is_spread(loading) else {}
        model, info = pretrained(cls, found.folder, **options, **spread)
        if spread:
            keep_while_used(model, spread["offload_folder"])
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        missing = {name: shapes.get(name, ()) for name in sorted(info["missing_keys"])}
        if all(classes.is_pooler(name, shape) for name, shape in missing.items()):
            of_files = hash_of_files(found.weights)
            what = {} if found.treated is None else {"treated": found.treated.recipe.to_json()}
            notes = {
                "sha256": hash_of_json({"weights": of_files, "config": described(model.config), **what}),
                "files_sha256": of_files,
                "files": sorted(file.name for file in found.weights),
                "random_parameters": list(missing),
                "unused_weights": sorted(name for name in info["unexpected_keys"] if f".{PREFIX}" not in name)[:20],
                "classes_without_weights": left_off,
                **({"dequantised": True} if found.form == "gguf" else {}),
            }
            return model, notes
        left_off.append(cls.__name__)
    raise RefusalError(
        f"The weights of {found.name} lack {len(missing)} parameters that its configuration asks for, "
        f"such as {next(iter(missing))}: give weights and a configuration that belong together."
    )


def _choices(config: Any, found: Source) -> list[Any]:
    choices = classes.candidates(config)
    if not choices:
        raise RefusalError(
            f"transformers {transformers.__version__} has no model class for '{config.model_type}' "
            f"({found.name}): install a version that has."
        )
    return choices


def _uses_remote_code(found: Source, loading: Loading) -> bool:
    known = found.config.get("model_type") in transformers.CONFIG_MAPPING
    return loading.trust_remote_code and "auto_map" in found.config and not known


def _tokenizer(found: Source, config: Any, loading: Loading) -> Any | None:
    inside = any(any(found.folder.glob(pattern)) for pattern in _TOKENIZER_FILES)
    if found.form != "gguf" and not inside:
        return None
    tokenizer = pretrained(
        transformers.AutoTokenizer,
        found.folder,
        trust_remote_code=loading.trust_remote_code,
        **({"gguf_file": found.gguf_file} if found.form == "gguf" else {}),
        **({} if found.treated is None else {"config": config}),
    )
    tokenizer.model_max_length = 1 << 60  # windows are cut later; no word about long text is needed
    return tokenizer


def _placed(model: Any, place: torch.device, name: str) -> Any:
    try:
        return model.to(place)
    except torch.OutOfMemoryError as error:
        raise RefusalError(
            f"{name} does not fit into the memory of {place}: pass `dtype='bfloat16'` or `device='cpu'`."
        ) from error
