import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.runs import (
    CELL,
    LATENCIES,
    RUN_COLUMNS,
    Latency,
    Run,
    add_measured,
    average_replicates,
    campaign_path,
    check_run,
    find_duplicate,
    frame,
    load_measured,
    load_recorded,
    load_runs,
    number_replicates,
    percentiles_s,
    runs_of,
    save_runs,
    target_path,
)

TTFT = Latency(0.2, 0.08, 0.2, 0.28, 0.29, 0.298, 0.3)
RUN = Run(
    run_id="",
    evidence="measured",
    started="2025-06-10T15:11:48",
    engine="vllm",
    engine_version="0.10",
    model="org/model-7b",
    gpu="rtx-4090",
    gpu_count=2,
    dataset="sharegpt",
    prompts=4,
    rate_requests_per_s=16.0,
    burstiness=1.0,
    max_concurrency=math.inf,
    replicate=0,
    duration_s=2.0,
    completed=3,
    input_tokens=60,
    output_tokens=8,
    throughput_requests_per_s=1.5,
    goodput_requests_per_s=1.0,
    output_throughput_tokens_per_s=4.0,
    throughput_tokens_per_s=34.0,
    ttft=TTFT,
    tpot=Latency(0.02),
    itl=Latency(),
    source_file="run.json",
)

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["C"]))
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
COUNT = st.integers(-(2**53), 2**53)
LATENCY = st.builds(Latency, *[NUMBER] * 7)
ANY_RUN = st.builds(
    Run,
    **{
        name: {str: TEXT, int: COUNT, float: NUMBER, Latency: LATENCY}[field.type]
        for name, field in Run.__dataclass_fields__.items()
    },
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    return tmp_path


# The recorded study


def test_130_runs_are_recorded():
    assert 130 == len(load_recorded())


def test_recorded_columns_are_those_of_every_frame():
    assert RUN_COLUMNS == list(load_recorded().columns)


def test_every_recorded_run_agrees_with_itself():
    for run in runs_of(load_recorded()):
        assert run is check_run(run)


def test_recorded_latencies_are_in_seconds():
    first = load_recorded().iloc[0]
    assert (21.187145864823833 / 1000, 11.666306003462523 / 1000) == (
        first["ttft_mean_s"],
        first["itl_p100_s"],
    )


def test_recorded_names_and_replicates_follow_from_cell_and_start():
    recorded = load_recorded()
    blank = runs_of(recorded.assign(run_id="", replicate=0))
    assert frame(number_replicates(blank)).equals(recorded)


# Frame, table and back


def test_frame_and_runs_are_inverse():
    runs = [RUN, replace(RUN, itl=Latency(*map(float, range(7))))]
    assert repr(runs) == repr(runs_of(frame(runs)))


def test_a_frame_with_further_columns_gives_the_same_runs():
    assert repr([RUN]) == repr(runs_of(frame([RUN]).assign(price_usd_per_h=1.0)))


def test_a_frame_of_no_runs_is_an_error():
    with pytest.raises(InputError, match="no runs"):
        frame([])


@settings(max_examples=40)
@given(st.lists(ANY_RUN, min_size=1, max_size=3))
def test_a_saved_frame_comes_back_to_the_last_digit(tmp_path_factory, runs):
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    table = frame(runs)
    save_runs(table, path)
    pd.testing.assert_frame_equal(table, load_runs(path), check_exact=True)


def test_a_table_without_a_column_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    frame([RUN]).drop(columns="itl_p95_s").to_csv(path, index=False)
    with pytest.raises(InputError, match="no column itl_p95_s"):
        load_runs(path)


# Replicates


def test_replicates_are_averaged_and_counted():
    runs = [replace(RUN, replicate=n, duration_s=duration) for n, duration in ((1, 2.0), (2, 3.0))]
    (row,) = average_replicates(frame(runs)).to_dict("records")
    assert (2.5, 2, "org/model-7b") == (row["duration_s"], row["replicate"], row["model"])


def test_averaging_keeps_columns_and_cells():
    averaged = average_replicates(load_recorded())
    assert (120, RUN_COLUMNS) == (len(averaged), list(averaged.columns))
    assert not averaged.duplicated(CELL).any()


def test_runs_with_another_limit_on_concurrency_are_another_cell():
    runs = [replace(RUN, max_concurrency=limit) for limit in (8.0, math.inf)]
    assert 2 == len(average_replicates(frame(runs)))


def test_replicates_are_numbered_within_a_cell_by_start():
    starts = ["2025-06-12", "2025-06-10", "2025-06-11"]
    numbered = number_replicates([replace(RUN, started=start) for start in starts])
    assert [3, 1, 2] == [run.replicate for run in numbered]
    assert "model-7b/2xrtx-4090/16qps/r3" == numbered[0].run_id


def test_cells_of_one_name_have_replicates_of_their_own_but_no_common_name():
    runs = [replace(RUN, dataset=dataset) for dataset in ("sharegpt", "sonnet")]
    numbered = number_replicates(runs)
    assert [1, 1] == [run.replicate for run in numbered]
    assert ["r1", "r2"] == [run.run_id.rsplit("/")[-1] for run in numbered]


def test_numbering_goes_on_after_earlier_runs():
    earlier = number_replicates([RUN, replace(RUN, started="2025-06-11")])
    (later,) = number_replicates([replace(RUN, started="2025-01-01")], after=earlier[1:])
    assert (3, "model-7b/2xrtx-4090/16qps/r3") == (later.replicate, later.run_id)


# Duplicates


def test_a_run_read_twice_is_found_whatever_its_file():
    twin = replace(RUN, source_file="copy.json", replicate=2)
    assert (RUN, twin) == find_duplicate([RUN, twin])


@pytest.mark.parametrize(
    "change", [{"started": "2025"}, {"duration_s": 2.0000000001}, {"gpu_count": 4}]
)
def test_another_start_duration_or_cell_is_another_run(change):
    assert find_duplicate([RUN, replace(RUN, **change)]) is None


# Campaigns


def test_a_campaign_holds_its_runs(root):
    path = root / "data" / "measured" / "first" / "runs.csv"
    assert path == add_measured([RUN], "first")
    assert number_replicates([RUN])[0].run_id == load_measured()["run_id"].item()


def test_runs_are_added_to_a_campaign_and_numbered_after_all_measured_ones(root):
    add_measured([RUN], "first")
    add_measured([replace(RUN, started="2025-01-01")], "first")
    add_measured([replace(RUN, started="2025-01-02")], "second")
    assert [1, 2, 3] == load_measured()["replicate"].tolist()
    assert 3 == load_measured()["run_id"].nunique()


@pytest.mark.parametrize("campaign", ["first", "second"])
def test_a_run_that_is_measured_already_is_refused_and_nothing_changes(root, campaign):
    path = add_measured([RUN], "first")
    before = path.read_bytes()
    with pytest.raises(InputError, match="duplicate run"):
        add_measured([replace(RUN, source_file="copy.json")], campaign)
    assert before == path.read_bytes()
    assert ["first"] == [folder.name for folder in path.parents[1].iterdir()]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a b", ".hidden", "a\n"])
def test_a_campaign_that_is_no_plain_name_is_refused(root, name):
    with pytest.raises(InputError, match="campaign name"):
        campaign_path(name)


def test_nothing_measured_is_an_empty_frame(root):
    assert (0, RUN_COLUMNS) == (len(load_measured()), list(load_measured().columns))


def test_runs_go_to_a_campaign_or_a_csv_file_or_nowhere(root, tmp_path):
    assert target_path("", None) is None
    assert tmp_path / "a.csv" == target_path("", tmp_path / "a.csv")
    assert root / "data" / "measured" / "a" / "runs.csv" == target_path("a", None)


@pytest.mark.parametrize(("campaign", "name"), [("a", "b.csv"), ("", "b.json"), ("", "b")])
def test_two_targets_or_another_kind_of_file_are_refused(root, tmp_path, campaign, name):
    with pytest.raises(InputError, match="where to write"):
        target_path(campaign, tmp_path / name)


# Contradictions


def test_a_run_that_agrees_with_itself_is_handed_on():
    assert RUN is check_run(RUN)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"duration_s": 0.0}, "duration"),
        ({"duration_s": -1.0}, "duration"),
        ({"duration_s": math.nan}, "duration"),
        ({"duration_s": math.inf}, "duration"),
        ({"prompts": 0}, "prompts"),
        ({"completed": 0}, "completed requests"),
        ({"completed": 5}, "completed requests: got 5, expected at most the 4 sent"),
        ({"rate_requests_per_s": 0.0}, "request rate"),
        ({"rate_requests_per_s": math.nan}, "request rate"),
        ({"burstiness": 0.0}, "burstiness"),
        ({"max_concurrency": 0.0}, "concurrency limit"),
        ({"gpu_count": 0}, "GPU count"),
        ({"input_tokens": -1}, "input tokens"),
        ({"output_tokens": -1}, "output tokens"),
        ({"throughput_requests_per_s": 1.51}, "request throughput: got 1.51, expected 1.5"),
        ({"output_throughput_tokens_per_s": math.nan}, "output throughput"),
        ({"throughput_tokens_per_s": 30.0}, "total throughput: got 30, expected 34"),
        ({"goodput_requests_per_s": 1.6}, "goodput"),
        ({"goodput_requests_per_s": -0.1}, "goodput"),
        ({"ttft": replace(TTFT, p90_s=0.295)}, "ttft out of order: got p90_s"),
        ({"ttft": Latency(p50_s=0.3, p99_s=0.2)}, "ttft out of order: got p50_s"),
        ({"ttft": Latency(mean_s=0.4, p100_s=0.3)}, "ttft out of order: got mean_s"),
        ({"ttft": Latency(std_s=0.2, p100_s=0.3)}, "ttft out of order: got std_s"),
        ({"ttft": Latency(mean_s=0.1, p50_s=0.3)}, "ttft out of order: got p50_s"),
        ({"tpot": Latency(mean_s=-0.1)}, "tpot mean_s: got -0.1"),
        ({"itl": Latency(p99_s=2.1)}, "itl p99_s: got 2.1"),
        ({"itl": Latency(p99_s=math.inf)}, "itl p99_s: got inf"),
    ],
)
def test_what_contradicts_itself_is_refused(change, what):
    with pytest.raises(InputError) as error:
        check_run(replace(RUN, **change))
    assert str(error.value).startswith(what)
    assert "in run.json" in str(error.value)


