"""`python -m bench.textiles`: does the relevance of a linear defect classifier on DINOv2's [CLS] fall on
the defect?

The head is a logistic regression on 200 images (half with a local defect of simulated textile), tested on 100 others.
The data do not say where the defect is: it is a small block of strong noise, found in the pixels without a model
(`defect`). For images with a defect that the head recognises, every explanation of its logit gives the share of its
weight on patches that the block touches, and whether its first patch is one of them. For uninformative scores, both
would equal the share of the picture that these patches cover.

Writes bench/textiles.json and, with --pages FOLDER, the pages of the first images.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

import attnscope
from attnscope.data.medium import Picture
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.processing import picture_batch
from attnscope.stats.intervals import bootstrap_mean
from tools.fetch_models import path as material
from tools.real_models import dinov2

RESULTS = Path(__file__).with_name("textiles.json")
KINDS = ("nominal", "local")
TRAINING, TESTING, ASKED = 100, 50, 8  # images of each kind; defects that are explained
METHODS = "relevance,attention_lrp,gradient_input,raw_attention,rollout,random"
PENALTY = 1e-2  # weight decay, relative to the mean loss
BLOCK = 12  # pixels of the window over which noise is summed
MARGIN = 3  # pixels at the edge to skip: the images have a white frame


def defect(pixels: Float[np.ndarray, "row column"]) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right of the block of noise: the window in which pixels differ most from their
    neighbours, extended as far as the sum stays above half of its maximum."""
    from scipy.ndimage import median_filter, uniform_filter

    noise = np.abs(pixels - median_filter(pixels, 3))
    noise[:MARGIN], noise[-MARGIN:], noise[:, :MARGIN], noise[:, -MARGIN:] = (noise.mean(),) * 4
    summed = uniform_filter(noise, BLOCK)
    row, column = np.unravel_index(int(summed.argmax()), summed.shape)
    floor = float(np.median(summed))
    inside = uniform_filter(noise, 5) > floor + (float(summed[row, column]) - floor) / 2
    near = inside[max(row - BLOCK, 0) : row + BLOCK, max(column - BLOCK, 0) : column + BLOCK]
    rows, columns = np.nonzero(near)
    top, left = max(row - BLOCK, 0), max(column - BLOCK, 0)
    return top + int(rows.min()), top + int(rows.max()) + 1, left + int(columns.min()), left + int(columns.max()) + 1


def touched(box: tuple[int, int, int, int], size: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    """Return the patches that a box touches, `[row, column]`; `size` is (height, width) of the image."""
    made = np.zeros(grid, dtype=bool)
    scale = grid[0] / size[0], grid[1] / size[1]
    rows = slice(int(box[0] * scale[0]), int(np.ceil(box[1] * scale[0])))
    made[rows, int(box[2] * scale[1]) : int(np.ceil(box[3] * scale[1]))] = True
    return made


def embeddings(loaded: Any, files: list[Path]) -> Float[Tensor, "image width"]:
    found = []
    with torch.no_grad():
        for file in files:
            batch, _, _ = picture_batch(loaded, Picture(Image.open(file).convert("RGB"), file.name), None)
            found.append(loaded.model(**batch).last_hidden_state[0, 0])
    return torch.stack(found)


def fitted(x: Float[Tensor, "image width"], y: Float[Tensor, " image"]) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression on standardised features; return its weights for the original features."""
    mean, spread = x.mean(0), x.std(0) + 1e-6
    scaled = (x - mean) / spread
    weight, bias = torch.zeros(x.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(scaled @ weight + bias, y)
        value = value + PENALTY * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    plain = weight.detach() / spread
    return plain[None], bias.detach() - plain @ mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--asked", type=int, default=ASKED)
    options = parser.parse_args()
    folder, loaded = material("textiles"), in_memory(dinov2(), name="dinov2")
    files = {kind: sorted((folder / kind).glob("*.jpg")) for kind in KINDS}
    split = {"train": slice(0, TRAINING), "test": slice(TRAINING, TRAINING + TESTING)}
    print("embedding images", file=sys.stderr)
    x = {kind: embeddings(loaded, files[kind][: TRAINING + TESTING]) for kind in KINDS}
    sides = {
        name: (
            torch.cat([x[kind][part] for kind in KINDS]),
            torch.cat([torch.full((len(x[kind][part]),), float(n)) for n, kind in enumerate(KINDS)]),
        )
        for name, part in split.items()
    }
    weight, bias = fitted(*sides["train"])
    right = {name: ((a @ weight[0] + bias > 0) == (b > 0.5)).float() for name, (a, b) in sides.items()}
    print({name: round(float(one.mean()), 3) for name, one in right.items()}, file=sys.stderr)
    head = {"weight": weight, "bias": bias, "labels": ["defect"]}
    known = [n for n in range(TRAINING, TRAINING + TESTING) if float(x["local"][n] @ weight[0] + bias) > 0]
    shares: dict[str, list[float]] = {}
    firsts: dict[str, list[float]] = {}
    areas = []
    for number in known[: options.asked]:
        image = Image.open(files["local"][number]).convert("RGB")
        found = attnscope.explain(loaded, image, head=head, target="defect", methods=METHODS)
        (read,) = found.inputs
        assert read.grid is not None
        box = defect(np.asarray(image.convert("L"), dtype=np.float64))
        mask = touched(box, image.size[::-1], read.grid).flatten()
        areas.append(float(mask.mean()))
        for name in found.names:
            patches = np.asarray(found.method(name).scores[0][read.before :]).clip(0)
            shares.setdefault(name, []).append(float(patches[mask].sum() / max(patches.sum(), 1e-30)))
            firsts.setdefault(name, []).append(float(mask[int(patches.argmax())]))
        if options.pages is not None and len(areas) <= 4:
            options.pages.mkdir(parents=True, exist_ok=True)
            found.write_page(options.pages / f"textile_{number}.html")
        print(f"{len(areas)} of {options.asked}", file=sys.stderr)
    results = {
        "images": {"training": 2 * TRAINING, "testing": 2 * TESTING, "explained": len(areas)},
        "accuracy": {name: round(float(one.mean()), 4) for name, one in right.items()},
        "recognised defects of the test set": len(known) / TESTING,
        "area share of the defect's patches": round(float(np.mean(areas)), 5),
        "methods": {
            name: {
                "share on the defect": _estimate(shares[name]),
                "first patch on the defect": round(float(np.mean(firsts[name])), 4),
            }
            for name in shares
        },
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


def _estimate(numbers: list[float]) -> dict[str, float]:
    mean, low, high = bootstrap_mean(numbers)
    return {"mean": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}


if __name__ == "__main__":
    main()
