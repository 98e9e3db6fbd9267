import json
import math
import os
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.runs import frame, load_recorded
from hetinfer.vllm_results import NOTHING_STATED, Stated, describe, load_requests, load_results
from result_files import DETAIL, first_generation, study_generation, today, write, write_study

ON_ONE_H100 = Stated(gpu="h100-pcie", gpu_count=1)


def read_one(tmp_path, record, stated=NOTHING_STATED, name="run.json"):
    (run,) = load_results([write(tmp_path / name, record)], stated).runs
    return run


def refused(tmp_path, record, stated=NOTHING_STATED, name="run.json"):
    with pytest.raises(InputError) as error:
        read_one(tmp_path, record, stated, name)
    message = str(error.value)
    assert str(tmp_path / name) in message
    return message


# The study


def test_study_files_give_exactly_the_recorded_runs(tmp_path):
    write_study(tmp_path)
    read = load_results([tmp_path], Stated(engine_version="0.8.5"), evidence="recorded")
    assert (120, 130) == (read.files, len(read.runs))
    recorded = load_recorded().set_index("run_id")
    imported = frame(read.runs).set_index("run_id").loc[recorded.index]
    pd.testing.assert_frame_equal(recorded, imported, check_exact=True)


# Generations


def test_first_generation_is_read_with_what_it_lacks_from_the_requests(tmp_path):
    run = read_one(tmp_path, first_generation(), ON_ONE_H100)
    assert ("vllm", "2024-06-01T12:00:00", "h100-pcie") == (run.engine, run.started, run.gpu)
    assert (math.inf, 1.0, math.inf) == (
        run.rate_requests_per_s,
        run.burstiness,
        run.max_concurrency,
    )
    assert (34.0, 1.5, 4.0) == (
        run.throughput_tokens_per_s,
        run.throughput_requests_per_s,
        run.output_throughput_tokens_per_s,
    )
    assert math.isnan(run.goodput_requests_per_s)
    assert 0.298 == run.ttft.p99_s
    assert 0.3 == run.ttft.p100_s
    assert math.isclose(0.28, run.ttft.p90_s)
    assert math.isclose(0.0816496580927726, run.ttft.std_s)
    assert math.isclose(0.04, run.tpot.p100_s)
    assert math.isclose(0.036, run.itl.p90_s)


def test_study_generation_has_a_goodput_under_a_key_with_a_colon(tmp_path):
    assert 1.0 == read_one(tmp_path, study_generation()).goodput_requests_per_s


def test_study_generation_has_its_gpu_count_as_text(tmp_path):
    run = read_one(tmp_path, study_generation())
    assert ("h100-pcie", 1) == (run.gpu, run.gpu_count)


def test_what_a_summary_lacks_stays_unknown(tmp_path):
    run = read_one(tmp_path, study_generation())
    assert math.isnan(run.ttft.p90_s)
    assert math.isnan(run.itl.std_s)


def test_today_is_read_with_its_limit_on_concurrency(tmp_path):
    run = read_one(tmp_path, today())
    assert (2.0, "rtx-4090", 2) == (run.max_concurrency, run.gpu, run.gpu_count)
    assert math.isnan(run.goodput_requests_per_s)


def test_median_stands_for_the_fiftieth_percentile(tmp_path):
    assert 0.2 == read_one(tmp_path, study_generation()).ttft.p50_s


@pytest.mark.parametrize("rate", ["inf", math.inf, "Infinity"])
def test_infinite_rate_in_any_spelling_means_all_at_once(tmp_path, rate):
    assert math.inf == read_one(tmp_path, study_generation(request_rate=rate)).rate_requests_per_s


@pytest.mark.parametrize("key", ["request_goodput", "request_goodput:"])
def test_goodput_with_and_without_colon(tmp_path, key):
    record = study_generation() | {"request_goodput:": None} | {key: 0.5}
    assert 0.5 == read_one(tmp_path, record).goodput_requests_per_s


@pytest.mark.parametrize(
    ("backend", "engine"),
    [("vllm", "vllm"), ("openai-chat", "vllm"), ("sglang", "sglang"), (None, "vllm")],
)
def test_backend_names_the_engine_unless_it_is_a_protocol(tmp_path, backend, engine):
    assert engine == read_one(tmp_path, study_generation(backend=backend)).engine


