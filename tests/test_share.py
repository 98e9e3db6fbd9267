import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.runs import load_recorded
from hetinfer.share import (
    FRACTIONAL_LOGIT,
    MECHANISTIC,
    band_half_width,
    count_effect,
    describe_shares,
    descriptive_predictor,
    fit_fractional_logit,
    fit_mechanistic,
    fit_relative_logit,
    new_model_band,
    predict_share,
    share_cell,
    share_curves,
    share_pairs,
    share_predictor,
)
from hetinfer.validation import mean_absolute_errors, validation_errors

QWEN_14B = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"


@pytest.fixture(scope="module")
def runs():
    return load_recorded()


@pytest.fixture(scope="module")
def pairs(runs):
    return share_pairs(runs)


def with_throughput(runs, factor):
    """The runs with the throughput of the first 4090 cell multiplied."""
    first = runs.index[runs["gpu"] == "rtx-4090"][0]
    scale = np.where(runs.index == first, factor, 1.0)
    return runs.assign(throughput_tokens_per_s=runs["throughput_tokens_per_s"] * scale)


def test_study_has_fifty_five_pairs_of_five_models(pairs):
    assert len(pairs) == 55
    assert pairs["model"].nunique() == 5


def test_share_of_four_4090s_at_sixteen_per_second_is_their_throughput_ratio(runs, pairs):
    cell = runs.query("rate_requests_per_s == 16 and model == @QWEN_14B").set_index(
        ["gpu", "gpu_count"]
    )["throughput_tokens_per_s"]
    expected = cell.loc[("rtx-4090", 4)].mean() / cell.loc[("h100-pcie", 1)].mean()
    row = pairs.query("rate_requests_per_s == 16 and gpu_count == 4 and model == @QWEN_14B")
    assert np.isclose(expected, row["share"].iloc[0])


def test_inverse_duration_ratio_is_the_share_but_for_tokens(pairs):
    from_drains = (pairs["last_arrival_s"] + pairs["baseline_drain_s"]) / (
        pairs["last_arrival_s"] + pairs["drain_s"]
    )
    assert (from_drains - pairs["share"]).abs().max() < 0.01


def test_shares_just_above_one_are_capped_at_one(pairs):
    assert (pairs["share"] > 1).any()
    assert pairs["capped_share"].max() == 1.0


def test_a_share_well_above_one_is_an_error(runs):
    with pytest.raises(InputError, match="share out of range"):
        share_pairs(with_throughput(runs, 3.0))


def test_a_share_of_zero_is_an_error(runs):
    with pytest.raises(InputError, match="share out of range: got 0"):
        share_pairs(with_throughput(runs, 0.0))


def test_a_missing_partner_run_is_named(runs):
    partner = "gpu == 'h100-pcie' and model == @QWEN_14B and rate_requests_per_s == 8"
    with pytest.raises(InputError, match="partner run missing: got 2x rtx-4090 at 8/s alone"):
        share_pairs(runs.drop(index=runs.query(partner).index))


def test_runs_of_one_gpu_alone_have_no_pairs(runs):
    with pytest.raises(InputError, match="no pair of runs"):
        share_pairs(runs.query("gpu == 'h100-pcie'"))


def test_mean_share_by_rate_is_over_models_not_runs(pairs):
    by_rate = describe_shares(pairs, ["rate_requests_per_s"])
    own = pairs.query("rate_requests_per_s == 8").groupby("model")["share"].mean()
    row = by_rate.query("rate_requests_per_s == 8").iloc[0]
    half = 2.776445105 * own.std(ddof=1) / np.sqrt(5)
    assert np.allclose([own.mean(), own.mean() - half, own.mean() + half], row.iloc[1:4])
    assert row["n_models"] == 5


def test_one_model_on_eight_cards_has_a_mean_and_no_interval(pairs):
    eight = describe_shares(pairs, ["gpu_count", "rate_requests_per_s"]).query("gpu_count == 8")
    assert (eight["n_models"] == 1).all()
    assert eight["low"].isna().all()


