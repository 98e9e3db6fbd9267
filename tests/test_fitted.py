import dataclasses
import json

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, find_model
from hetinfer.runs import load_recorded
from hetinfer.simulation import fitted
from hetinfer.simulation.calibration import prior_engine
from hetinfer.simulation.fitted import (
    Calibration,
    load_calibrations,
    refit_difference_frac,
    save_calibrations,
    serving_engine,
    serving_lengths,
)
from hetinfer.simulation.lengths import TOKENIZER_SLACK, first_lengths
from hetinfer.simulation.parity import cell_value, error_table, parity_table

H100 = find_gpu("h100-pcie")
MODEL_7B = find_model("DeepSeek-R1-Distill-Qwen-7B")
MODEL_14B = find_model("DeepSeek-R1-Distill-Qwen-14B")


@pytest.fixture(scope="module")
def best() -> Calibration:
    return load_calibrations()[0]


def test_saved_calibrations_come_back_whole_and_the_best_first(best, tmp_path):
    worse = dataclasses.replace(
        best,
        reconstruction=3,
        fits=tuple(dataclasses.replace(fit, cost=2 * fit.cost) for fit in best.fits),
    )
    save_calibrations([worse, best], tmp_path)
    first, second = load_calibrations(tmp_path)
    assert (first.reconstruction, second.reconstruction) == (best.reconstruction, 3)
    assert first.fits == best.fits
    for model, lengths in best.lengths.items():
        assert np.array_equal(first.lengths[model].prompt_tokens, lengths.prompt_tokens)
        assert np.array_equal(first.lengths[model].output_tokens, lengths.output_tokens)


def test_there_are_two_reconstructions_of_every_configuration():
    runs = load_recorded()
    configurations = {tuple(row) for row in runs[["model", "gpu", "gpu_count"]].to_numpy()}
    for calibration in load_calibrations():
        assert {(f.model, f.gpu, f.gpu_count) for f in calibration.fits} == configurations
        assert set(calibration.lengths) == set(runs["model"])


def test_lengths_have_the_recorded_sums(best):
    for model, runs in load_recorded().groupby("model"):
        one_card = runs[~((runs["gpu"] == "rtx-4090") & (runs["gpu_count"] > 1))]
        lengths = best.lengths[model]
        assert lengths.prompt_tokens.sum() == pytest.approx(runs["input_tokens"].mean(), rel=0.002)
        assert lengths.output_tokens.sum() == pytest.approx(
            one_card["output_tokens"].mean(), rel=0.02
        )


def test_a_fit_made_anew_costs_what_the_saved_one_does(best):
    fit = next(f for f in best.fits if (f.model, f.gpu) == (MODEL_14B.model, "h100-pcie"))
    assert refit_difference_frac(fit, best.lengths[fit.model]) < 0.01


def test_fits_of_other_runs_or_none_are_errors(best, tmp_path):
    with pytest.raises(InputError, match="no fits"):
        load_calibrations(tmp_path)
    save_calibrations([best], tmp_path)
    path = tmp_path / "engines.json"
    content = json.loads(path.read_text())
    content["inputs"]["data/recorded/runs.csv"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="fits of other runs"):
        load_calibrations(tmp_path)


def test_a_configuration_without_runs_is_predicted(best):
    engine, was_fitted = serving_engine(best, MODEL_14B, H100, 1)
    assert was_fitted
    predicted, was_fitted = serving_engine(best, MODEL_7B, H100, 2)
    assert not was_fitted
    assert predicted.step_time.weights_s < engine.step_time.weights_s
    assert predicted.kv_tokens == prior_engine(MODEL_7B, H100, 2).kv_tokens
    unknown = dataclasses.replace(MODEL_7B, model="someone/else-7B")
    assert serving_lengths(best, unknown) is best.lengths[MODEL_7B.model]


def test_calibration_makes_lengths_for_every_model_and_a_fit_for_every_configuration(monkeypatch):
    runs = load_recorded()
    few = runs[runs["model"] == MODEL_7B.model]
    base = first_lengths(np.random.default_rng(1))
    monkeypatch.setattr(fitted, "load_recorded", lambda: few[few["gpu"] == "h100-pcie"])
    monkeypatch.setattr(fitted, "reconstruct_base", lambda *_: base)
    found = fitted.calibrate(1, 0, 5)
    assert [fit.gpu for fit in found.fits] == ["h100-pcie"]
    longest = np.round(TOKENIZER_SLACK * base.output_tokens)
    assert (found.lengths[MODEL_7B.model].output_tokens <= longest).all()


def test_simulator_reaches_the_throughput_asked_for_in_every_group(best):
    """Median and 90th percentile of absolute errors at rates that no fit saw."""
    errors = error_table(parity_table(best.fits, load_recorded(), best.lengths))
    table = errors.set_index(["group", "set", "statistic"])[["median_frac", "p90_frac"]]
    for group, most in (("all but several 4090s", (0.015, 0.05)), ("several 4090s", (0.02, 0.05))):
        found = table.loc[group, "validation", "throughput_requests_per_s"]
        assert (found.to_numpy() <= most).all()


def test_simulator_reaches_the_accuracy_that_the_chapters_state(best):
    """Median absolute errors at rates that no fit saw, one H100, models up to 14B."""
    fits = [f for f in best.fits if (f.gpu, f.gpu_count) == ("h100-pcie", 1)]
    parity = parity_table(fits, load_recorded(), best.lengths)
    errors = error_table(parity).set_index(["group", "set", "statistic"])["median_frac"]
    one_h100 = errors["H100 x1, up to 14B", "validation"]
    assert one_h100["throughput_requests_per_s"] < 0.015
    assert one_h100["tpot_p50_s"] < 0.025
    assert one_h100["ttft_p50_s"] < 0.05
    assert one_h100["ttft_p99_s"] < 0.05
    cell = (MODEL_14B.model, "h100-pcie", 1, 16.0)
    assert cell_value(parity, cell, "itl_p100_s") < 0.030
    with pytest.raises(InputError, match="no such cell"):
        cell_value(parity, cell, "unheard of")