def test_endpoint_type_stands_in_for_the_backend(tmp_path):
    record = today(backend=None, endpoint_type="tgi")
    assert "tgi" == read_one(tmp_path, record).engine


def test_missing_burstiness_is_one(tmp_path):
    assert 1.0 == read_one(tmp_path, study_generation(burstiness=None)).burstiness


def test_missing_throughputs_are_computed(tmp_path):
    gone = dict.fromkeys(["request_throughput", "output_throughput", "total_token_throughput"])
    run = read_one(tmp_path, study_generation(**gone))
    assert (1.5, 4.0, 34.0) == (
        run.throughput_requests_per_s,
        run.output_throughput_tokens_per_s,
        run.throughput_tokens_per_s,
    )


def test_zeros_for_a_latency_that_was_not_measured_are_unknown(tmp_path):
    zeros = {f"{s}_itl_ms": 0.0 for s in ("mean", "median", "p99")}
    assert math.isnan(read_one(tmp_path, study_generation(**zeros)).itl.mean_s)


# Forms of a file


@pytest.mark.parametrize("between", ["", "\n", " \n\n\t"])
def test_records_one_after_the_other_are_each_a_run(tmp_path, between):
    records = [study_generation(date=f"20250610-15114{n}") for n in range(3)]
    read = load_results([write(tmp_path / "r.json", *records, between=between)])
    assert [1, 2, 3] == [run.replicate for run in read.runs]
    assert 1 == read.files


def test_replicates_are_counted_by_start_not_by_place(tmp_path):
    later, earlier = study_generation(), study_generation(date="20250609-000000")
    read = load_results([write(tmp_path / "r.jsonl", later, earlier)])
    assert [2, 1] == [run.replicate for run in read.runs]


def test_a_record_over_several_lines_is_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("\ufeff" + json.dumps(study_generation(), indent=2) + "\n")
    assert 1 == len(load_results([path]).runs)


def test_folders_are_read_in_depth_sorted_and_only_for_results(tmp_path):
    write(tmp_path / "b" / "x.json", study_generation())
    write(tmp_path / "a.jsonl", study_generation(date="20250610-151149"))
    (tmp_path / "notes.txt").write_text("not a result")
    files = [run.source_file for run in load_results([tmp_path]).runs]
    assert ["a.jsonl", "b/x.json"] == files


def test_a_named_file_is_read_whatever_its_ending(tmp_path):
    assert 1 == len(load_results([write(tmp_path / "run.log", study_generation())]).runs)


def test_description_says_how_many_and_of_what(tmp_path):
    text = describe(load_results([write(tmp_path / "r.json", study_generation(), today())]))
    assert "runs: 2, from 1 files" in text
    assert "models: 1 (model-7b)" in text
    assert "configurations: 2, on 1x h100-pcie, 2x rtx-4090" in text
    assert "offered rates: 16, inf requests per s" in text


# Requests in detail


def test_requests_of_a_run_with_their_latencies(tmp_path):
    path = write(tmp_path / "r.json", first_generation())
    requests = load_requests(path)
    assert [0, 1, 2, 3] == requests["request"].tolist()
    assert [10, 20, 30, 40] == requests["input_tokens"].tolist()
    np.testing.assert_allclose([0.1, 0.2, 0.3, np.nan], requests["ttft_s"])
    np.testing.assert_allclose([0.02, 0.02, 0.04, np.nan], requests["tpot_s"])
    np.testing.assert_allclose([0.14, 0.24, 0.34, np.nan], requests["e2el_s"])
    assert requests["start_s"].isna().all()
    assert ["", "", "", "Service Unavailable"] == requests["error"].tolist()


def test_starts_count_from_the_first_request(tmp_path):
    record = today(**DETAIL, start_times=[1000.5, 1000.0, 1001.0, 0.0])
    requests = load_requests(write(tmp_path / "r.json", record))
    np.testing.assert_allclose([0.5, 0.0, 1.0, np.nan], requests["start_s"])


def test_latencies_stand_in_for_gaps_that_were_not_told(tmp_path):
    detail = DETAIL | {"itls": [[], [], [], []]}
    requests = load_requests(write(tmp_path / "r.json", today(**detail)))
    np.testing.assert_allclose([0.02, 0.02, 0.04, np.nan], requests["tpot_s"])


