"""What the routers are told for a plan made by hand."""

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass
from hetinfer.fleet.gateway import (
    gateway_of,
    gateway_text,
    litellm_config,
    most_in_flight,
    save_gateway,
    start_script,
)
from hetinfer.fleet.offers import Capacities, Offer
from hetinfer.fleet.planning import Aim, Demand, Plan
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Lengths

LENGTHS = Lengths(np.array([64]), np.array([16]))
CHAT, BATCH = ServiceClass("chat", LENGTHS, 0.5), ServiceClass("batch", LENGTHS, 60.0)
ENGINE = Engine(60_000, 256, 2048, StepTime(0.003, 0.008, 4e-5))
H100 = Offer("h100-pcie", 1, ENGINE, 2.0, 600.0, 200.0, 30.0, 242.0)
CONSUMER = Offer("rtx-4090", 2, ENGINE, 0.5, 500.0, 60.0, 20.0, 242.0)
MODEL = "microsoft/phi-4"
# chat fits only the H100 (10/s within its targets); batch fits both (20/s and 8/s)
CAPACITIES = Capacities(
    np.array([[10.0, 20.0], [0.0, 8.0]]),
    np.array([[12.0, 22.0], [3.0, 9.0]]),
    np.array([[15.0, 48.0], [0.0, 24.0]]),
)


def plan_of(counts=(1, 2), spread=((5.0, 2.0), (0.0, 8.0))):
    """Chat 5/s on one H100, batch 2/s there and 8/s on two pairs of 4090s."""
    demand = Demand((CHAT, BATCH), np.array([[5.0], [10.0]]))
    rates = np.array(spread)[:, :, np.newaxis]
    return Plan((H100, CONSUMER), demand, counts, rates, 0.0, 0.0, Aim())


def lanes_of(gateway, service):
    return [(lane.backend.name, lane.most_in_flight) for lane in gateway.lanes[service]]


def test_lanes_of_a_plan_done_by_hand():
    """15 = 9 + 2 x 3: half of it is 4.5 + 2 sqrt 4.5 = 8.7; 24 = 16 + 8: half of two is 16 + 8."""
    gateway = gateway_of(plan_of(), CAPACITIES, MODEL)
    chat = [("h100-pcie-x1", 9), ("h100-pcie-x1", None), ("rtx-4090-x2", None)]
    assert chat == lanes_of(gateway, "chat")
    # 48 = 36 + 12: a tenth of it is 3.6 + 2 sqrt 3.6 = 7.4
    batch = [
        ("rtx-4090-x2", 24),
        ("h100-pcie-x1", 7),
        ("rtx-4090-x2", None),
        ("h100-pcie-x1", None),
    ]
    assert batch == lanes_of(gateway, "batch")
    assert ["h100-pcie-x1", "rtx-4090-x2"] == [backend.name for backend in gateway.backends]


def test_a_configuration_that_the_plan_spares_takes_overflow_up_to_all_it_can():
    gateway = gateway_of(plan_of(spread=((5.0, 0.0), (0.0, 10.0))), CAPACITIES, MODEL)
    assert ("h100-pcie-x1", 48) == lanes_of(gateway, "batch")[1]


@given(st.floats(1, 500), st.integers(1, 50))
def test_a_whole_server_has_in_flight_what_it_can_and_more_servers_less_swing_each(one, servers):
    assert most_in_flight(one, 1, 1.0) == max(1, int(np.floor(one + 0.5)))
    assert most_in_flight(one, servers, 1.0) <= max(servers * (one + 1), 1)
    assert most_in_flight(one, servers, 0.0) == most_in_flight(one, servers, 1.0)
    assert most_in_flight(one, servers, 0.5) <= most_in_flight(one, servers, 1.0)


