import matplotlib.pyplot as plt
import pandas as pd
import pytest

from hetinfer.figures.answer import draw_answer

TALLY = {
    "reproduced": 2, "reproduced-under-condition": 1, "not-reproduced": 3, "not-testable": 0,
    "claims": 6,
}  # fmt: skip
SHARES = pd.DataFrame(
    {
        "gpu_count": [1, 1, 8],
        "rate_requests_per_s": [1.0, 32.0, 1.0],
        "share": [0.99, 0.57, 1.0],
        "low": [0.98, 0.52, None],
        "high": [1.0, 0.62, None],
        "n_models": [4, 4, 1],
    }
)
COSTS = SHARES.rename(columns={"share": "cost_ratio"})


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def drawn():
    return draw_answer(SHARES, COSTS, TALLY).axes


def test_a_count_that_one_model_ran_is_no_line():
    share, cost, _ = drawn()
    for axis in (share, cost):
        assert ["1x 4090"] == [line.get_label() for line in axis.lines if "x " in line.get_label()]


def test_every_verdict_has_its_bar_and_its_number():
    bars = [patch.get_width() for patch in drawn()[2].patches]
    assert [2, 1, 3, 0] == bars
    assert ["2", "1", "3", "0"] == [text.get_text() for text in drawn()[2].texts]


def test_the_caption_names_evidence_and_size():
    text = draw_answer(SHARES, COSTS, TALLY).get_supxlabel()
    assert text.startswith("evidence: recorded, prices reference; n = 4 models at most, 6 claims")
