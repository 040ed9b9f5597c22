"""Read the nodes and the stored tensors of an ONNX file without the package onnx.

    graph = read(path)
    graph.tensors["embeddings.word_embeddings.weight"]     numpy array
    graph.nodes[0].op, .name, .inputs, .outputs, .attributes

An ONNX file is a protobuf message. Only the fields of the table below are read; the others are skipped. Subgraphs (the
branches of an If, as in a merged decoder) are read as part of the graph.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# ModelProto.graph 7; GraphProto.node 1, initializer 5; NodeProto.input 1, output 2, name 3, op_type 4, attribute 5;
# AttributeProto.name 1, f 2, i 3, s 4, t 5, g 6, ints 8; TensorProto.dims 1, data_type 2, float_data 4, int32_data 5,
# int64_data 7, name 8, raw_data 9, external_data 13 (pairs of texts: location, offset, length).
_TYPES: dict[int, Any] = {
    **{1: np.float32, 2: np.uint8, 3: np.int8, 5: np.int16, 6: np.int32, 7: np.int64},
    **{9: np.bool_, 10: np.float16, 11: np.float64},
}


@dataclass
class Node:
    """One operation."""

    op: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    """Nodes in order, and stored tensors by name (initialisers and the values of Constant nodes)."""

    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    folder: Path = Path()


def read(path: Path) -> Graph:
    """Return the graph of an ONNX file."""
    graph = Graph(folder=path.parent)
    for number, value in _fields(memoryview(path.read_bytes())):
        if number == 7:
            _read_graph(value, graph)
    return graph


def _read_graph(message: memoryview, graph: Graph) -> None:
    for number, value in _fields(message):
        if number == 1:
            node = _node(value, graph)
            graph.nodes.append(node)
            if node.op == "Constant" and "value" in node.attributes:
                graph.tensors[node.outputs[0]] = node.attributes["value"]
        elif number == 5:
            name, tensor = _tensor(value, graph.folder)
            graph.tensors[name] = tensor


def _node(message: memoryview, graph: Graph) -> Node:
    node = Node()
    for number, value in _fields(message):
        if number == 1:
            node.inputs.append(_text(value))
        elif number == 2:
            node.outputs.append(_text(value))
        elif number == 3:
            node.name = _text(value)
        elif number == 4:
            node.op = _text(value)
        elif number == 5:
            _attribute(value, node, graph)
    return node


def _attribute(message: memoryview, node: Node, graph: Graph) -> None:
    name, content, integers = "", None, []
    for number, value in _fields(message):
        if number == 1:
            name = _text(value)
        elif number == 2:
            content = struct.unpack("<f", value)[0]
        elif number == 3:
            content = value
        elif number == 4:
            content = bytes(value)
        elif number == 5:
            content = _tensor(value, graph.folder)[1]
        elif number == 6:
            _read_graph(value, graph)
        elif number == 8:
            integers += list(_integers(value))
    node.attributes[name] = integers or content


def _tensor(message: memoryview, folder: Path) -> tuple[str, np.ndarray[Any, Any]]:
    name, shape, kind, stored, outside = "", [], 1, None, {}
    for number, value in _fields(message):
        if number == 1:
            shape += list(_integers(value))
        elif number == 2:
            kind = value
        elif number == 4:
            stored = np.frombuffer(value, np.float32)
        elif number in (5, 7):
            signed = [entry - (1 << 64) if entry >> 63 else entry for entry in _integers(value)]
            stored = np.array(signed).astype(_TYPES[kind] if kind != 10 else np.uint16)
            stored = stored.view(np.float16) if kind == 10 else stored
        elif number == 8:
            name = _text(value)
        elif number == 9:
            stored = np.frombuffer(value, _TYPES[kind]) if kind in _TYPES else None
        elif number == 13:
            key, content = (_text(part) for _, part in _fields(value))
            outside[key] = content
    if outside:
        with (folder / Path(outside["location"]).name).open("rb") as data:
            data.seek(int(outside.get("offset", 0)))
            stored = np.frombuffer(data.read(int(outside["length"])), _TYPES[kind])
    if stored is None:
        stored = np.zeros(0, _TYPES.get(kind, np.float32))
        shape = [0]
    return name, stored.reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield field numbers and values: an int for varints, a memoryview for everything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size


def _integers(value: Any) -> Iterator[int]:
    """Yield the integers of a repeated field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    result, shift = 0, 0
    while True:
        byte = message[at]
        result |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return result, at


def _text(value: memoryview) -> str:
    return bytes(value).decode()