def test_without_gaps_or_latencies_tpot_is_unknown(tmp_path):
    detail = DETAIL | {"itls": None, "latencies": None}
    requests = load_requests(write(tmp_path / "r.json", today(**detail)))
    assert requests["tpot_s"].isna().all()


def test_one_token_has_no_time_per_further_token(tmp_path):
    detail = DETAIL | {"output_lens": [3, 3, 1, 0], "itls": [[0.01, 0.03], [0.02, 0.02], [], []]}
    record = first_generation(**detail, total_output_tokens=7, output_throughput=3.5)
    requests = load_requests(write(tmp_path / "r.json", record))
    np.testing.assert_allclose([0.02, 0.02, np.nan, np.nan], requests["tpot_s"])


def test_a_request_that_gave_nothing_completed_if_the_file_counts_it(tmp_path):
    detail = DETAIL | {"errors": ["", "", "", ""]}
    record = first_generation(**detail, completed=4, total_input_tokens=100)
    record |= {"request_throughput": 2.0, "input_throughput": 50.0, "mean_ttft_ms": 150.0}
    assert 0.0 == load_requests(write(tmp_path / "r.json", record))["ttft_s"].iloc[3]


def test_requests_of_a_later_record(tmp_path):
    path = write(tmp_path / "r.json", study_generation(), first_generation())
    assert 4 == len(load_requests(path, record=2))


def test_requests_of_a_record_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such record"):
        load_requests(write(tmp_path / "r.json", first_generation()), record=2)


def test_requests_of_a_summary_are_an_error(tmp_path):
    with pytest.raises(InputError, match="save-detailed"):
        load_requests(write(tmp_path / "r.json", study_generation()))


def test_a_filled_percentile_stays_between_those_the_file_states(tmp_path):
    record = first_generation(mean_tpot_ms=27.0, p99_tpot_ms=40.5)  # counts a stream's last message
    run = read_one(tmp_path, record, ON_ONE_H100)
    assert 0.0405 == run.tpot.p99_s == run.tpot.p100_s


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"input_lens": [10, 20, 30]}, "output_lens: got 4 entries"),
        ({"ttfts": [0.1, -0.2, 0.3, 0.0]}, "ttfts: got -0.2"),
        ({"ttfts": [0.1, "fast", 0.3, 0.0]}, "ttfts"),
        ({"ttfts": [[0.1], [0.2], [0.3], [0.0]]}, "ttfts: got lists in a list"),
        ({"ttfts": "0.1"}, "ttfts: got a JSON str"),
        ({"itls": [[0.01, None], [], [], []]}, "itls"),
        ({"itls": [0.01, 0.02, 0.03, 0.04]}, "itls"),
        ({"output_lens": [3, 3, 3, 0]}, "sum of output_lens: got 9"),
        ({"input_lens": [10, 20, 31, 40]}, "sum of input_lens: got 61"),
        ({"output_lens": [2.5, 3, 2.5, 0]}, "output_lens: got 2.5"),
        ({"errors": ["", "", "late", "late"]}, "requests in detail: got 2 completed"),
        ({"latencies": [0.05, 0.24, 0.34, 0.0]}, "latencies: got one below its ttft"),
        ({"mean_ttft_ms": 100.0}, "mean_ttft_ms: got 100"),
        ({"mean_itl_ms": 25.0}, "mean_itl_ms: got 25"),
    ],
)
def test_detail_that_contradicts_the_run_is_refused(tmp_path, changes, what):
    assert what in refused(tmp_path, first_generation(**changes), ON_ONE_H100)


