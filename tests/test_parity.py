import math

import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, find_model
from hetinfer.simulation.calibration import Fit, prior_engine
from hetinfer.simulation.parity import (
    cell_value,
    engine_table,
    error_table,
    small_models,
    statistic_errors,
    without_prefix_cache,
    worst_cells,
)

SMALL, LARGE = "microsoft/phi-4", "Qwen/QwQ-32B-Preview"
COLUMNS = ["model", "gpu", "gpu_count", "rate_requests_per_s", "statistic", "simulated", "recorded"]
PARITY = pd.DataFrame(
    [
        (SMALL, "h100-pcie", 1, 16.0, "tpot_p50_s", 1.02, 1.0),
        (SMALL, "h100-pcie", 1, 4.0, "tpot_p50_s", 0.96, 1.0),
        (LARGE, "h100-pcie", 1, 16.0, "tpot_p50_s", 1.5, 1.0),
        (SMALL, "rtx-4090", 2, 16.0, "tpot_p50_s", 0.5, 1.0),
        (SMALL, "h100-pcie", 1, 8.0, "tpot_p50_s", 9.0, 1.0),
        (SMALL, "h100-pcie", 1, 16.0, "itl_p99_s", 99.0, 1.0),
    ],
    columns=COLUMNS,
)
PARITY = PARITY.assign(
    error_frac=PARITY["simulated"] / PARITY["recorded"] - 1,
    set=["validation"] * 4 + ["fitted", "validation"],
)


def test_errors_are_counted_by_group_and_set():
    errors = error_table(PARITY).set_index(["group", "set"])
    one = errors.loc[("H100 x1, up to 14B", "validation")]
    assert (one["median_frac"], one["n"]) == (pytest.approx(0.03), 2)
    assert one["p90_frac"] == pytest.approx(0.038)
    assert errors.loc[("all but several 4090s", "validation"), "n"] == 3
    assert errors.loc[("several 4090s", "validation"), "median_frac"] == pytest.approx(0.5)
    assert errors.loc[("H100 x1, up to 14B", "fitted"), "median_frac"] == pytest.approx(8.0)


def test_worst_cells_are_those_of_validation_in_the_logarithm():
    worst = worst_cells(PARITY, 2)
    assert worst["simulated"].tolist() == [0.5, 1.5]  # halving is worse than one and a half


def test_errors_by_statistic_take_every_cell():
    errors = statistic_errors(PARITY)
    assert errors["statistic"].tolist() == ["tpot_p50_s"]
    assert errors["n"].item() == 5
    assert errors["median_frac"].item() == pytest.approx(0.5)


def test_a_cell_s_value_is_found_by_its_names():
    assert cell_value(PARITY, (SMALL, "h100-pcie", 1, 4.0), "tpot_p50_s") == 0.96
    with pytest.raises(InputError, match="no such cell"):
        cell_value(PARITY, (SMALL, "h100-pcie", 4, 4.0), "tpot_p50_s")


def test_engines_are_listed_in_ms_and_us_and_without_cache_only_that_changes():
    fits = [
        Fit(model, "h100-pcie", 1, prior_engine(find_model(model), find_gpu("h100-pcie"), 1), 1.0)
        for model in (SMALL, LARGE)
    ]
    table = engine_table(fits).set_index("model")
    assert math.isclose(table.loc[SMALL, "weights_ms"], 14.15 * 2 / 0.91 / 2000 * 1000)
    assert table.loc[SMALL, "token_us"] == pytest.approx(60)
    assert [fit.model for fit in small_models(fits)] == [SMALL]
    cold = without_prefix_cache(fits)
    assert not any(fit.engine.prefix_caching for fit in cold)
    assert cold[0].engine.step_time == fits[0].engine.step_time
