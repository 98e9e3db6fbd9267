"""What the simulator says of the claims that a run of 200 prompts cannot settle.

It stands beside a claim, named as simulated. No verdict rests on it.
"""

from collections.abc import Mapping

import pandas as pd

from hetinfer.values import rounded

REQUESTS = 5000  # of each simulated run: enough for a 99th percentile in steady state
SEED = 42
# what is simulated, and the decimals it is told with; unit and value are the claim table's
SIDES: Mapping[str, tuple[str, int]] = {
    "S06": ("P99 TTFT at 16 requests/s", 0),
    "S14": ("four nodes whose hosts keep up, at 4 requests/s each", 1),
    "S15": ("those over the H100, both at 16 requests/s", 2),
    "S16": ("those nodes at 4 requests/s each", 3),
    "S17": ("achieved where 16 requests/s are offered", 1),
    "S18": ("highest rate that is followed", 1),
}


def load_simulated_sides(prices: Mapping[str, float]) -> dict[str, str]:
    """The simulated side of each claim that has one, as text, by id; a second's work.

    Of the saved fits of smaller cost, with new prompts and with repeated ones. Prices in USD per
    GPU-hour by GPU. InputError as `load_calibrations`.
    """
    # here, for its compiler takes as long to import as everything else together
    from hetinfer.simulation.fitted import load_calibrations
    from hetinfer.simulation.steady_state import claim_table

    best = load_calibrations()[0]
    return sides_text(claim_table(best, REQUESTS, SEED, dict(prices)))


def sides_text(table: pd.DataFrame) -> dict[str, str]:
    """Text by id from a table with the columns id, cold, warm and unit."""
    sides = {}
    for row in table.to_dict("records"):
        what, decimals = SIDES[row["id"]]
        cold, warm = (rounded(row[cache], decimals) for cache in ("cold", "warm"))
        sides[row["id"]] = f"{what}: {cold} {row['unit']} with new prompts, {warm} with repeated"
    return sides
