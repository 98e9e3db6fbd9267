"""How sure a number is: noise of one run, and intervals for few clusters."""

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.runs import CELL


def replicate_noise(runs: pd.DataFrame, column: str) -> float:
    """Relative standard deviation of one run's `column`, from runs of one cell made twice or more.

    s = sqrt( sum over cells and replicates (ln x - cell's mean ln x)^2 / sum (replicates - 1) ),
    which for pairs is the root mean square of ln(x2/x1) over sqrt 2. Dimensionless; 0.003 is 0.3 %.
    Raises InputError when no cell has two runs, or a value is not positive and finite.
    """
    repeated = runs[runs.duplicated(CELL, keep=False)]
    if repeated.empty:
        raise _noise_error("no replicates", "every cell once", "a cell with two runs or more")
    if column not in repeated:
        raise _noise_error("unknown column", repr(column), "a numeric column of the frame of runs")
    values = repeated[column].to_numpy(dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise _noise_error(f"{column} of replicates", values.min(), "finite values above 0")
    logs = pd.Series(np.log(values), index=repeated.index)
    cells = [repeated[name] for name in CELL]
    deviations = logs - logs.groupby(cells).transform("mean")
    freedom = len(logs) - logs.groupby(cells).ngroups
    return float(np.sqrt((deviations**2).sum() / freedom))


def _noise_error(what: str, got: object, expected: str) -> InputError:
    return InputError(
        what, got=got, expected=expected, where="replicate_noise", do="pass every replicate's row"
    )
