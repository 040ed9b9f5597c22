"""A head in a file: the head and the certificate survive a round trip and can be checked with numpy alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attnscope.commands.compile.export import load_head, save_head
from attnscope.core.errors import RefusalError
from attnscope.heads import head_file
from attnscope.heads.accuracy import DTYPES, Accuracy, Dtype, Factors
from attnscope.heads.certificate import certify
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.head import Head
from attnscope.heads.head_file import FORMAT
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded


def made(dtype: Dtype = "float32", *, n: int = 12, n_keys: int = 12, causal: bool = False) -> tuple[Head, Pattern]:
    """Keys on a basis and queries that look for a row's keys: exact at width n."""
    rng = np.random.default_rng(0)
    if n == n_keys:
        pattern = union_of_permutations(n, 2, 0, causal=causal)
    else:
        rows = np.repeat(np.arange(n), 2)
        columns = np.concatenate([rng.permutation(n_keys)[:2] for _ in range(n)])
        pattern = Pattern.of(rows, columns, rng.uniform(1, 4, 2 * n), n=n, n_keys=n_keys, normalise=True)
    queries = np.zeros((n, n_keys))
    queries[pattern.rows, pattern.columns] = 12.0
    return rounded(Factors(queries, np.eye(n_keys), {"draws": 3}), pattern, dtype, "basis"), pattern


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_head_is_read_back_equal(dtype: Dtype, tmp_path: Path) -> None:
    head, pattern = made(dtype, causal=True)
    certificate = certify(head, pattern, Accuracy(dtype=dtype))
    path = save_head(tmp_path / "head.safetensors", head, certificate.to_json(), pattern)
    again, stored = load_head(path)
    assert torch.equal(again.queries, head.queries)
    assert torch.equal(again.keys, head.keys)
    assert (again.causal, again.method, again.dtype, dict(again.notes)) == (True, "basis", dtype, {"draws": 3})
    assert stored == json.loads(json.dumps(certificate.to_json()))
    assert certify(again, pattern, Accuracy(dtype=dtype)) == certificate
    assert [p.name for p in tmp_path.iterdir()] == ["head.safetensors"]


def test_the_certificate_is_checked_in_ten_lines_of_numpy(tmp_path: Path) -> None:
    head, pattern = made()
    save_head(tmp_path / "head.safetensors", head, certify(head, pattern, Accuracy()).to_json(), pattern)

    with safe_open(tmp_path / "head.safetensors", "np") as f:
        certificate = json.loads(f.metadata()["certificate"])
        X, W_Q, W_K, i, j, a = (
            f.get_tensor(t) for t in ("X", "W_Q", "W_K", "pattern_rows", "pattern_columns", "pattern_weights")
        )
    logits = (X @ W_Q) @ (X @ W_K).T / np.sqrt(W_Q.shape[1], dtype=np.float32)
    A = np.exp(logits - logits.max(axis=1, keepdims=True))
    A /= A.sum(axis=1, keepdims=True)
    r = [np.log(A[i, j] / a)[i == row] for row in range(len(A))]
    ratio_error = max(np.exp(x.max() - x.min()) - 1 for x in r)
    leak = max(1 - A[row, j[i == row]].sum() for row in range(len(A)))

    assert ratio_error == pytest.approx(certificate["ratio_error"], abs=5e-6)
    assert leak == pytest.approx(certificate["leak"], abs=1e-6)
    assert certificate["max_logit"] == pytest.approx(np.abs(logits).max(), rel=1e-6)
    assert (len(X), W_Q.shape[1]) == (certificate["n"], certificate["d"])


def test_bfloat16_is_checked_through_torch(tmp_path: Path) -> None:
    """numpy has no bfloat16: the same lines after `.float()`, which is exact."""
    head, pattern = made("bfloat16")
    certificate = certify(head, pattern, Accuracy(dtype="bfloat16"))
    save_head(tmp_path / "head.safetensors", head, certificate.to_json(), pattern)
    t = {name: tensor.double().numpy() for name, tensor in load_file(tmp_path / "head.safetensors").items()}
    logits = (t["X"] @ t["W_Q"]) @ (t["X"] @ t["W_K"]).T / np.sqrt(t["W_Q"].shape[1])
    A = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    i, j = t["pattern_rows"].astype(int), t["pattern_columns"].astype(int)
    r = np.log(A[i, j] / t["pattern_weights"]).reshape(pattern.n, 2)
    assert np.exp(np.ptp(r, axis=1)).max() - 1 == pytest.approx(certificate.ratio_error, abs=1e-5)
    assert 1 - A[i, j].reshape(pattern.n, 2).sum(axis=1).min() == pytest.approx(certificate.leak, abs=1e-6)


def test_a_rectangular_head_has_queries_and_keys(tmp_path: Path) -> None:
    head, pattern = made(n=5, n_keys=9)
    path = save_head(tmp_path / "head.safetensors", head, certify(head, pattern, Accuracy()).to_json())
    assert set(load_file(path)) == {"queries", "keys"}
    again, _ = load_head(path)
    assert torch.equal(again.queries, head.queries)
    assert torch.equal(again.keys, head.keys)


def test_a_very_wide_head_is_stored_without_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_file, "WIDEST_PROJECTION", 8)
    head, _ = made()
    assert set(load_file(save_head(tmp_path / "head.safetensors", head, {}))) == {"queries", "keys"}


