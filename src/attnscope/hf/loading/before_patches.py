"""What stands in a row before the patches of a picture: [CLS], registers, tokens of a prefix."""

from __future__ import annotations

from typing import Any


def before_patches(model: Any, count: int) -> tuple[str, ...]:
    """Names for `count` tokens; registers come last, as many as the configuration says."""
    config: Any = getattr(model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    registers = getattr(vision, "num_register_tokens", 0) or 0
    plain = count - registers if 0 <= registers <= count else count
    names = ["[CLS]", "[distillation]"] if plain <= 2 else [f"[prefix {n}]" for n in range(plain)]
    return (*names[:plain], *(f"[register {n + 1}]" for n in range(count - plain)))
