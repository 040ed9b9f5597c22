"""Compare converted ONNX checkpoints with their own export: does the converted model compute what the package computes?

    ATLAS_ONNX_PYTHON=/path/to/python python -m tools.atlas.same_as_export [names]

The other Python has onnxruntime, which is not among the project's packages. Writes tools/atlas/same_as_export.json:
for each checkpoint the worst cosine between the two outputs on ten texts, three photographs or three sounds, the same
for a model with shuffled weights, and which output was compared. The export runs without rounding activations (see
run_export.py), so that both compute the same thing: a cosine of 0.999 is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from tools.atlas import convert, corpora, tasks
from tools.atlas.checkpoints import CHECKPOINTS
from tools.atlas.checks import shuffled
from tools.atlas.entry import Checkpoint
from tools.atlas.packages import unpacked

RECORD = Path(__file__).with_name("same_as_export.json")
RUNNER = Path(__file__).with_name("run_export.py")
LINES = (*tasks.ATTACKS[:3], *tasks.HARMLESS[:3], *tasks.WHOLE[:2], *tasks.MISTAKEN[:2])
Outputs = dict[str, np.ndarray[Any, Any]]


def exported(model: Path, inputs: dict[str, Tensor]) -> Outputs:
    """Return what an ONNX file computes."""
    with tempfile.TemporaryDirectory() as scratch:
        given, out = Path(scratch) / "given.npz", Path(scratch) / "out.npz"
        np.savez(given, **{name: tensor.numpy() for name, tensor in inputs.items()})
        python = os.environ.get("ATLAS_ONNX_PYTHON", sys.executable)
        subprocess.run([python, str(RUNNER), str(model), str(given), str(out)], check=True, capture_output=True)
        return dict(np.load(out))


def candidates(model: Any, inputs: dict[str, Tensor], heads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what an export may give out: logits, states, pooled states, and left-out heads of one layer on these."""
    with torch.inference_mode():
        out = model(**inputs)
    found = {name: out[name][0] for name in ("logits", "image_embeds", "last_hidden_state") if name in out}
    if "last_hidden_state" in out and "input_ids" in inputs:
        found |= {"mean": out.last_hidden_state[0].mean(0), "first": out.last_hidden_state[0, 0]}
        if "pooler_output" in out:
            found["pooler"] = out.pooler_output[0]
        for pooled in ("mean", "first"):
            for name in (key.removesuffix(".weight") for key in heads if key.endswith(".weight")):
                if f"{name}.bias" in heads and heads[f"{name}.weight"].shape[-1] == len(found[pooled]):
                    found[f"{name} of {pooled}"] = heads[f"{name}.weight"] @ found[pooled] + heads[f"{name}.bias"]
    if {"main_head.weight", "aux_head.weight"} <= heads.keys():
        found["both heads of mean"] = torch.cat([found["main_head of mean"], found["aux_head of mean"]])
    if "wrapped.binary_classifier.weight" in heads:
        found["joint of pooler"] = _joint(found["pooler"], heads)
    if "decoder.final_conv.weight" in heads:
        found["map of patches"] = _focus_map(out.last_hidden_state[:, 1:], heads)
    return found


def _joint(pooled: Tensor, heads: dict[str, Tensor]) -> Tensor:
    """Return log probabilities of harmless, and of harmful times its six kinds, as harm-bert-zh's export does."""
    binary, kinds = (
        heads[f"wrapped.{name}_classifier.weight"] @ pooled + heads[f"wrapped.{name}_classifier.bias"]
        for name in ("binary", "category")
    )
    binary = (binary / 0.9310176372528076).log_softmax(-1)  # the temperature of its configuration
    return torch.cat([binary[:1], binary[1] + kinds.log_softmax(-1)])


def _focus_map(patches: Tensor, heads: dict[str, Tensor]) -> Tensor:
    """Return what the decoder of dinov2-small-focus makes of patches, before it is resized."""
    from torch.nn import functional

    side = round(patches.shape[1] ** 0.5)
    field = patches.transpose(1, 2).reshape(1, -1, side, side)
    for n in ("1", "2", "3"):
        field = functional.conv_transpose2d(
            field, heads[f"decoder.upconv{n}.weight"], heads[f"decoder.upconv{n}.bias"], stride=2, padding=1
        )
        norm = [heads[f"decoder.bn{n}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        field = functional.batch_norm(field, *norm).relu()
    final = functional.conv2d(field, heads["decoder.final_conv.weight"], heads["decoder.final_conv.bias"])
    return functional.interpolate(final, size=(224, 224), mode="bilinear", align_corners=False).sigmoid()[0]


def agreement(computed: list[dict[str, Tensor]], given: list[Outputs]) -> dict[str, float]:
    """Return the worst cosine over inputs for each pair of outputs of equal size.

    Few numbers, such as two logits, agree in direction by chance: they are joined over inputs and their mean is
    taken off, so that only what differs between inputs counts.
    """
    figures = {}
    for theirs in given[0]:
        for ours in computed[0]:
            if any(out[theirs].size != mine[ours].numel() for out, mine in zip(given, computed, strict=True)):
                continue
            one = [mine[ours].numpy().ravel().astype(np.float64) for mine in computed]
            other = [out[theirs].ravel().astype(np.float64) for out in given]
            if one[0].size < 50:
                one, other = ([(np.stack(rows) - np.mean(rows, axis=0)).ravel()] for rows in (one, other))
            figures[f"{theirs} = {ours}"] = min(_cosine(a, b) for a, b in zip(one, other, strict=True))
    return figures


def _cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-30))


