"""A scenario as the demand file that `hetinfer plan` reads."""

import base64
import math

import pandas as pd

from hetinfer.explorer.scenario import H100, RTX_4090, Scenario
from hetinfer.explorer.traffic import Traffic, traffic_of
from hetinfer.values import rounded

MOST_COPIES = 100
TOML = """\
# A scenario of the explorer, as hetinfer plan reads it. Prices, targets and the mix of classes are
# the chosen ones; chat and batch have the mean lengths of the model's recorded runs.
model = "{model}"
region = "{region}"
objective = "cost"

[usd_per_gpu_h]
{h100} = {h100_usd_per_h}
{rtx_4090} = {rtx_4090_usd_per_h}
"""
CLASS = """
[[class]]
name = "{name}"
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
    """The scenario as TOML: its model's configurations, its prices, and its traffic by class.

    `cells` is `load_cells`. The file says what was chosen; the plan decides how many of which.
    InputError for a mix without traffic.
    """
    chosen = cells[cells["model"] == scenario.model]
    head = TOML.format(
        model=scenario.model,
        region=scenario.region,
        h100=H100,
        rtx_4090=RTX_4090,
        h100_usd_per_h=rounded(scenario.h100_usd_per_h, 2),
        rtx_4090_usd_per_h=rounded(scenario.rtx_4090_usd_per_h, 2),
    )
    classes = [_class(traffic) for traffic in traffic_of(cells, scenario)]
    return head + "".join([*classes, *(_configuration(*key, scenario) for key in _kinds(chosen))])


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


def _class(traffic: Traffic) -> str:
    text = CLASS.format(
        name=traffic.name,
        prompt_tokens=traffic.prompt_tokens,
        output_tokens=traffic.output_tokens,
        ttft_target_s=rounded(traffic.ttft_target_s, 3),
        rate=rounded(traffic.requests_per_s, 4),
    )
    if math.isinf(traffic.tpot_target_s):
        return text
    return text + f"tpot_target_s = {rounded(traffic.tpot_target_s, 3)}\n"


def _configuration(gpu: str, gpus: int, scenario: Scenario) -> str:
    text = CONFIGURATION.format(gpu=gpu, gpus=gpus, most=MOST_COPIES)
    if gpu == RTX_4090:
        text += f"available_frac = {rounded(scenario.available_frac, 2)}\n"
    return text