@st.composite
def saved_runs(draw):
    """A run as vLLM's client saves it: mean and median always, other statistics as asked for."""
    seconds = st.floats(1e-4, 1.0)
    gaps = draw(st.lists(st.lists(seconds, max_size=5), min_size=1, max_size=8))
    ttft_s = draw(st.lists(seconds, min_size=len(gaps), max_size=len(gaps)))
    last_message_s = draw(st.sampled_from([0.0, 1e-3]))
    outputs = [len(own) + 1 for own in gaps]
    inputs = [10] * len(gaps)
    tpot_s = [(sum(own) + last_message_s) / len(own) for own in gaps if own]
    latencies = {"ttft": ttft_s, "tpot": tpot_s, "itl": [gap for own in gaps for gap in own]}
    statistics = {"mean": np.mean, "median": np.median, "std": np.std}
    statistics |= {f"p{p}": partial(np.percentile, q=p) for p in (50, 90, 95, 99, 100)}
    told = {"mean", "median"} | draw(st.sets(st.sampled_from(sorted(statistics))))
    summary = {
        f"{statistic}_{name}_ms": float(statistics[statistic](values or 0.0) * 1000)
        for name, values in latencies.items()
        for statistic in told
    }
    detail = {"input_lens": inputs, "output_lens": outputs, "ttfts": ttft_s, "itls": gaps}
    counts = {"num_prompts": len(gaps), "completed": len(gaps), "failed": 0}
    counts |= {"total_input_tokens": sum(inputs), "total_output_tokens": sum(outputs)}
    left_out = [key for key in today() if key.endswith(("_ms", "put")) or key == "latencies"]
    return today(**dict.fromkeys(left_out) | summary | detail | counts | {"duration": 10.0})


@given(saved_runs())
def test_no_run_that_the_client_can_save_is_taken_for_a_contradiction(tmp_path_factory, record):
    run = read_one(tmp_path_factory.mktemp("run"), record)
    np.testing.assert_allclose(max(record["ttfts"]), run.ttft.p100_s)
    np.testing.assert_allclose(np.mean(record["ttfts"]), run.ttft.mean_s)


# What files do not say


def test_options_fill_what_the_file_does_not_say(tmp_path):
    stated = Stated("NVIDIA RTX 4090", 8, "random", "0.10")
    run = read_one(tmp_path, study_generation(gpu_name=None, gpu_count=None), stated)
    assert ("rtx-4090", 8, "random", "0.10") == (
        run.gpu,
        run.gpu_count,
        run.dataset,
        run.engine_version,
    )


def test_metadata_of_the_file_is_taken(tmp_path):
    run = read_one(tmp_path, study_generation(dataset="sonnet", vllm_version="0.8.5"))
    assert ("sonnet", "0.8.5") == (run.dataset, run.engine_version)


def test_a_name_like_the_study_s_tells_the_dataset(tmp_path):
    name = "vllm_200prompts1.5qps_model_7b_sharegpt_1xNVIDIA-H100-PCIe.json"
    assert "sharegpt" == read_one(tmp_path, study_generation(), name=name).dataset


def test_another_name_tells_no_dataset(tmp_path):
    assert "" == read_one(tmp_path, study_generation(), name="vllm_sharegpt.json").dataset


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        (Stated(gpu="rtx-4090"), "GPU said in two ways"),
        (Stated(gpu_count=2), "GPU count said in two ways"),
        (Stated(dataset="random"), "dataset said in two ways"),
        (Stated(engine_version="0.9"), "engine version said in two ways"),
    ],
)
def test_a_file_that_says_otherwise_than_the_option_is_refused(tmp_path, stated, what):
    record = study_generation(dataset="sonnet", engine_version="0.8.5")
    assert what in refused(tmp_path, record, stated)


def test_unknown_gpu_lists_the_known_and_how_to_add_one(tmp_path):
    message = refused(tmp_path, study_generation(gpu_name="Voodoo 2"))
    assert "rtx-4090" in message
    assert "add a row for it to data/reference/gpus.csv" in message


def test_gpu_and_count_must_be_said_by_somebody(tmp_path):
    assert "--gpu" in refused(tmp_path, study_generation(gpu_name=None))
    assert "--gpu-count" in refused(tmp_path, study_generation(gpu_count=None))


def test_an_unknown_gpu_as_option_is_an_error_even_if_bad_files_are_skipped(tmp_path):
    path = write(tmp_path / "r.json", study_generation())
    with pytest.raises(InputError, match="unknown GPU"):
        load_results([path], Stated(gpu="Voodoo 2"), skip_bad=True)


