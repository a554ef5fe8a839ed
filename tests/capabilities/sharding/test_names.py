"""A sharded program is called by its model's file, whatever the graph in it is called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith
from tilesmith.capabilities.sharding.cores.execution import parts_of
from tilesmith.capabilities.sharding.partitioning.program import ProgramSegment
from tilesmith.search_space.support.errors import ModelError

GRAPH = "main_graph"


def test_a_sharded_program_has_the_files_name(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((8, 32), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("x", (32, 8)), ("y", (32, 32))))  # fmt: skip
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], GRAPH, [x], [y],
                              [weight])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(tmp_path / "product.onnx"))
    sharded = tilesmith.shard(tmp_path / "product.onnx", mesh="trn1.32xlarge", effort=2.0)
    assert "product.onnx" in repr(sharded) and GRAPH not in repr(sharded)
    assert sharded.to_json()["model"] == "product.onnx"
    graphs = [item.graph for item in sharded.program.order if isinstance(item, ProgramSegment)]
    assert graphs and all(graph.title.startswith("product.onnx") for graph in graphs)
    with pytest.raises(ModelError, match=r"'x' of 'product\.onnx' is missing"):
        parts_of(sharded.program, {})
