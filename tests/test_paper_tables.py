import pandas as pd
import pytest

from hetinfer import paper_tables
from hetinfer.errors import InputError
from hetinfer.paths import data_dir

RATES = pd.DataFrame(
    {
        "gpu_count": [2, 4, 2, 8],
        "rate_requests_per_s": [1.0, 1.0, 32.0, 1.0],
        "share": [0.99, 1.0, 0.5149, 1.0],
        "low": [0.98, 0.99, 0.4573, None],
        "high": [1.0, 1.01, 0.573, None],
        "n_models": [3, 2, 3, 1],
    }
)


def test_a_share_is_a_percentage_with_its_interval_and_one_model_has_no_column():
    table = paper_tables.shares_table(RATES[RATES["gpu_count"] != 4])
    assert ["rate", "2x 4090 (3 models)"] == table[0]
    assert ["32", "51.5 (45.7 to 57.3)"] == table[2]


def test_chosen_pairs_are_counted_over_rates_with_and_without_a_target():
    ranked = pd.DataFrame(
        {
            "scenario": "now",
            "ttft_target_s": [float("inf"), float("inf"), 0.5, 0.2],
            "gpu_count": 2,
            "chosen": [3, 1, 0, 9],
            "n_pairs": [3, 3, 3, 9],
        }
    )
    table = paper_tables.prices_table(ranked)
    assert [["now", "none", "4 of 6"], ["now", "500 ms", "0 of 3"]] == table[1:]


def test_rates_within_a_target_are_all_some_or_none():
    within = pd.DataFrame(
        {
            "model": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
            "gpu": ["h100-pcie", "rtx-4090"],
            "gpu_count": [1, 2],
            "within_55_ms": ["1, 4", None],
            "within_2000_ms": ["1, 4, 8", "1"],
        }
    )
    table = paper_tables.targets_table(within)
    assert ["Qwen-14B", "1x H100", "1, 4", "all"] == table[1]
    assert ["Qwen-14B", "2x 4090", "–", "1"] == table[2]


def test_regions_are_counted_by_pair():
    regions = pd.DataFrame(
        {
            "model": "m",
            "gpu_count": [1, 1, 1, 1, 2, 2],
            "rate_requests_per_s": [1.0, 1.0, 4.0, 4.0, 1.0, 1.0],
            "verdict": ["cleaner", "cleaner", "cleaner", "open", "open", "dirtier"],
        }
    )
    table = paper_tables.regions_table(regions)
    assert [["1x 4090", "2", "1", "1", "0"], ["2x 4090", "1", "0", "0", "1"]] == table[1:]


def test_errors_of_the_simulator_are_those_at_rates_that_no_fit_saw():
    errors = pd.DataFrame(
        {
            "group": "one card",
            "set": ["fitted", *["validation"] * 4],
            "statistic": [next(iter(paper_tables.STATISTICS)), *paper_tables.STATISTICS],
            "median_frac": [0.5, 0.0065, 0.01, 0.0384, 0.0292],
        }
    )
    table = paper_tables.simulator_table(errors)
    assert [["one card", "0.6", "1.0", "3.8", "2.9"]] == table[1:]


def test_capacity_under_an_assumption_is_over_the_fitted_one():
    sensitivity = pd.DataFrame(
        {
            "gpu": ["h100-pcie", "h100-pcie", "rtx-4090", "rtx-4090"],
            "gpu_count": [1, 1, 4, 4],
            "assumption": ["as fitted", "longer", "as fitted", "longer"],
            "ratio": [1.0, 0.8548, 1.0, 0.921],
        }
    )
    table = paper_tables.sensitivity_table(sensitivity)
    assert ["assumption", "1x H100", "4x 4090"] == table[0]
    assert ["longer", "0.85", "0.92"] == table[2]


def test_every_table_of_the_paper_is_made_from_the_expected_ones(tmp_path):
    (tmp_path / "tables").symlink_to(data_dir("expected") / "tables")
    tables = paper_tables.load_paper_tables(tmp_path)
    assert set(paper_tables.PAPER_TABLES) == set(tables)
    assert all({len(row) for row in table} == {len(table[0])} for table in tables.values())


def test_a_table_that_no_chapter_saved_is_named(tmp_path):
    with pytest.raises(InputError, match=r"run_order\.csv"):
        paper_tables.load_paper_tables(tmp_path)