def test_the_place_of_a_contradiction_can_be_named():
    with pytest.raises(InputError, match=r"in folder/run\.json, record 2"):
        check_run(replace(RUN, completed=0), where="folder/run.json, record 2")


@pytest.mark.parametrize(
    "change",
    [
        {"rate_requests_per_s": math.inf},
        {"goodput_requests_per_s": math.nan},
        {"goodput_requests_per_s": 1.5},
        {"throughput_tokens_per_s": 34.01},  # rounded
        {"ttft": Latency(*[0.1 + 1e-17, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1])},
    ],
)
def test_what_is_unknown_rounded_or_equal_is_no_contradiction(change):
    assert check_run(replace(RUN, **change))


# Percentiles


def test_a_summary_of_latencies_is_linear_between_order_statistics():
    summary = percentiles_s(np.array([0.3, 0.1, 0.2]))
    expected = (0.2, math.sqrt(2 / 300), 0.2, 0.28, 0.29, 0.298, 0.3)
    np.testing.assert_allclose(expected, list(vars(summary).values()))


def test_a_summary_of_nothing_is_unknown():
    assert all(map(math.isnan, vars(percentiles_s(np.empty(0))).values()))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_any_summary_agrees_with_itself(values):
    summary = percentiles_s(np.array(values))
    assert check_run(replace(RUN, duration_s=200.0, **_throughputs(200.0), ttft=summary))


def _throughputs(duration_s):
    return {
        "throughput_requests_per_s": RUN.completed / duration_s,
        "goodput_requests_per_s": math.nan,
        "output_throughput_tokens_per_s": RUN.output_tokens / duration_s,
        "throughput_tokens_per_s": (RUN.input_tokens + RUN.output_tokens) / duration_s,
    }


def test_columns_name_each_latency_and_unit():
    assert {f"{name}_p99_s" for name in LATENCIES} <= set(RUN_COLUMNS)
