"""Mutators that keep the outer format valid, because plain bytes seldom get past a parser, a length or a hash."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Plain = Callable[[bytes, int], bytes]  # libFuzzer's own mutation

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e308, 1e-320, 10**6, 10**9, 2**31, 2**62, 2**63, -(2**63), 10**30,
    10**400, float("nan"), float("inf"), "", "x", "inf", "-inf", "\x00", "\ud800", "\x1b[31m", "é" * 5, "a" * 300,
    [], {}, [[]], [None], [0], [1, 2], ["x"], [[0, 1]], {"x": 1}, {"": None}, "../../etc/passwd", "/dev/zero",
    "@deep", "@near", "@digits", "@1e999",
)  # fmt: skip


def mutated(form: str, data: bytes, most: int, rng: random.Random, plain: Plain) -> bytes:
    """Mutate data of a form; fall back to plain bytes where it cannot be parsed."""
    if form == "bytes" or rng.random() < 0.15:
        return plain(data, most)
    try:
        out = _FORMS[form.partition(" ")[0]](form, data, rng, plain)
    except Exception:  # the corpus holds damaged files too
        return plain(data, most)
    return out if len(out) <= most else plain(data, most)


def _json(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    """Change a document, and nearly always write its hash or checksum anew."""
    from attnscope.core.hashes import HASH, checked_line, content_hash, unchecked

    renew = rng.random() < 0.9
    bare = unchecked(data)
    document = json.loads(bare)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document = changed(document, rng)
    if renew and isinstance(document, dict) and HASH in document and "format" in document:
        document[HASH] = content_hash(document)
    out = dumped(document)
    return checked_line(out)[:-1] if renew and bare != data and out.endswith(b"}") else out


def dumped(document: Any) -> bytes:
    """Write JSON, with texts that no Python object gives: 5,000 brackets, 5,000 digits, a number beyond float64."""
    text = json.dumps(document, separators=(",", ":"))
    for word, raw in (("@deep", "@near", "[" * 5000 + "]" * 5000), ("@digits", "9" * 5000), ("@1e999", "1e999")):
        for quote in ('"', '\\"'):
            text = text.replace(f"{quote}{word}{quote}", raw)
    return text.encode()


def _lines(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    action = rng.randrange(8)
    if action == 0:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif action == 1 and len(lines) > 1:
        del lines[at]
    elif lines[at].strip():
        lines[at] = _json(form, lines[at], rng, plain)
    return b"\n".join(lines)


def _gz(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    inner = gzip.decompress(data)
    kind = form.split(" ")[1]
    inner = mutated(kind, inner, 1 << 16, rng, plain)
    return gzip.compress(inner, 1, mtime=0)


def changed(document: Any, rng: random.Random) -> Any:
    """Change one place of a JSON document, chosen at random with a preference for leaves."""
    document = copy.deepcopy(document)
    holder, key = _somewhere(document, rng)
    if holder is None:
        return rng.choice(ODD)
    value, action = holder[key], rng.randrange(10)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif action == 1:
        holder[rng.choice(("x", "", "format", "version", "layers"))] = value
    elif action == 2:  # from elsewhere in the same document
        other, there = _somewhere(document, rng)
        holder[key] = copy.deepcopy(other[there]) if other is not None else None
    elif action == 3 and isinstance(value, list) and value:
        holder[key] = value[: rng.randrange(len(value))]
    elif action == 3 and isinstance(value, str):
        holder[key] = value[::-1]
    elif isinstance(value, bool | None):
        holder[key] = rng.choice(ODD)
    elif action <= 6 and isinstance(value, int):
        holder[key] = rng.choice((value + 1, value - 1, -value, value * 2, value + 0.5, str(value), value << 40))
    elif action <= 6 and isinstance(value, float):
        holder[key] = rng.choice((-value, value * 1e200, value * 1e-200, None, "inf", "-inf", int(value)))
    elif action <= 5 and isinstance(value, str) and value[:1] in ("{", "["):  # JSON inside a string
        holder[key] = json.dumps(changed(json.loads(value), rng))
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return document


def _somewhere(document: Any, rng: random.Random) -> tuple[Any, Any]:
    """Walk down from the root at random, and stop with a small probability before a leaf."""
    holder: Any = None
    key: Any = None
    here = document
    while isinstance(here, dict | list) and here:
        holder, key = here, rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        here = here[key]
        if rng.random() < 0.12:
            break
    return holder, key


def _safetensors(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    action = rng.randrange(6)
    if action == 0:
        body = plain(body, len(body) + 8)
    elif action <= 2 and "__metadata__" in header:
        meta = header["__metadata__"]
        key = rng.choice(list(meta))
        try:
            meta[key] = json.dumps(changed(json.loads(meta[key]), rng))
        except ValueError:
            meta[key] = rng.choice(("", "x", "{}", "null"))
    elif action == 3:  # another shape of the same size, or another type
        name = rng.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        entry["shape"] = rng.choice(([*entry["shape"], 1], entry["shape"][::-1], [1, *entry["shape"]]))
        entry["dtype"] = rng.choice((entry["dtype"], entry["dtype"], "F32", "I32", "BF16", "F16", "I64", "BOOL", "F64"))
    elif action == 4:  # other names
        names = [name for name in header if name != "__metadata__"]
        old = rng.choice(names)
        header[rng.choice((*names, "x", "optimiser/", "optimiser/x/y", "bias", "weight", ""))] = header.pop(old)
    else:
        header = changed(header, rng)
    text = dumped(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def _shard(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    """Change the document, the layout or an array of a shard, and write its hash anew."""
    import numpy as np
    from safetensors.numpy import load, save

    from attnscope.commands.scan.survey.shards import HASH, content_hash

    arrays = load(data)
    arrays.pop(HASH, None)
    action = rng.randrange(6)
    if action <= 1:
        document = changed(json.loads(arrays["document"].tobytes()), rng)
        arrays["document"] = np.frombuffer(dumped(document), np.uint8)
    elif action == 2:
        arrays["layout"] = np.frombuffer(dumped(changed(json.loads(arrays["layout"].tobytes()), rng)), np.uint8)
    else:
        name = rng.choice([name for name in arrays if name not in ("document", "layout")])
        array = np.array(arrays[name])
        if action == 3 and array.size:
            odd = rng.choice((0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**62, -(2**63)))
            array.reshape(-1)[rng.randrange(array.size)] = np.array(odd).astype(array.dtype)
        elif action == 4:
            array = rng.choice((array[:-1], array[:0], array.reshape(-1), array[None], np.concatenate([array, array])))
        elif rng.random() < 0.5:
            array = array.astype(rng.choice(("int8", "int64", "float32", "float64", "uint8", "uint64", "bool")))
        else:
            del arrays[name]
            name = rng.choice(list(arrays))
            array = arrays[name]
        arrays[name] = array
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if rng.random() < 0.8:
        arrays[HASH] = np.frombuffer(content_hash(arrays), np.uint8)
    return bytes(save(arrays))


def _npy(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    """Change the header of a numpy array and repair its length."""
    if rng.random() < 0.3:
        return data[:10] + plain(data[10:], len(data) + 16)
    (length,) = struct.unpack("<H", data[8:10])
    header, body = data[10 : 10 + length].decode("latin1"), data[10 + length :]
    old, new = rng.choice(
        (
            (
                "<f8",
                rng.choice(("<i8", "|O", "<c16", "|b1", "<U2", "|S8", "<f2", "<M8[s]", "|V8", ">f8", "|u1")),
            ),
            ("False", "True"),
            ("(", f"({rng.choice((0, 1, 2, -1, 10**6, 2**31, 2**62, 10**30))}, "),
            ("'descr': ", "'descr': [('a', '<f8')], 'x': "),
            ("}", ""),
        )
    )
    text = header.replace(old, new, 1).encode("latin1")
    return data[:8] + struct.pack("<H", len(text)) + text + body


def _npz(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    action = rng.randrange(6)
    if action == 0:
        del members[name]
    elif action == 1:
        other = rng.choice(("rows.npy", "columns.npy", "weights.npy", "n.npy", "n_keys.npy", "shape.npy", "x"))
        members[other] = members[name]
    elif action == 2:
        members[name] = members[rng.choice(list(members))]
    else:
        members[name] = _npy(form, members[name], rng, plain)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for entry, content in members.items():
            archive.writestr(zipfile.ZipInfo(entry), content)
    return out.getvalue()


def _parquet(form: str, data: bytes, rng: random.Random, plain: Plain) -> bytes:
    """Change the footer (the last bytes but eight, whose length is stored) or the pages before it."""
    (length,) = struct.unpack("<I", data[-8:-4])
    pages, footer = data[: -8 - length], data[-8 - length : -8]
    if rng.random() < 0.6:
        footer = plain(footer, len(footer) + 32)
    else:
        pages = plain(pages, len(pages) + 32)
    return pages + footer + struct.pack("<I", len(footer)) + data[-4:]


_FORMS: dict[str, Callable[[str, bytes, random.Random, Plain], bytes]] = {
    "json": _json, "lines": _lines, "gz": _gz, "safetensors": _safetensors, "shard": _shard, "npy": _npy, "npz": _npz,
    "parquet": _parquet,
}  # fmt: skip
