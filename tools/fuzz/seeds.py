"""Write the seeds: small files of every kind, made by the code that writes such files.

python -m tools.fuzz.seeds build/fuzz/seeds
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        for name, contents in {**_records(Path(work)), **_runs(Path(work)), **_patterns(), **_texts(), **_media(),
                               **_models(Path(work)), **_rest(Path(work))}.items():  # fmt: skip
            (out / name).mkdir(parents=True)
            for number, content in enumerate(contents):
                (out / name / f"seed-{number:02d}").write_bytes(content)
    dictionary = _dictionary(out)
    (out.parent / "json.dict").write_text("".join(f'"{word}"\n' for word in dictionary))


def _dictionary(out: Path) -> list[str]:
    """Every key of every JSON seed, in quotes."""
    words: set[str] = set()

    def walk(node: Any) -> None:
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)
        if isinstance(node, dict):
            words.update(node)

    for seed in out.rglob("seed-*"):
        if seed.parent.name.endswith((".json", ".jsonl")):
            for line in [seed.read_text(), *seed.read_text().split("\n")]:
                try:
                    walk(json.loads(line))
                except ValueError:
                    continue
    plain = [word for word in sorted(words) if word.isascii() and word.isidentifier() and len(word) < 30]
    return [f'\\"{word}\\"' for word in plain] + ["null", "true", "false", '\\"inf\\"', "NaN", "1e999", "[[", "{}"]


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _records(work: Path) -> dict[str, list[bytes]]:
    from attnscope.commands.scan.survey.builder import NotMeasured
    from attnscope.commands.scan.survey.shards import ShardId, Store, to_bytes
    from tests.commands.samples import ALL, sample
    from tests.commands.scan.survey.sample import sample_survey

    small = [sample(kind) for kind in ALL if kind not in ("compiled", "survey")]
    documents = [_json(_thinned(record.document())) for record in small]
    plan, digest = {"model": "m", "samples": 8, "seed": 0}, "ab" * 32
    Store.open(work / "store", plan, digest, 4)
    shards = [to_bytes(ShardId(plan, digest, n, 4), sample_survey(1, 2, 2, seed=n), NotMeasured()) for n in range(2)]
    sample("compiled").save(work / "head.safetensors")
    return {
        "survey.json": [_json(_thinned(sample_survey(2, 2, 2, seed=seed).document())) for seed in (0, 1)],
        "record.json": documents,
        "record.json.gz": [gzip.compress(content, mtime=0) for content in documents[:4]],
        "a.shard": shards,
        "plan.json": [(work / "store" / "plan.json").read_bytes()],
        "head.safetensors": [(work / "head.safetensors").read_bytes()],
        "collapse.json": [_json({"provenance": {"model": {"source": "x"}}})],
    }


def _thinned(document: Any) -> Any:
    """Keep every ninth cell of the surveys in a document."""
    if isinstance(document, list):
        return [_thinned(entry) for entry in document]
    if not isinstance(document, dict):
        return document
    return {name: _thinned(value[::9] if name == "cells" else value) for name, value in document.items()}


def _runs(work: Path) -> dict[str, list[bytes]]:
    from tests.commands.timeline.sample import write_run

    run = write_run(work / "run", 4)
    return {
        "run.json": [(run / "run.json").read_bytes()],
        "looks.jsonl": [(run / "looks.jsonl").read_bytes()],
        "run.lock": [b"123 host\n", b"99999999999999999999 localhost\n"],
    }


def _patterns() -> dict[str, list[bytes]]:
    import scipy.io
    import scipy.sparse

    dense = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]])
    rows, columns = dense.nonzero()

    def saved(save: Any, *args: Any, **named: Any) -> bytes:
        out = io.BytesIO()
        save(out, *args, **named)
        return out.getvalue()

    edges = [[int(i), int(j), float(dense[i, j])] for i, j in zip(rows, columns, strict=True)]
    sparse = scipy.sparse.csr_matrix(dense)
    return {
        "pattern.npy": [saved(np.save, dense), saved(np.save, dense > 0), saved(np.save, np.asfortranarray(dense))],
        "pattern.npz": [
            saved(np.savez, m=dense),
            saved(np.savez, rows=rows, columns=columns, weights=dense[rows, columns], n=np.array(3)),
            *(saved(scipy.sparse.save_npz, sparse.asformat(kind)) for kind in ("csr", "coo", "dia", "bsr")),
        ],
        "pattern.mtx": [
            saved(scipy.io.mmwrite, sparse),
            saved(scipy.io.mmwrite, dense),
            saved(scipy.io.mmwrite, sparse, symmetry="general", field="pattern"),
            b"%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 1\n2 1 .5\n",
        ],
        "pattern.json": [
            _json({"n": 3, "n_keys": 3, "rows": rows.tolist(), "columns": columns.tolist(), "weights": [1] * 6}),
            _json(edges),
        ],
        "pattern.csv": [b"row,column,weight\n0,0,1\n1,0,0.5 # half\n1;1;0.5\n", b"0 0\n1 0\n1 1\n"],
    }


def _texts() -> dict[str, list[bytes]]:
    import pyarrow
    import pyarrow.parquet

    texts = ["The dog chased its tail.", "A second text,\nwith é and \U0001f600.", "third"]
    lines = "\n".join(json.dumps({"text": text, "label": "good"}) for text in texts).encode() + b"\n"
    pairs = b'{"source": "a b", "target": "c"}\n{"source": "d", "target": "e"}\n'
    parquets = []
    for options in ({}, {"compression": "none", "use_dictionary": False}):
        out = io.BytesIO()
        table = pyarrow.table({"text": texts, "n": [1, 2, 3]})
        pyarrow.parquet.write_table(table, out, store_schema=False, write_statistics=False, **options)
        parquets.append(out.getvalue())
    prompts = b'{"text": "The capital of France is", "target": " Paris", "against": " Rome"}\n'
    return {
        "corpus.txt": ["\n".join(texts).encode(), b"\xef\xbb\xbfa\r\nb\r"],
        "corpus.jsonl": [lines, pairs, b'"a text"\n'],
        "corpus.jsonl.gz": [gzip.compress(lines, mtime=0), gzip.compress(bytes(10_000), mtime=0)],
        "corpus.parquet": parquets,
        "stream.txt.gz": [gzip.compress("\n".join(texts * 9).encode(), mtime=0)],
        "stream.jsonl": [lines],
        "stream.parquet": parquets,
        "prompts.jsonl": [prompts, b'{"text": "a", "target": 5}\n'],
        "labelled.jsonl.gz": [gzip.compress(lines, mtime=0)],
    }


def _media() -> dict[str, list[bytes]]:
    from PIL import Image
    from scipy.io import wavfile

    pictures, sounds = [], []
    rgb = Image.fromarray((np.arange(48) * 5).astype(np.uint8).reshape(4, 4, 3))
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        out = io.BytesIO()
        rgb.save(out, kind)
        pictures.append(out.getvalue())
    for other in (rgb.convert("P"), rgb.convert("RGBA"), Image.fromarray(np.arange(9, dtype=np.uint16).reshape(3, 3))):
        out = io.BytesIO()
        other.save(out, "PNG")
        pictures.append(out.getvalue())
    for kind in (np.int16, np.uint8, np.float32):
        out = io.BytesIO()
        wavfile.write(out, 8000, np.zeros((8, 2), kind))
        sounds.append(out.getvalue())
    return {"picture": pictures, "sound.wav": sounds}


def _models(work: Path) -> dict[str, list[bytes]]:
    import torch
    from safetensors.torch import save
    from transformers import BertConfig, GPT2Config, LlamaConfig, T5Config

    from attnscope.hf.exchanging.recipe import Recipe
    from attnscope.hf.loading.treated import Sidecar
    from tests.specimens import write_gguf

    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    configs = [
        LlamaConfig(**sizes, intermediate_size=8),
        BertConfig(**sizes, intermediate_size=8),
        GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=9),
        T5Config(num_layers=1, d_model=8, d_kv=4, num_heads=2, d_ff=8, vocab_size=9),
    ]
    write_gguf(work / "tiny.gguf", add_bos=True)
    recipe = Recipe(variant="gated_output", layers=(0, 1), heads=None, stack="decoder", seed=0, settings={})
    sidecar = Sidecar(recipe, {"model_type": "llama"}, "treated.safetensors", "ab" * 32, {"a.b": (2, 2)})
    model = torch.nn.Linear(2, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    moments = {
        f"optimiser/{moment}/{name}": value.detach()
        for name, parameter in model.named_parameters()
        for moment, value in optimiser.state[parameter].items()
    }
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    kept = save({**weights, **moments, "losses": torch.tensor([3.0, 2.0], dtype=torch.float64)})
    return {
        "config.json": [_json(config.to_diff_dict()) for config in configs],
        "model.safetensors": [save({"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2, dtype=torch.int64)[None]})],
        "model.safetensors.index.json": [_json({"weight_map": {"a": "model-00001-of-00001.safetensors"}})],
        "model.gguf": [(work / "tiny.gguf").read_bytes()],
        "attnscope.json": [_json(sidecar.to_json())],
        "linear.safetensors": [save(weights, {"labels": '["good", "bad"]'})],
        "kept.safetensors": [kept],
        "kept.json": [b'{"plan": {"steps": 4}}'],
        "device_map.json": [b'{"": "cpu", "model.layers.20": "disk", "a": 0}'],
    }


def _rest(work: Path) -> dict[str, list[bytes]]:
    from attnscope.commands.capacity.widths import Measurement
    from attnscope.commands.task_paths.ledger import Ledger
    from attnscope.papers.checkpoints import _digest
    from tests.commands.samples import sample
    from tools.fuzz.readers import _point

    ledger = Ledger(work / "ledger.jsonl", {"model": "m"})
    ledger.open(False)
    for number, row in enumerate(sample("task_paths").prompts[:2]):
        ledger.add(number, row)
    answer = {"curve": [1.0, 0.5], "n": 3}
    history = [{"loss": 3.2, "step": 5}, {"eval_loss": 3.0, "step": 10}]
    return {
        "part.json": [_json({"answer": answer, "seconds": 1.5, "sha256": _digest(answer)})],
        "ledger.jsonl": [(work / "ledger.jsonl").read_bytes()],
        "width.json": [_json(Measurement(_point(), 5, 2.0, 0.1, revision=1).to_json())],
        "trainer_state.json": [_json({"global_step": 10, "log_history": history})],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
