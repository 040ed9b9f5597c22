"""Turn a picture or a sound into arguments of a model's forward.

The model's own processor, described in preprocessor_config.json, scales pictures and cuts sounds. Without that file, a
picture is scaled to the size in the configuration, with the usual mean and deviation of colours for this kind of model,
and a note says so.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from attnscope.core.errors import RefusalError
from attnscope.data.medium import Picture, Sound
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.one_text import Scene
from attnscope.hf.loading.quiet import pretrained, quiet

PIXELS = "pixel_values"
HEARD = ("input_features", "input_values")
SMALL = 224  # pixels, for models that take any size: DINO and similar models are evaluated at this size
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SETTINGS = "preprocessor_config.json"
_QUALITY = 85  # quality of the JPEG that pages show


def picture_batch(loaded: Loaded, picture: Picture, processor: Any | None) -> tuple[dict[str, Tensor], Scene, str]:
    """Return the batch, the scene for pages, and a note if there was no processor."""
    own = processor if processor is not None else _stored(loaded, transformers.AutoImageProcessor)
    note = ""
    if own is None:
        pixels, mean, std, note = _plainly(loaded, picture)
        batch = {PIXELS: pixels}
    else:
        own = getattr(own, "image_processor", own)
        batch = _processed(own, {"images": picture.image}, "picture")
        if PIXELS not in batch or batch[PIXELS].ndim != 4:
            raise RefusalError(
                f"The processor of {loaded.name} turns a picture into {', '.join(batch) or 'nothing'} instead of one "
                "row of pixel_values, so it cannot be explained: in Python, give a ready batch."
            )
        mean, std = (getattr(own, name, None) for name in ("image_mean", "image_std"))
        if getattr(own, "do_normalize", True) is False or mean is None:
            mean, std = (0.0,), (1.0,)
    taken = {name: tensor for name, tensor in batch.items() if name in loaded.accepts}
    scene = Scene(
        PIXELS, "image", picture.name, grid=grid_of(loaded, taken[PIXELS]), shown=_shown(taken[PIXELS], mean, std)
    )
    return taken, scene, note


def sound_batch(loaded: Loaded, sound: Sound, processor: Any | None) -> tuple[dict[str, Tensor], Scene, str]:
    """Return the batch, the scene for pages, and a note if there was no processor.

    Some processors pad short sounds with silence.
    """
    own = processor if processor is not None else _stored(loaded, transformers.AutoFeatureExtractor)
    note = ""
    if own is None:
        own = _usual_extractor(loaded)
        note = f"{loaded.name} has no {_SETTINGS}: the sound is read with the defaults of {type(own).__name__}."
    own = getattr(own, "feature_extractor", own)
    rate = int(getattr(own, "sampling_rate", 16000))
    samples = sound.at_rate(rate)
    longest = getattr(own, "chunk_length", None)
    if isinstance(longest, int | float) and len(samples) > longest * rate:
        raise RefusalError(
            f"{sound.name} lasts {len(samples) / rate:.1f} seconds and {loaded.name} reads at most {longest:g}: "
            "shorten it."
        )
    batch = _processed(own, {"raw_speech": samples, "sampling_rate": rate}, "sound")
    argument = next((name for name in HEARD if name in batch and name in loaded.accepts), None)
    if argument is None:
        raise RefusalError(
            f"The processor of {loaded.name} turns a sound into nothing that its forward takes: give another processor."
        )
    frames = batch[argument].shape[-1]
    step = float(getattr(own, "hop_length", 1)) if argument == "input_features" else 1.0
    window = frames * step / rate
    scene = Scene(argument, "sound", sound.name, seconds=len(samples) / rate, window=window)
    return {argument: batch[argument]}, scene, note


def grid_of(loaded: Loaded, pixels: Tensor) -> tuple[int, int] | None:
    """Return rows and columns of patches, or None if the configuration has no patch size."""
    config: Any = getattr(loaded.model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "patch_size", None)
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, tuple | list) or len(size) != 2 or pixels.ndim != 4:
        return None
    return int(pixels.shape[2] // size[0]), int(pixels.shape[3] // size[1])


def _processed(processor: Any, arguments: Mapping[str, Any], what: str) -> dict[str, Tensor]:
    try:
        with quiet():
            made = processor(**arguments, return_tensors="pt")
    except Exception as error:  # processors raise any kind of error
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
        raise RefusalError(
            f"{type(processor).__name__} cannot read this {what} ({type(error).__name__}: {reason}): give another, or "
            "the processor that belongs to the model."
        ) from error
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


def _stored(loaded: Loaded, reader: Any) -> Any | None:
    """Return the processor in the model's folder, or None."""
    folder = Path(str(loaded.provenance.get("source", "")))
    if not (folder / _SETTINGS).is_file():
        return None
    try:
        with quiet():
            return pretrained(reader, folder, trust_remote_code=False)
    except Exception as error:
        raise RefusalError(
            f"{_SETTINGS} of {loaded.name} cannot be used ({type(error).__name__}): check it, or in Python pass "
            "processor=."
        ) from error