def test_other_projections_are_applied(tmp_path: Path) -> None:
    """A file may have other projections: queries are X W_Q for any W_Q."""
    head, _ = made()
    path = save_head(tmp_path / "head.safetensors", head, {})
    with safe_open(path, "pt") as f:
        metadata, tensors = f.metadata(), {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    metadata.pop("sha256")
    save_file({**tensors, "W_Q": tensors["W_Q"] * 2}, path, metadata)
    assert torch.equal(load_head(path)[0].queries, head.queries * 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_projections_are_rounded_as_torch_rounds(dtype: Dtype, tmp_path: Path) -> None:
    precision: torch.dtype = getattr(torch, dtype)
    draw = torch.Generator().manual_seed(0)
    X, W_Q, W_K = (torch.randn(shape, generator=draw).to(precision) for shape in ((4, 2), (2, 1), (2, 1)))
    W_Q[1], W_K[0] = 0, 0  # one product each: no order of summation
    tensors = {"X": X, "W_Q": W_Q, "W_K": W_K}
    metadata = {"format": FORMAT, "version": "1", "certificate": "{}", "causal": "false"}
    save_file(tensors, tmp_path / "h.safetensors", metadata)
    head, _ = load_head(tmp_path / "h.safetensors")
    assert torch.equal(head.queries, X[:, :1] * W_Q[0])
    assert torch.equal(head.keys, X[:, 1:] * W_K[1])


def test_overflow_survives_the_file(tmp_path: Path) -> None:
    head = Head(torch.tensor([[torch.inf], [1.0]]), torch.tensor([[1.0], [2.0]]), False, "broken")
    again, stored = load_head(save_head(tmp_path / "h.safetensors", head, {"leak": float("nan"), "reached": False}))
    assert torch.equal(again.queries, head.queries)
    assert torch.equal(again.keys, head.keys)
    assert stored == {"leak": None, "reached": False}


def test_a_failing_head_is_marked(tmp_path: Path) -> None:
    head, _ = made()
    with safe_open(save_head(tmp_path / "h.safetensors", head, {"reached": False}), "pt") as f:
        assert f.metadata()["reached"] == "false"
        assert f.metadata()["format"] == FORMAT


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _ = made()
    path = save_head(tmp_path / "head.safetensors", head, {"d": 1})
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnscope.core.files.os.fsync", full)
    with pytest.raises(RefusalError, match="No space left"):
        save_head(path, head, {"d": 2})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["head.safetensors"]


def test_refusals(tmp_path: Path) -> None:
    head, _ = made()
    good = save_head(tmp_path / "good.safetensors", head, {"d": 12}).read_bytes()

    def refused(says: str, content: bytes | None = None, **change: str | None) -> None:
        path = tmp_path / "bad.safetensors"
        if content is not None:
            path.write_bytes(content)
        else:
            with safe_open(tmp_path / "good.safetensors", "pt") as f:
                metadata, tensors = dict(f.metadata()), {t: f.get_tensor(t) for t in f.keys()}  # noqa: SIM118
            metadata.pop("sha256")
            for name, value in change.items():
                if value is None:
                    (metadata if name in metadata else tensors).pop(name)
                else:
                    metadata[name] = value
            save_file(tensors, path, metadata)
        with pytest.raises(RefusalError, match=says):
            load_head(path)

    refused("cut off", good[: len(good) // 2])
    refused("not a head", b"plain text")
    refused("holds tensors, but no head", format=None)
    refused("version 7", version="7")
    refused("holds no tensor W_K", W_K=None)
    refused("is damaged", certificate="{")
    refused("is damaged", certificate="[]")
    refused("is damaged", causal=None)
    save_file(
        {"queries": torch.ones(3, 2), "keys": torch.ones(3, 4)},
        tmp_path / "misfit.safetensors",
        {"format": FORMAT, "version": "1", "certificate": "{}", "causal": "false"},
    )
    with pytest.raises(RefusalError, match="do not fit"):
        load_head(tmp_path / "misfit.safetensors")
    save_file(
        {"queries": torch.ones(0, 2), "keys": torch.ones(3, 2)},
        tmp_path / "empty.safetensors",
        {"format": FORMAT, "version": "1", "certificate": "{}", "causal": "false"},
    )
    with pytest.raises(RefusalError, match="do not fit"):
        load_head(tmp_path / "empty.safetensors")
    with pytest.raises(RefusalError, match="There is no file"):
        load_head(tmp_path / "nowhere.safetensors")
    with pytest.raises(RefusalError, match="is a folder"):
        load_head(tmp_path)
    with pytest.raises(RefusalError, match="could not be written"):
        save_head(tmp_path / "no" / "such" / "place.safetensors", head, {})


def test_every_flipped_byte_of_tensors_and_metadata_is_refused(tmp_path: Path) -> None:
    """A head whose numbers changed would still show the certificate of the head that was compiled."""
    path = save_head(tmp_path / "head.safetensors", made()[0], {"reached": True})
    whole = path.read_bytes()
    begin = whole.index(b'"certificate"')
    data = 8 + int.from_bytes(whole[:8], "little")
    for place in (begin + 20, *range(data, len(whole), 7)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        with pytest.raises(RefusalError):
            load_head(path)
    path.write_bytes(whole)
    load_head(path)
