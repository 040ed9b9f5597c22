"""Run an ONNX file on stored inputs, without rounding activations. Needs onnx and onnxruntime only.

    python run_export.py model.onnx inputs.npz outputs.npz

8-bit exports also round activations, at every product. The converted models keep the 8-bit weights but compute in
float32, so the rounding is taken out of the graph before it runs: then both compute the same, and must agree.

    DynamicQuantizeLinear(x) -> x, scale 1        QuantizeLinear, DequantizeLinear of an activation -> x
    MatMulInteger(x, stored) -> MatMul(x, stored - zero point), ConvInteger likewise
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def unrounded(graph: onnx.GraphProto, outer: dict[str, onnx.TensorProto]) -> None:
    """Take the rounding of activations out of a graph and of its branches, which see tensors from outside."""
    stored = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
    nodes, quantised = [], {}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                unrounded(attribute.g, stored)
        if node.op_type == "DynamicQuantizeLinear":
            nodes.append(helper.make_node("Identity", node.input[:1], node.output[:1]))
            one = numpy_helper.from_array(np.float32(1))
            nodes.append(helper.make_node("Constant", [], node.output[1:2], value=one))
        elif node.op_type == "MatMulInteger" and node.input[1] not in stored:  # a product of two activations
            nodes.append(helper.make_node("MatMul", node.input[:2], node.output, node.name))
        elif node.op_type in ("MatMulInteger", "ConvInteger"):
            matrix = numpy_helper.to_array(stored[node.input[1]]).astype(np.float32)
            if len(node.input) > 3 and node.input[3] in stored:
                zero = numpy_helper.to_array(stored[node.input[3]]).astype(np.float32)
                channels = [-1] + [1] * (matrix.ndim - 1) if node.op_type == "ConvInteger" and zero.ndim else zero.shape
                matrix = matrix - zero.reshape(channels)
            name = f"{node.output[0]}_unrounded"
            graph.initializer.append(numpy_helper.from_array(matrix, name))
            kind = node.op_type.removesuffix("Integer")
            product = helper.make_node(kind, [node.input[0], name], node.output, node.name)
            product.attribute.extend(node.attribute)
            nodes.append(product)
        elif node.op_type == "QuantizeLinear":
            quantised[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in quantised:
            nodes.append(helper.make_node("Identity", [quantised[node.input[0]]], node.output))
        else:
            nodes.append(node)
    del graph.node[:], graph.value_info[:]  # stored types of values are those of the rounded graph
    graph.node.extend(nodes)


def main(model: str, inputs: str, outputs: str) -> None:
    loaded = onnx.load(model)
    unrounded(loaded.graph, {})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(loaded.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = dict(np.load(inputs))
    length = given["input_ids"].shape[1] if "input_ids" in given else 0
    feed = {}
    for slot in session.get_inputs():
        if slot.name in given:
            feed[slot.name] = given[slot.name]
        elif slot.name == "input_image":
            feed[slot.name] = given["pixel_values"]
        elif slot.name == "attention_mask":
            feed[slot.name] = np.ones((1, length), np.int64)
        elif slot.name == "token_type_ids":
            feed[slot.name] = np.zeros((1, length), np.int64)
        elif slot.name == "position_ids":
            feed[slot.name] = np.arange(length)[None]
        elif slot.name.startswith("past_key_values"):  # an empty cache: batch and heads, no token, width
            shape = [size if isinstance(size, int) else 1 for size in slot.shape]
            shape[2] = 0
            feed[slot.name] = np.zeros(shape, np.float32)
        elif slot.name == "use_cache_branch":
            feed[slot.name] = np.zeros(1, bool)
        else:
            raise SystemExit(f"{model} wants an input {slot.name} of shape {slot.shape}.")
        fixed = slot.shape[1] if len(slot.shape) == 2 else None
        if isinstance(fixed, int) and slot.name != "input_values":  # an export of one length: pad to it
            feed[slot.name] = np.pad(feed[slot.name], ((0, 0), (0, fixed - length)))
    names = [slot.name for slot in session.get_outputs()]
    np.savez(outputs, **dict(zip(names, session.run(names, feed), strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
