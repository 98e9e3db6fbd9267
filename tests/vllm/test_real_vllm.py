"""Real vLLM on a CPU, end to end: counts, routing and what is recorded; never how fast it is."""

import json
import math
import signal

import numpy as np
import pytest

from hetinfer.measurement.campaign import all_cells, load_campaign
from hetinfer.measurement.records import load_cells
from hetinfer.measurement.roofline import measure_roofline
from hetinfer.measurement.runner import measure_campaign
from hetinfer.measurement.series import Setup
from hetinfer.runs import load_runs, percentiles_s
from hetinfer.vllm_results import load_requests
from measuring import left_of, make_clone, small, start_command, vllm_python, wait_until

pytestmark = pytest.mark.vllm
PYTHON = vllm_python()
PROMPT_TOKENS, OUTPUT_TOKENS, PROMPTS, BLOCK_TOKENS = 150, 8, 12, 128
CAMPAIGN = f"""
title = "Small, with real vLLM"
rates_requests_per_s = [8, 6]
prompts = {PROMPTS}
seeds = [42]
dtype = "bfloat16"
server_flags = ["--load-format", "dummy", "--enforce-eager", "--max-model-len", "512"]
[[configurations]]
models = ["dummy/llama-128x2"]
gpu = "cpu"
counts = [1]
[dataset]
name = "random"
input_tokens = {PROMPT_TOKENS}
output_tokens = {OUTPUT_TOKENS}
[server_env]
HF_HUB_OFFLINE = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
[[variants]]
name = "cached"
[[variants]]
name = "fresh"
fresh_prompts = true
"""

if not PYTHON.is_file():
    pytest.skip("no vLLM here: run make vllm-cpu", allow_module_level=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A clone where the small campaign ran with real vLLM, once for all tests."""
    clone = make_clone(tmp_path_factory.mktemp("real"), CAMPAIGN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETINFER_ROOT", str(clone))
        campaign = load_campaign("small")
        setup = Setup(PYTHON, clone / "build" / "measure")
        outcome = measure_campaign(campaign, setup, say=print)
        assert outcome.failed == ()
        assert {cell.name for cell in all_cells(campaign)} == set(outcome.finished)
        yield clone


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    return make_clone(tmp_path, CAMPAIGN)


def test_every_request_got_exactly_its_tokens(measured):
    runs = load_runs(small(measured) / "runs.csv")
    assert len(runs) == 4
    assert {PROMPTS} == set(runs["completed"])
    assert {PROMPTS * PROMPT_TOKENS} == set(runs["input_tokens"])
    assert {PROMPTS * OUTPUT_TOKENS} == set(runs["output_tokens"])
    assert {("measured", "vllm", "cpu")} == set(
        runs[["evidence", "engine", "gpu"]].itertuples(index=False, name=None)
    )


def test_only_repeated_prompts_meet_a_warm_cache(measured):
    cells = load_cells(small(measured)).set_index("cell")
    hits = cells["prefix_cache_hit_tokens"]
    assert hits["llama-128x2_1xcpu_cached_6qps_r1"] == PROMPTS * BLOCK_TOKENS
    for cold in ("cached_8qps", "fresh_8qps", "fresh_6qps"):
        assert hits[f"llama-128x2_1xcpu_{cold}_r1"] == 0
    assert {PROMPTS * PROMPT_TOKENS} == set(cells["prefix_cache_query_tokens"])


def test_the_engines_configuration_is_what_it_resolved_to(measured):
    cells = load_cells(small(measured))
    assert {BLOCK_TOKENS} == set(cells["engine_block_tokens"])
    assert {True} == set(cells["engine_prefix_caching"])
    assert {"bfloat16"} == set(cells["engine_dtype"])
    assert (cells["engine_kv_blocks"] * BLOCK_TOKENS > 512).all()
    assert (cells["engine_max_seqs"] > 0).all()
    assert set(load_runs(small(measured) / "runs.csv")["engine_version"]) == set(
        cells["engine_version"]
    )


def test_the_last_request_leaves_within_one_percent_of_its_time(measured):
    cells = load_cells(small(measured))
    assert (cells["pacing_last_lag_frac"] < 0.01).any(), "not one: the schedule is not the client's"


def test_recomputed_summaries_equal_vllms(measured):
    for path in sorted((small(measured) / "runs").glob("*.json")):
        told, requests = json.loads(path.read_text()), load_requests(path)
        itl_s = np.concatenate([np.array(gaps) for gaps in told["itls"]])
        for name, values_s in (
            ("ttft", requests["ttft_s"].to_numpy()),
            ("tpot", requests["tpot_s"].to_numpy()),
            ("itl", itl_s),
        ):
            ours = percentiles_s(values_s)
            for statistic in ("mean", "std", "p50", "p90", "p95", "p99", "p100"):
                theirs_s = told[f"{statistic}_{name}_ms"] / 1000
                assert math.isclose(
                    theirs_s, getattr(ours, f"{statistic}_s"), rel_tol=1e-6, abs_tol=1e-12
                )


def test_no_process_is_left(measured):
    assert left_of(measured) == []


def test_energy_that_this_machine_cannot_tell_is_empty_with_a_reason(measured):
    cells = load_cells(small(measured))
    unknown = cells["energy_gpu_energy_j"].isna()
    assert (cells.loc[unknown, "energy_gpu_reason"] != "").all()
    assert not (cells["energy_gpu_energy_j"] == 0).any()


def test_a_server_that_refuses_a_flag_fails_every_cell_with_its_words(clone):
    path = clone / "data" / "campaigns" / "small.toml"
    path.write_text(CAMPAIGN.replace('"--enforce-eager"', '"--no-such-flag"'))
    outcome = measure_campaign(load_campaign("small"), Setup(PYTHON, clone / "b"), say=print)
    assert len(outcome.failed) == 4
    assert {"server-died-at-start: exit code 2"} == {reason for _, reason in outcome.failed}
    mark = next((small(clone) / "runs").glob("*.failed.txt")).read_text()
    assert "--no-such-flag" in mark
    assert left_of(clone) == []


def test_memory_that_is_not_there_is_named_so(clone):
    path = clone / "data" / "campaigns" / "small.toml"
    path.write_text(CAMPAIGN.replace('SPACE = "1"', 'SPACE = "4000"').replace("[8, 6]", "[8]"))
    outcome = measure_campaign(load_campaign("small"), Setup(PYTHON, clone / "b"), say=print)
    assert len(outcome.failed) == 2
    assert all("out-of-memory: exit code 1, ValueError:" in why for _, why in outcome.failed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_of_the_engine_outlives_its_runner(clone, number):
    runner = start_command(clone, PYTHON)
    wait_until(lambda: left_of(clone, "vllm.benchmarks"), 240)
    runner.send_signal(number)
    runner.communicate(timeout=60)
    wait_until(lambda: not left_of(clone))
    assert list((small(clone) / "runs").glob("*.json")) == []


def test_the_roofline_of_this_host_is_measured_with_torch():
    found = measure_roofline(PYTHON, 2)
    assert found.copy_bytes_per_s > 0
    assert min(found.matmul_flops_per_s.values()) > 0
    assert found.ranks == 2
    assert {"16384", "1048576", "67108864"} == set(found.all_reduce_s)
