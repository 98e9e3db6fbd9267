import fcntl
import json

import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.campaign import all_cells, find_cell, load_campaign
from hetinfer.measurement.processes import kept
from hetinfer.measurement.records import load_cells
from hetinfer.measurement.runner import measure_campaign, measure_cell, outcome_text
from hetinfer.measurement.series import Setup
from hetinfer.measurement.server import ServerSpec, await_health, free_port, server_command
from hetinfer.runs import load_measured, load_runs
from hetinfer.vllm_results import load_requests
from measuring import CAMPAIGN, left_of, make_clone, make_stand_in, small, with_defect

CELLS = 4


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    return make_stand_in(tmp_path_factory.mktemp("stand_in") / "venv")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    return make_clone(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, python):
    """A clone where the campaign has run, the outcome, and what was said; only to be read."""
    clone = make_clone(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETINFER_ROOT", str(clone))
        yield clone, *run_small(clone, python)


def run_small(clone, python, **options):
    said = []
    setup = Setup(python, clone / "build" / "measure")
    outcome = measure_campaign(load_campaign("small"), setup, say=said.append, **options)
    return outcome, said


def test_a_campaign_leaves_each_cell_once_and_its_tables(finished):
    clone, outcome, said = finished
    names = {cell.name for cell in all_cells(load_campaign("small"))}
    assert names == set(outcome.finished)
    assert len(said) - 2 == CELLS, "a line a cell, and one for each of two series"
    assert said[-1].startswith("[4/4]")
    runs = load_measured()
    assert {f"{name}.json" for name in names} == set(runs["source_file"])
    assert {("measured", "0.0.0", "random-20-4")} == set(
        runs[["evidence", "engine_version", "dataset"]].itertuples(index=False, name=None)
    )
    assert {("one", 1), ("two", 1)} == set(zip(runs["variant"], runs["replicate"], strict=True))
    assert left_of(clone) == []


def test_a_runs_file_tells_how_it_came_about_and_reads_as_vllms(finished):
    clone, _, _ = finished
    path = small(clone) / "runs" / "llama-64x1_1xcpu_two_20qps_r1.json"
    own = json.loads(path.read_text())["measurement"]
    assert (own["replicate"], own["seed"], own["position"], own["served_before"]) == (1, 42, 1, 1)
    assert own["engine"]["prefix_caching"] is True
    assert own["energy"]["gpu_energy_j"] is None
    assert own["energy"]["gpu_reason"] != ""
    assert own["prefix_cache_hit_tokens"] == 0.0
    assert str(clone) not in path.read_text()
    assert "generated_texts" not in json.loads(path.read_text())
    assert len(load_requests(path)) == 6
    cells = load_cells(small(clone))
    assert len(cells.merge(load_runs(small(clone) / "runs.csv"), on="source_file")) == CELLS
    machines = json.loads((small(clone) / "manifest.json").read_text())
    assert len(machines[0]["cells"]) == CELLS


def test_a_finished_campaign_runs_nothing_again(finished, python):
    clone, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (small(clone) / "runs").iterdir()}
    _, said = run_small(clone, python)
    assert said == []
    assert before == {path: path.stat().st_mtime_ns for path in (small(clone) / "runs").iterdir()}