# Bad input


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"duration": -2.0}, "duration: got -2.0"),
        ({"duration": math.nan}, "duration: got nan"),
        ({"duration": "long"}, "duration: got 'long'"),
        ({"duration": None}, "no duration"),
        ({"model_id": ""}, "no model_id"),
        ({"model_id": "two\nlines"}, "one line of text"),
        ({"model_id": ["a"]}, "one line of text"),
        ({"completed": 5}, "at most the 4 sent"),
        ({"completed": 2.5}, "completed: got 2.5"),
        ({"completed": True}, "completed: got True"),
        ({"completed": 0, "request_throughput": 0}, "completed requests: got 0"),
        ({"total_output_tokens": -8}, "output tokens: got -8"),
        ({"request_throughput": 1.6}, "request throughput: got 1.6"),
        ({"total_token_throughput": 30.0}, "total throughput: got 30"),
        ({"request_goodput:": 1.7}, "goodput: got 1.7"),
        ({"p99_ttft_ms": 100.0}, "ttft out of order"),
        ({"p90_ttft_ms": 299.0}, "ttft out of order"),
        ({"p100_ttft_ms": 2100.0}, "ttft p100_s: got 2.1"),
        ({"p50_ttft_ms": 150.0}, "median_ttft_ms: got 200"),
        ({"mean_itl_ms": -1.0}, "itl mean_s: got -0.001"),
        ({"failed": 2}, "failed requests: got 2"),
        ({"request_rate": 0}, "request rate: got 0"),
        ({"request_rate": math.nan}, "request rate: got nan"),
        ({"max_concurrency": 0}, "concurrency limit"),
        ({"gpu_count": "two"}, "GPU count: got 'two'"),
        ({"gpu_count": "0"}, "GPU count: got 0"),
        ({"date": "yesterday"}, "date: got 'yesterday'"),
        ({"ramp_up_strategy": "linear"}, "ramps its rate up"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused(tmp_path, changes, what):
    assert what in refused(tmp_path, study_generation(**changes))


def test_first_generation_whose_input_throughput_is_wrong_is_refused(tmp_path):
    record = first_generation(input_throughput=31.0)
    assert "total throughput: got 35" in refused(tmp_path, record, ON_ONE_H100)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "unreadable file"),
        ('{"date": "2025', "(line 1, column 10)"),
        ("[1, 2]", "a JSON list"),
        ("3", "a JSON int"),
        ('{"a": 1}', "no result of a serving benchmark: got no date, model_id"),
        ("[" * 100_000, "recursion"),
        ("9" * 5000, "digits"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text, what):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_results([path])
    assert what in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="unreadable file"):
        load_results([tmp_path])


def test_an_error_names_the_record_of_a_file_with_several(tmp_path):
    path = write(tmp_path / "r.json", study_generation(), study_generation(duration=-1))
    with pytest.raises(InputError, match=r"r\.json, record 2"):
        load_results([path])


def test_an_empty_folder_and_a_missing_path_are_errors(tmp_path):
    with pytest.raises(InputError, match="empty folder"):
        load_results([tmp_path])
    with pytest.raises(InputError, match="no such file or folder"):
        load_results([tmp_path / "nowhere"])


def test_a_run_in_two_files_is_refused_and_both_are_named(tmp_path):
    write(tmp_path / "a.json", study_generation())
    write(tmp_path / "b.json", study_generation())
    with pytest.raises(InputError, match=r"duplicate run.*a\.json and .*b\.json"):
        load_results([tmp_path])


def test_a_run_twice_in_one_file_is_refused(tmp_path):
    path = write(tmp_path / "a.json", study_generation(), study_generation())
    with pytest.raises(InputError, match=r"record 1 and .*record 2"):
        load_results([path])


def test_bad_files_are_skipped_and_listed_on_demand(tmp_path):
    write(tmp_path / "a.json", study_generation())
    write(tmp_path / "b.json", study_generation())
    write(tmp_path / "c.json", study_generation(duration=-1))
    write(tmp_path / "d.json", study_generation(date="20250610-151200"), {"no": "result"})
    write(tmp_path / "e.json", study_generation(date="20250610-151200"))
    read = load_results([tmp_path], skip_bad=True)
    assert ["a.json", "e.json"] == [run.source_file for run in read.runs]
    assert 2 == read.files
    whats = [error.what for error in read.skipped]
    assert ["duplicate run", "duration", "no result of a serving benchmark"] == whats


def test_a_folder_of_bad_files_alone_is_an_error_even_when_they_are_skipped(tmp_path):
    write(tmp_path / "a.json", {"no": "result"})
    with pytest.raises(InputError, match="no run to read"):
        load_results([tmp_path], skip_bad=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    path = write(tmp_path / "a.json", study_generation())
    path.chmod(0)
    with pytest.raises(InputError, match="unreadable file"):
        load_results([path])