def test_each_class_is_asked_by_name_or_by_tag_and_falls_from_lane_to_lane():
    config = yaml.safe_load(litellm_config(gateway_of(plan_of(), CAPACITIES, MODEL)))
    deployments = config["model_list"]
    by_name = [d["litellm_params"] for d in deployments if d["model_name"] == "batch"]
    by_tag = [
        d["litellm_params"]
        for d in deployments
        if d["model_name"] == MODEL and "batch" in d["litellm_params"]["tags"]
    ]
    for way in (by_name, by_tag):
        assert [1, 2, 3, 4] == [params["order"] for params in way]
        assert [24, 7, None, None] == [params.get("max_parallel_requests") for params in way]
        assert {f"hosted_vllm/{MODEL}"} == {params["model"] for params in way}
    assert "tags" not in by_name[0]
    assert 4 == config["router_settings"]["max_fallbacks"]
    assert ["chat", "default"] == next(
        d["litellm_params"]["tags"] for d in deployments if d["model_name"] == MODEL
    )
    assert len({d["model_info"]["id"] for d in deployments}) == len(deployments)


def test_keys_and_addresses_are_named_never_written():
    gateway = gateway_of(plan_of(), CAPACITIES, MODEL)
    text = litellm_config(gateway)
    assert "://" not in text
    config = yaml.safe_load(text)
    assert "os.environ/LITELLM_MASTER_KEY" == config["general_settings"]["master_key"]
    keys = {d["litellm_params"]["api_key"] for d in config["model_list"]}
    assert {"os.environ/HETINFER_SERVER_KEY"} == keys
    bases = {d["litellm_params"]["api_base"] for d in config["model_list"]}
    assert {"os.environ/HETINFER_H100_PCIE_X1_API", "os.environ/HETINFER_RTX_4090_X2_API"} == bases


def test_only_a_backend_of_several_servers_gets_a_router_of_its_own():
    script = start_script(gateway_of(plan_of(), CAPACITIES, MODEL))
    assert 1 == script.count("vllm-router --host 127.0.0.1")
    assert "--worker-urls $HETINFER_RTX_4090_X2_URLS &" in script
    assert "export HETINFER_H100_PCIE_X1_API=$HETINFER_H100_PCIE_X1_URLS/v1" in script


def test_the_script_starts_what_it_says_and_names_what_is_missing(tmp_path):
    """With stand-ins for the two programs that write down how they were called."""
    _, script = save_gateway(gateway_of(plan_of(), CAPACITIES, MODEL), tmp_path)
    for name in ("litellm", "vllm-router"):
        program = tmp_path / name
        program.write_text(
            "#!/bin/sh\n"
            f'echo "{name} $@ $HETINFER_RTX_4090_X2_API" >> {tmp_path}/calls; sleep 0.5\n'
        )
        program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GATEWAY_PORT": "4100"}
    bare = subprocess.run(["bash", script], env=env, capture_output=True, text=True)
    assert bare.returncode != 0
    assert "LITELLM_MASTER_KEY: set it to the key that clients are to send" in bare.stderr
    env |= {
        "LITELLM_MASTER_KEY": "sk-1",
        "HETINFER_H100_PCIE_X1_URLS": "http://10.0.0.1:8000",
        "HETINFER_RTX_4090_X2_URLS": "http://10.0.0.2:8000 http://10.0.0.3:8000",
    }
    subprocess.run(["bash", script], env=env, check=True, capture_output=True)
    calls = sorted((tmp_path / "calls").read_text().splitlines())
    assert [
        "litellm --config litellm.yaml --host 127.0.0.1 --port 4100 http://127.0.0.1:4102/v1",
        "vllm-router --host 127.0.0.1 --port 4102 --policy power_of_two --prometheus-port 4202 "
        "--health-check-interval-secs 10 --cb-failure-threshold 2 "
        "--worker-startup-check-interval 2 "
        "--worker-urls http://10.0.0.2:8000 http://10.0.0.3:8000 ",
    ] == calls


def test_what_people_read_names_limits_and_variables():
    text = gateway_text(gateway_of(plan_of(), CAPACITIES, MODEL))
    assert "chat: 1x H100 (up to 9), then 1x H100 (any number), then 2x 4090 (any number)" in text
    assert "set LITELLM_MASTER_KEY, HETINFER_H100_PCIE_X1_URLS, HETINFER_RTX_4090_X2_URLS" in text


def test_a_plan_without_servers_or_with_a_class_served_by_none_makes_no_gateway():
    with pytest.raises(InputError, match="empty plan"):
        gateway_of(plan_of(counts=(0, 0)), CAPACITIES, MODEL)
    with pytest.raises(InputError, match="class chat"):
        gateway_of(replace(plan_of(counts=(0, 2))), CAPACITIES, MODEL)
