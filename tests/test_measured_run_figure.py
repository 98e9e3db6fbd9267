import numpy as np
import pandas as pd

from hetinfer.figures.measured_run import draw_measured_run

TIMELINE = pd.DataFrame(
    {
        "intended_s": np.arange(5.0),
        "start_s": np.arange(5.0),
        "ttft_s": 0.1,
        "ttft_from_intended_s": 0.12,
        "tpot_s": 0.02,
    }
)
STEPS = pd.DataFrame({"time_s": [0.5, 1.5], "throughput_tokens_per_s": [10.0, np.nan]})
POWER = pd.DataFrame(
    {"time_s": [0.0, 1.0] * 2, "device": ["gpu0"] * 2 + ["gpu1"] * 2, "power_w": [300.0] * 4}
)


def test_a_run_without_power_says_why_in_its_panel():
    figure = draw_measured_run(TIMELINE, STEPS, POWER.head(0), power_reason="no-driver")
    assert "not measured: no-driver" in [text.get_text() for text in figure.axes[3].texts]


def test_a_run_with_power_has_a_line_a_device():
    figure = draw_measured_run(TIMELINE, STEPS, POWER, power_reason="")
    assert [line.get_label() for line in figure.axes[3].lines] == ["gpu0", "gpu1"]
    assert "evidence: measured; n = 5 requests" in figure.get_supxlabel()
    assert figure.axes[0].get_ylabel() == "TTFT (s)"