def _usual_extractor(loaded: Loaded) -> Any:
    config: Any = loaded.model.config
    try:
        with quiet():
            made = FEATURE_EXTRACTOR_MAPPING[type(config)]
            bins = getattr(config, "num_mel_bins", None)
            return made(feature_size=bins) if isinstance(bins, int) else made()
    except (KeyError, ValueError, TypeError, ImportError):
        raise RefusalError(
            f"{loaded.name} has no {_SETTINGS}, which says how to read sounds: add the file, or in Python pass "
            "processor=."
        ) from None


def _plainly(loaded: Loaded, picture: Picture) -> tuple[Tensor, Any, Any, str]:
    """Scale a picture to the size in the configuration, and normalise its colours as usual for this kind of model."""
    config: Any = getattr(loaded.model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    side = getattr(vision, "image_size", SMALL)
    height, width = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    if max(height, width) > SMALL and "interpolate_pos_encoding" not in loaded.accepts:
        patch = getattr(vision, "patch_size", 1)
        if isinstance(patch, int) and SMALL % patch == 0:  # models without that argument always interpolate positions
            height = width = SMALL
    mean, std = IMAGENET
    try:
        with quiet():
            usual = IMAGE_PROCESSOR_MAPPING[type(config)]
        usual = next(iter(usual.values())) if isinstance(usual, Mapping) else usual
        mean, std = tuple(usual.image_mean), tuple(usual.image_std)
    except (KeyError, AttributeError, TypeError, StopIteration, ImportError):
        pass
    scaled = picture.image.resize((width, height), 3)  # bicubic
    pixels = torch.from_numpy(np.asarray(scaled, dtype=np.float32) / 255).permute(2, 0, 1)[None]
    middle, spread = (torch.tensor(side).view(1, -1, 1, 1) for side in (mean, std))
    note = (
        f"{loaded.name} has no {_SETTINGS}: the picture is scaled to {height} x {width} pixels, with colours of mean "
        f"{', '.join(f'{value:.3g}' for value in mean)}."
    )
    return (pixels - middle) / spread, mean, std, note


def _shown(pixels: Tensor, mean: Any, std: Any) -> str | None:
    """Turn the pixels that a model reads back into a picture, as a data: address."""
    from attnscope.data.medium import pillow

    picture = pixels[0].detach().float().cpu()
    middle, spread = (torch.tensor(list(side), dtype=torch.float32).view(-1, 1, 1) for side in (mean, std))
    if picture.shape[0] not in (1, 3):
        return None
    colours = (picture * spread + middle).clamp(0, 1)
    bytes_ = (255 * colours).round().to(torch.uint8).permute(1, 2, 0).numpy()
    image = pillow().fromarray(bytes_[..., 0] if bytes_.shape[2] == 1 else bytes_)
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
