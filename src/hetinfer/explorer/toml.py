"""A scenario as the demand file that `hetinfer plan` reads."""

import base64
import math

import pandas as pd

from hetinfer.explorer.scenario import H100, RTX_4090, Scenario
from hetinfer.values import rounded

NO_TARGET_S = 60.0  # a demand file needs one: work without a target may wait a minute
MOST_COPIES = 100
TOML = """\
# A scenario of the explorer, as hetinfer plan reads it. Prices are the chosen ones; lengths are the
# means of the model's recorded runs.
model = "{model}"
region = "{region}"
objective = "cost"

[usd_per_gpu_h]
{h100} = {h100_usd_per_h}
{rtx_4090} = {rtx_4090_usd_per_h}

[[class]]
name = "served"
prompt_tokens = {prompt_tokens}
output_tokens = {output_tokens}
ttft_target_s = {ttft_target_s}
requests_per_s = {rate}
"""
CONFIGURATION = """
[[configuration]]
gpu = "{gpu}"
gpus = {gpus}
most = {most}
"""


def scenario_toml(cells: pd.DataFrame, scenario: Scenario) -> str:
    """The scenario as TOML: its model's lengths and configurations, its prices, rate and target.

    `cells` is `load_cells`. The file says what was chosen; the plan decides how many of which.
    """
    chosen = cells[cells["model"] == scenario.model]
    prompts = chosen["prompts"].sum()
    target_s = NO_TARGET_S if math.isinf(scenario.ttft_target_s) else scenario.ttft_target_s
    head = TOML.format(
        model=scenario.model,
        region=scenario.region,
        h100=H100,
        rtx_4090=RTX_4090,
        h100_usd_per_h=rounded(scenario.h100_usd_per_h, 2),
        rtx_4090_usd_per_h=rounded(scenario.rtx_4090_usd_per_h, 2),
        prompt_tokens=rounded(chosen["input_tokens"].sum() / prompts, 0),
        output_tokens=rounded(chosen["output_tokens"].sum() / prompts, 0),
        ttft_target_s=rounded(target_s, 3),
        rate=rounded(scenario.rate_requests_per_s, 2),
    )
    return head + "".join(_configuration(*key, scenario) for key in _kinds(chosen))


def download_html(cells: pd.DataFrame, scenario: Scenario) -> str:
    """A link that saves the scenario as `scenario.toml`; the file is in the link itself."""
    payload = base64.b64encode(scenario_toml(cells, scenario).encode()).decode()
    return (
        f'<p><a download="scenario.toml" href="data:application/toml;base64,{payload}">'
        "Save this scenario as scenario.toml</a>, which <code>hetinfer plan scenario.toml</code> "
        "turns into a fleet.</p>"
    )


def _kinds(chosen: pd.DataFrame) -> list[tuple[str, int]]:
    kinds = chosen[["gpu", "gpu_count"]].drop_duplicates().sort_values(["gpu", "gpu_count"])
    return [(str(gpu), int(count)) for gpu, count in kinds.itertuples(index=False)]


def _configuration(gpu: str, gpus: int, scenario: Scenario) -> str:
    text = CONFIGURATION.format(gpu=gpu, gpus=gpus, most=MOST_COPIES)
    if gpu == RTX_4090:
        text += f"available_frac = {rounded(scenario.available_frac, 2)}\n"
    return text
