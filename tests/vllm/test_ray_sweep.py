"""Sweeps of the simulator on a local Ray cluster of two nodes."""

import numpy as np
import pytest

from hetinfer.simulation.capacity import Load, simulate_load
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.step_time import StepTime
from hetinfer.simulation.sweep import sweep
from hetinfer.workload import Lengths

ray = pytest.importorskip("ray", reason="Ray is not installed: run make cluster")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
LENGTHS = Lengths(np.array([50, 200, 800]), np.array([20, 100, 300]))
ENGINE = Engine(100_000, 256, 2048, StepTime(0.003, 0.015, 8e-5))


@pytest.fixture
def cluster():
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_sweep_on_a_cluster_gives_the_numbers_of_one_process(cluster):
    def ttft_p99_s(rate):  # within the test, so that it travels to the nodes whole
        return simulate_load(ENGINE, Load(LENGTHS, requests=500), rate).ttft_p99_s

    rates = [4.0, 8.0, 6.0]
    assert sweep(ttft_p99_s, rates, backend="ray") == [ttft_p99_s(rate) for rate in rates]
