"""What the table of the atlas says about a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tools import fetch_models
from tools.atlas.packages import Package


@dataclass(frozen=True)
class Checkpoint:
    """One pretrained checkpoint: what it is, where it comes from, how it is read, what it reads, how it is checked.

    `stack` is decoder, encoder or encoder-decoder. `layout` is a function of layouts.py, `corpus` a name of corpora.py.
    `check` is a function of checks.py. `precision` says in what precision the package stores the weights.
    `left_out` says why a checkpoint is not part of the atlas: it could not be shown to be pretrained.
    """

    name: str
    about: str
    family: str
    stack: str
    domain: str
    licence: str
    packages: tuple[Package, ...]
    layout: str
    settings: dict[str, Any]
    corpus: str
    check: str
    precision: str = "float32"
    renames: tuple[tuple[str, Any], ...] = ()
    dropped: tuple[str, ...] = ()
    check_settings: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""

    @property
    def receipt(self) -> str:
        """What a converted folder depends on."""
        pinned = [[package.requirement, package.sha256, package.members] for package in self.packages]
        shown = {key: str(value) for key, value in self.settings.items()}
        names = [[pattern, getattr(new, "__name__", new)] for pattern, new in self.renames]
        return json.dumps([pinned, self.layout, shown, names, self.dropped], sort_keys=True)


def files(requirement: str, sha256: str, prefix: str, *names: str) -> Package:
    """Return a package of which `names` under `prefix` are kept, each under the last part of its name."""
    return Package(requirement, sha256, {f"{prefix}/{name}": name.split("/")[-1] for name in names})


def material(name: str) -> Package:
    """Return the package of a material of fetch_models."""
    known = fetch_models.MATERIALS[name]
    return Package(known.requirement, known.sha256, known.members, source=known.source)


def bert(layers: int, width: int, heads: int, vocabulary: int = 30522, **more: Any) -> dict[str, Any]:
    """Return the configuration of a BERT."""
    shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {"model_type": "bert", "vocab_size": vocabulary, "intermediate_size": 4 * width, **shape, **more}


BERT_MARKS = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