@pytest.mark.parametrize(
    ("defect", "reason", "failed"),
    [
        ("dies-at-start", "server-died-at-start: exit code 1", CELLS),
        ("out-of-memory", "out-of-memory: exit code 1", CELLS),
        ("fails-half", "requests-failed: 3 of 6 requests failed", CELLS),
        ("dies-in-load", "server-died: exit code 1", CELLS // 2),
    ],
)
def test_a_failed_cell_is_marked_with_the_reason_and_the_logs_end(
    clone, python, defect, reason, failed
):
    with_defect(clone, defect)
    outcome, _ = run_small(clone, python)
    assert failed == len(outcome.failed)
    assert CELLS - failed == len(outcome.finished)
    assert all(why.startswith(reason) for _, why in outcome.failed)
    mark = small(clone) / "runs" / f"{outcome.failed[0][0]}.failed.txt"
    end = mark.read_text().partition("End of the log:\n")[2]
    assert any(word in end for word in ("unrecognized", "out of memory", "failed", "dead"))
    assert f"failed: {outcome.failed[0][0]}: {reason}" in outcome_text(
        load_campaign("small"), outcome
    )
    assert left_of(clone) == []


def test_failed_cells_are_left_alone_until_they_are_to_be_tried_again(clone, python):
    with_defect(clone, "dies-at-start")
    run_small(clone, python)
    with_defect(clone, "")
    outcome, said = run_small(clone, python)
    assert (len(outcome.failed), said) == (CELLS, [])
    outcome, _ = run_small(clone, python, retry_failed=True)
    assert (len(outcome.failed), len(outcome.finished)) == (0, CELLS)


def test_a_lost_server_is_replaced_and_its_cache_filled_again(clone, python):
    run_small(clone, python)
    lost = small(clone) / "runs" / "llama-64x1_1xcpu_one_20qps_r1.json"
    lost.unlink()
    outcome, said = run_small(clone, python)
    assert len(outcome.finished) == CELLS
    assert said[-1] == "[4/4] llama-64x1_1xcpu_one_20qps_r1 done; about 0 s left"
    assert json.loads(lost.read_text())["measurement"]["served_before"] == 0


def test_a_server_that_dies_after_its_last_request_costs_no_run(clone, python):
    with_defect(clone, "dies-at-end")
    path = clone / "data" / "campaigns" / "small.toml"
    fresh = 'name = "two"\nfresh_prompts = true'
    path.write_text(path.read_text().replace('[[variants]]\nname = "one"\n', ""))
    path.write_text(path.read_text().replace('name = "two"', fresh))
    outcome, _ = run_small(clone, python)
    assert (2, 2) == (outcome.total, len(outcome.finished))
    assert set(load_cells(small(clone))["served_before"]) == {0}


def test_an_endpoint_that_runs_already_is_measured_and_left_running(clone, python):
    port = free_port(0)
    command = server_command(ServerSpec(python, "any", "any"), port)
    with kept(command, log=clone / "endpoint.log") as endpoint:
        await_health(f"http://127.0.0.1:{port}", endpoint, 20)
        setup = Setup(python, clone / "build", base_url=f"http://127.0.0.1:{port}/v1")
        outcome = measure_campaign(load_campaign("small"), setup, say=print)
        assert len(outcome.finished) == CELLS
        assert not endpoint.has_ended()
    own = json.loads(next((small(clone) / "runs").iterdir()).read_text())["measurement"]
    assert own["server_command"] == []
    assert own["engine"]["kv_blocks"] == 8


def test_an_endpoint_serves_one_configuration_only(clone, python):
    path = clone / "data" / "campaigns" / "small.toml"
    path.write_text(CAMPAIGN.replace("[1]", "[1, 2]"))
    with pytest.raises(InputError, match="a campaign of 2 configurations"):
        measure_campaign(
            load_campaign("small"), Setup(python, clone, base_url="http://127.0.0.1:1"), say=print
        )


def test_one_cell_alone_is_measured_once(clone, python):
    campaign, setup = load_campaign("small"), Setup(python, clone / "build")
    cell = find_cell(campaign, "llama-64x1_1xcpu_two_40qps_r1")
    path = measure_cell(campaign, cell, setup)
    assert path == measure_cell(campaign, cell, setup)
    assert [p.name for p in path.parent.iterdir()] == ["llama-64x1_1xcpu_two_40qps_r1.json"]


def test_one_cell_that_fails_is_an_error_with_the_reason(clone, python):
    with_defect(clone, "fails-half")
    campaign = load_campaign("small")
    with pytest.raises(InputError, match="3 of 6 requests failed"):
        measure_cell(campaign, find_cell(campaign, ""), Setup(python, clone / "build"))


def test_a_second_runner_is_refused_and_the_first_goes_on(clone, python):
    small(clone).mkdir(parents=True)
    with (small(clone) / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="campaign is running"):
            run_small(clone, python)
    outcome, _ = run_small(clone, python)
    assert len(outcome.finished) == CELLS


def test_nothing_starts_where_vllm_is_missing(clone):
    with pytest.raises(InputError, match="vLLM is not installed"):
        run_small(clone, clone / "nothing" / "bin" / "python")
    assert not small(clone).exists()


def test_gpus_that_this_machine_lacks_are_skipped_and_none_left_is_an_error(clone, python):
    path = clone / "data" / "campaigns" / "small.toml"
    gpus = '[[configurations]]\nmodels = ["microsoft/phi-4"]\ngpu = "h100-pcie"\ncounts = [1]\n'
    path.write_text(CAMPAIGN.replace("[dataset]", f"{gpus}[dataset]"))
    outcome, _ = run_small(clone, python)
    assert CELLS == len(outcome.finished) == len(outcome.skipped)
    assert "needs 1 x h100-pcie, this machine has 0" in outcome.skipped[0][1]
    path.write_text(CAMPAIGN.replace('"cpu"', '"rtx-4090"').replace("dummy/llama-64x1", "phi-4"))
    with pytest.raises(InputError, match="nothing to run here"):
        run_small(clone, python)


def test_every_value_of_cells_that_is_missing_is_empty(finished):
    clone, _, _ = finished
    cells = pd.read_csv(small(clone) / "cells.csv")
    assert cells["energy_gpu_energy_j"].isna().all()
    assert cells["pacing_lag_max_s"].notna().all()
