"""What kind of numbers a safetensors file holds, from its header alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

from attnscope.core.errors import RefusalError


def refuse_whole_numbers(files: Iterable[Path], name: str) -> None:
    """Integers or truth values where weights should be: transformers would make fractions of them and say nothing.

    Masks and counters beside the weights (`attn.bias` of GPT-2, `position_ids`) are whole numbers rightly.
    """
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a mapping)
                tensor = stored.get_slice(key)
                kind, axes, last = str(tensor.get_dtype()), len(tensor.get_shape()), key.rsplit(".", 1)[-1]
                is_weight = last in ("weight", "gamma", "beta") or (last == "bias" and axes == 1)
                if is_weight and kind[0] in "IUB" and not kind.startswith("BF"):
                    raise RefusalError(
                        f"The weights {key} of {name} are stored as {kind}, which holds whole numbers only: give the "
                        "weights as fractions (F32, F16 or BF16), as they were before they were converted."
                    )