def compare(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entry of one checkpoint."""
    folder = convert.folder(checkpoint.name)
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    heads = tasks.left_out(folder) if (folder / "left_out.npz").is_file() else {}
    raw = unpacked(checkpoint.packages, convert.ATLAS / ".raw" / f"{checkpoint.name}-export")
    for packed in raw.glob("*.tar.gz"):
        subprocess.run(["tar", "xzf", str(packed), "-C", str(raw)], check=True)
    control = shuffled(model)
    if checkpoint.stack == "encoder-decoder":
        worst, other, what = _two_sides(checkpoint, model, control, raw)
    else:
        (file,) = raw.glob("*.onnx")
        inputs = _inputs(checkpoint, folder)
        given = [exported(file, one) for one in inputs]
        figures = agreement([candidates(model, one, heads) for one in inputs], given)
        if not figures:
            raise SystemExit(
                f"no output to compare: the export gives {[(k, v.shape) for k, v in given[0].items()][:4]}"
            )
        what = max(figures, key=figures.__getitem__)
        worst = figures[what]
        other = agreement([candidates(control, one, heads) for one in inputs], given)[what]
    return {"cosine": round(worst, 5), "shuffled": round(other, 5), "compared": what, "passes": worst >= 0.999}


def _inputs(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Tensor]]:
    if checkpoint.corpus == "photographs":
        return [{"pixel_values": picture[None]} for picture in corpora.photographs(checkpoint.family)[[0, 5, 10]]]
    words = transformers.AutoTokenizer.from_pretrained(folder)
    return [{"input_ids": words(line, return_tensors="pt")["input_ids"]} for line in LINES]


def _two_sides(checkpoint: Checkpoint, model: Any, control: Any, raw: Path) -> tuple[float, float, str]:
    """Compare the encoder's states, and the decoder's logits on the export's own states."""
    encoder, decoder = next(raw.glob("encoder*.onnx")), next(raw.glob("decoder*.onnx"))
    worst, other = 1.0, -1.0
    for inputs, tokens in _spoken(checkpoint, raw):
        states = exported(encoder, inputs)
        hidden = torch.from_numpy(next(iter(states.values())))
        outputs = exported(decoder, {"input_ids": tokens, "encoder_hidden_states": hidden, **_mask(checkpoint, hidden)})
        logits = outputs["logits"]
        with torch.inference_mode():
            for side, keep in ((model, min), (control, max)):
                seen = side.get_encoder()(next(iter(inputs.values()))).last_hidden_state
                read = side.get_encoder()(next(iter(inputs.values())))
                read.last_hidden_state = hidden
                said = side(encoder_outputs=read, decoder_input_ids=tokens, use_cache=False).logits
                figure = min(_cosine(seen.numpy(), hidden.numpy()), _cosine(said.numpy(), logits))
                worst, other = (keep(worst, figure), other) if side is model else (worst, keep(other, figure))
    return worst, other, "encoder states and decoder logits"


def _mask(checkpoint: Checkpoint, hidden: Tensor) -> dict[str, Tensor]:
    return {"encoder_attention_mask": torch.ones(hidden.shape[:2], dtype=torch.long)}


def _spoken(checkpoint: Checkpoint, raw: Path) -> list[tuple[dict[str, Tensor], Tensor]]:
    if checkpoint.corpus == "speech":
        sounds = [torch.from_numpy(sound)[None] for sound in corpora.windows()[::6]]
        return [({"input_values": sound}, torch.tensor([[1, 450, 1058, 310]])) for sound in sounds]
    words = transformers.AutoTokenizer.from_pretrained(convert.folder(checkpoint.name))
    rows = [words(line, return_tensors="pt")["input_ids"] for line in LINES]
    return [({"input_ids": row}, torch.cat([torch.zeros(1, 1, dtype=torch.long), row[:, :4]], dim=1)) for row in rows]


def main(names: list[str]) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    exports = [name for name, checkpoint in CHECKPOINTS.items() if checkpoint.layout == "onnx"]
    for name in names or [name for name in exports if name not in record]:
        try:
            record[name] = compare(CHECKPOINTS[name])
        except subprocess.CalledProcessError as error:
            print(f"{name:24} FAILED {error.stderr.decode()[-300:]}", flush=True)
            continue
        except (SystemExit, Exception) as error:  # the others are still to be compared
            print(f"{name:24} FAILED {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{name:24} {record[name]}", flush=True)
        RECORD.write_text(
            json.dumps({key: record[key] for key in exports if key in record}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