def test_descriptive_prediction_is_the_mean_at_the_rate(pairs):
    means = describe_shares(pairs, ["rate_requests_per_s"]).set_index("rate_requests_per_s")
    predicted = descriptive_predictor(pairs, pairs)
    assert np.allclose(pairs["rate_requests_per_s"].map(means["share"]), predicted)


@pytest.mark.parametrize("fit", [fit_fractional_logit, fit_relative_logit, fit_mechanistic])
def test_estimates_lie_within_their_intervals(pairs, fit):
    predicted = predict_share(fit(pairs), pairs[pairs["gpu_count"] < 8])
    assert (predicted["low"] < predicted["estimate"]).all()
    assert (predicted["estimate"] < predicted["high"]).all()


def test_mechanistic_share_of_an_equal_drain_is_one(runs, pairs):
    fit = fit_mechanistic(pairs)
    cell = share_cell(runs, QWEN_14B, gpu_count=4, rate_requests_per_s=16.0)
    share = predict_share(fit, cell)["estimate"].iloc[0]
    last_arrival_s, base_s = cell["last_arrival_s"].iloc[0], cell["baseline_drain_s"].iloc[0]
    drain_s = base_s * np.exp(np.array([1.0, 4.0, 2.0, 8.0]) @ fit.coefficients)
    assert np.isclose((last_arrival_s + base_s) / (last_arrival_s + drain_s), share)


def test_cell_at_a_measured_rate_has_the_measured_drain(runs, pairs):
    cell = share_cell(runs, QWEN_14B, gpu_count=2, rate_requests_per_s=8.0)
    row = pairs.query("model == @QWEN_14B and gpu_count == 2 and rate_requests_per_s == 8")
    assert np.isclose(row["baseline_drain_s"].iloc[0], cell["baseline_drain_s"].iloc[0])
    assert np.isclose(row["last_arrival_s"].iloc[0], cell["last_arrival_s"].iloc[0])


def test_cell_of_a_model_without_an_h100_run_is_an_error(runs):
    with pytest.raises(InputError, match="no H100 runs"):
        share_cell(
            runs,
            "meta-llama/Meta-Llama-3-70B-Instruct",
            gpu_count=4,
            rate_requests_per_s=8.0,
        )


def test_band_holds_every_model_left_out(pairs):
    band = new_model_band(pairs, FRACTIONAL_LOGIT)
    errors = validation_errors(pairs, "share", {"logit": share_predictor(FRACTIONAL_LOGIT)})
    left_out = errors.query("left_out == 'model'")
    widths = band_half_width(band, left_out["rate_requests_per_s"].to_numpy())
    assert (left_out["error"].abs() <= widths + 1e-12).all()


def test_band_between_rates_lies_between_theirs(pairs):
    band = new_model_band(pairs, MECHANISTIC)
    at = band.set_index("rate_requests_per_s")["half_width"]
    halfway = band_half_width(band, np.array([np.sqrt(4 * 8)]))[0]
    assert np.isclose((at[4.0] + at[8.0]) / 2, halfway)


def test_left_out_errors_are_within_what_the_forms_promise(pairs):
    forms = {form.name: share_predictor(form) for form in (FRACTIONAL_LOGIT, MECHANISTIC)}
    errors = mean_absolute_errors(validation_errors(pairs, "share", forms)).set_index("form")
    assert errors.loc["fractional logit", "model_error"] <= 0.039
    assert errors.loc["mechanistic", "model_error"] <= 0.032
    assert (errors["rate_error"] <= 0.032).all()


def test_twice_the_cards_change_the_odds_by_the_sum_of_two_coefficients(pairs):
    fit = fit_fractional_logit(pairs)
    row = count_effect(fit, [8.0]).iloc[0]
    assert np.isclose(np.exp(fit.coefficients[2] + 3 * fit.coefficients[3]), row["factor"])
    assert row["n_models"] == 3
    assert row["low"] < row["factor"] < row["high"]


def test_curves_have_no_band_where_one_model_ran(pairs):
    curves = share_curves(pairs, fit_fractional_logit(pairs), [2, 8], [4.0, 11.0])
    assert curves.set_index("gpu_count")["band_low"].isna().to_dict() == {2: False, 8: True}
