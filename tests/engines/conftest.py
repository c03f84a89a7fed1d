"""A dataset and a cache that no engine has made, and a Ray cluster of two nodes on this machine."""

import logging
import shutil
import tempfile

import pytest

from tests.engines.contract import ROOT, build_serially
from tests.engines.ray_tasks import GATE
from tests.gcs_server import GcsServer

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
# A dead node is noticed within a second or two.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Photographs, a dataset and a cache of them, made in this process; not to be changed."""
    return build_serially(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def server():
    with GcsServer(process=True, md5=False) as server:
        yield server


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="module")
def cluster(server, gates):
    """Two nodes with one core each, whose workers find the repository and the server. Its folder has a short path."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="tf", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with pytest.MonkeyPatch.context() as of_workers:
            of_workers.setenv("PYTHONPATH", str(ROOT))
            of_workers.setenv(GATE, str(gates))
            for key, value in server.environment().items():
                of_workers.setenv(key, value)
            cluster = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": QUICK})
            cluster.add_node(**NODE)
        yield cluster
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def connected(cluster):
    """This process, already connected to the cluster by the user."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    ray.shutdown()
