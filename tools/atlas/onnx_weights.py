"""Give the stored tensors of an ONNX export the names that they had in PyTorch.

Embeddings, biases and norms keep their names in an export. The matrix of a linear layer does not, because the exporter
stores its transpose under a number (`onnx::MatMul_123`). The node that uses it tells which layer it is: by its own name
(`/encoder/layer.0/attention/self/query/MatMul`), or, in old exports, by the named bias that is added to its result.

8-bit weights are dequantised: weight = (stored - zero point) * scale, with one scale a tensor or one a column. Where
the zero point is not a whole number, weight = stored * scale + zero point.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.atlas.onnx_file import Graph, Node

Array = np.ndarray[Any, Any]

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "DynamicQuantizeMatMul", "FusedMatMul")
_PASSED_ON = (
    "Cast",
    "Mul",
    "Reshape",
    "Transpose",
    "QuantizeLinear",
    "DequantizeLinear",
)  # between a product and the sum with its bias


def named_weights(graph: Graph) -> dict[str, Tensor]:
    """Return float32 tensors by PyTorch name. Linear weights are [out, in] as in nn.Linear."""
    tensors = _dequantised(graph)
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    named, used = _fused_attention(graph, tensors)
    passed = {
        node.outputs[0]: node.inputs[0].removesuffix("_quantized")
        for node in graph.nodes
        if node.op in ("DequantizeLinear", "Cast", "Identity") and node.inputs
    }
    for node in graph.nodes:
        source = node.inputs[1].removesuffix("_quantized") if len(node.inputs) > 1 else ""
        source = passed.get(source, source)
        if node.op not in _PRODUCTS or source not in tensors or tensors[source].ndim != 2:
            continue
        matrix = tensors[source]
        as_linear = matrix if node.op == "Gemm" and node.attributes.get("transB") else matrix.T
        name = source if source.endswith(".weight") else _layer_of(node, users, tensors) + ".weight"
        if name in named and not np.array_equal(named[name], as_linear):
            raise ValueError(f"two different matrices for {name}")
        named[name] = as_linear
        used.add(source)
    floats = {name: array for name, array in tensors.items() if name not in used and array.dtype.kind == "f"}
    kept = {
        name: array
        for name, array in floats.items()
        if "/" not in name and (array.size > 1 or name.endswith((".bias", ".weight")))
    }
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in {**kept, **named}.items()}


def _fused_attention(graph: Graph, tensors: dict[str, Array]) -> tuple[dict[str, Array], set[str]]:
    """Return the projections inside fused Attention nodes (onnxruntime), which stand in the order of the layers."""
    named: dict[str, Array] = {}
    fused = [node for node in graph.nodes if node.op == "Attention" and node.inputs[1] in tensors]
    for layer, node in enumerate(fused):
        matrices, biases = (np.split(tensors[name], 3, axis=-1) for name in node.inputs[1:3])
        for role, matrix, bias in zip(("query", "key", "value"), matrices, biases, strict=True):
            named[f"encoder.layer.{layer}.attention.self.{role}.weight"] = matrix.T
            named[f"encoder.layer.{layer}.attention.self.{role}.bias"] = bias
    return named, {name for node in fused for name in node.inputs[1:3]}


def _dequantised(graph: Graph) -> dict[str, Array]:
    axes = {node.inputs[0]: node.attributes.get("axis", 1) for node in graph.nodes if node.op == "DequantizeLinear"}
    result: dict[str, Array] = {}
    for name, array in graph.tensors.items():
        base = name.removesuffix("_quantized")
        if base == name or f"{base}_scale" not in graph.tensors:
            result.setdefault(name, array)
            continue
        scale = graph.tensors[f"{base}_scale"].astype(np.float32)
        stored_zero = graph.tensors.get(f"{base}_zero_point", np.zeros((), array.dtype))
        zero = stored_zero.astype(np.float32)
        if scale.size > 1:
            axis = axes.get(name, array.ndim - 1)
            shape = [-1 if number == axis else 1 for number in range(array.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        if stored_zero.dtype.kind == "f":  # the graph itself computes stored * scale + zero
            result[base] = array.astype(np.float32) * scale + zero
        else:
            result[base] = (array.astype(np.float32) - zero) * scale
    parts = re.compile(r"_(scale|zero_point)$")
    return {name: array for name, array in result.items() if not parts.search(name)}


def _layer_of(node: Node, users: dict[str, list[Node]], tensors: dict[str, Array]) -> str:
    """Return the dotted name of the linear layer that a product belongs to."""
    if "/" in node.name:
        place = re.sub(r"/(MatMul|Gemm)(_\d+)?(_quant)?$", "", node.name).strip("/")
        return place.replace("/", ".")
    waiting = list(node.outputs)
    while waiting:
        for user in users.get(waiting.pop(), []):
            biases = [name for name in user.inputs if name.endswith(".bias") and name in tensors]
            if user.op == "Add" and biases:
                return biases[0].removesuffix(".bias")
            if user.op in _PASSED_ON:
                waiting += user.outputs
    return node.inputs[1].removesuffix("_quantized")
