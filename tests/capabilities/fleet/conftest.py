"""A cluster of Ray nodes, each with its processes, on this machine."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilesmith.capabilities.fleet.settings import WorkerPlace, set_up_for

sys.path.insert(0, str(Path(__file__).parent))

_SMALL = {"object_store_memory": 80 << 20, "include_log_monitor": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` with a head of one core; `ray` is this cluster."""
    pytest.importorskip("ray", reason="Ray is not installed")
    set_up_for(WorkerPlace(1))
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="tilesmith-ray-")
    # A cluster notes its address beside Ray's own folder, which only `ray.init` would make.
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join(e or str(Path.cwd()) for e in sys.path))
    head = {"num_cpus": 1, "temp_dir": folder, "include_dashboard": False, **_SMALL}
    made = Cluster(initialize_head=True, head_node_args=head)
    patch.setenv("RAY_ADDRESS", made.address)
    yield made
    patch.undo()
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
