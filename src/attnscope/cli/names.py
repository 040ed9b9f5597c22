"""Names that a person typed, checked before anything is loaded: torch takes seconds to import, a typo should not."""

from __future__ import annotations

from pathlib import Path

import typer

from attnscope.core.errors import RefusalError, nearest


def check_model(
    model: str,
    *,
    dtype: str = "float32",
    random_init: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    shapes: bool = False,
) -> None:
    """The model must be there (a hub name is fetched); with `shapes`, one of the paper's shapes will do as well."""
    from attnscope.core.torch_extra import refuse_without_torch
    from attnscope.hf.loading.options import Loading, refuse_unknown_dtype
    from attnscope.hf.loading.sources import find

    refuse_without_torch()
    refuse_unknown_dtype(dtype)
    if shapes and _is_shape(model) and not Path(model).exists():
        if not random_init:
            raise RefusalError(f"'{model}' is a shape without weights: pass --random-init, or name a model.")
        return
    loading = Loading(dtype, random_init=random_init, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    try:
        find(model, loading)
    except KeyboardInterrupt:  # a download may take long
        typer.echo("attnscope: interrupted while the model was fetched; nothing was done yet.", err=True)
        raise typer.Exit(130) from None


def check_corpus(corpus: str | None, *, drawn: bool = False) -> None:
    """`drawn`: whether the command lets a model draw sequences itself."""
    from attnscope.core.places import is_address
    from attnscope.corpus.read import corpus_path, repeated

    if corpus is not None and corpus != "-" and not is_address(corpus) and not (drawn and repeated(corpus)):
        corpus_path(corpus)


def check_device_map(device_map: str | None) -> None:
    from attnscope.hf.loading.device_map import read_device_map

    if device_map is not None:
        read_device_map(device_map)


def check_measures(measures: str) -> None:
    from attnscope.core.registry import refuse_unknown_measures

    refuse_unknown_measures(filter(None, map(str.strip, measures.split(","))))


def check_methods(methods: str) -> None:
    from attnscope.core.registry import refuse_unknown_methods

    refuse_unknown_methods(filter(None, map(str.strip, methods.split(","))))


def check_variants(variants: str) -> None:
    from attnscope.records.collapse import VARIANTS

    for name in filter(None, map(str.strip, variants.split(","))):
        if name not in VARIANTS:
            raise RefusalError(f"There is no variant called '{name}'.{nearest(name, VARIANTS)}")


def check_construction(method: str) -> None:
    from attnscope.core.rooms import names

    known = ("auto", *names("attnscope.constructions"))
    if method not in known:
        raise RefusalError(f"There is no construction called '{method}'.{nearest(method, known)}")


def _is_shape(model: str) -> bool:
    from attnscope.records.published import SHAPE_OF

    return model in SHAPE_OF.values()
