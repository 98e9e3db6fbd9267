"""What `make calibrate` writes and every chapter reads: lengths and engines fitted to the study.

`data/fitted/lengths.csv` has one row a reconstruction, model and request; `engines.json` one engine
a reconstruction and configuration, and the SHA-256 of the tables that both were made from.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import Gpu, LanguageModel, load_table
from hetinfer.paths import data_dir, root_dir, sha256_of, write_atomically
from hetinfer.runs import CONFIGURATION, load_recorded
from hetinfer.simulation.calibration import Fit, fit_configuration, select_runs
from hetinfer.simulation.engine import Engine, FrontEnd
from hetinfer.simulation.lengths import reconstruct_base, reconstruct_model
from hetinfer.simulation.prediction import predict_engine
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Lengths

INPUTS = ("data/recorded/runs.csv", "data/reference/gpus.csv", "data/reference/models.csv")
RECONSTRUCTIONS = (1, 2)  # seeds
DEFAULT_LENGTHS = (
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"  # answered (nearly) everything to the end
)
BASE_PROPOSALS = 2500  # a round of annealing, stage 1
MODEL_PROPOSALS = 2500  # and stage 2


@dataclass(frozen=True)
class Calibration:
    """One reconstruction: each model's lengths, and an engine a configuration."""

    reconstruction: int
    lengths: Mapping[str, Lengths]
    fits: tuple[Fit, ...]

    @property
    def cost(self) -> float:
        """Sum of all fits' costs: what tells the better reconstruction."""
        return sum(fit.cost for fit in self.fits)


def calibrate(seed: int, base_proposals: int, model_proposals: int) -> Calibration:
    """Reconstruct the study's lengths and fit all its configurations, from one seed."""
    runs = load_recorded()
    rng = np.random.default_rng(seed)
    base = reconstruct_base(runs, rng, base_proposals)
    lengths = {
        model: reconstruct_model(own, base, rng, model_proposals)
        for model, own in runs.groupby("model")
    }
    fits = tuple(
        fit_configuration(own, lengths[keys[0]]) for keys, own in runs.groupby(CONFIGURATION)
    )
    return Calibration(seed, lengths, fits)


def calibrate_all(
    jobs: int, base_proposals: int = BASE_PROPOSALS, model_proposals: int = MODEL_PROPOSALS
) -> list[Calibration]:
    """Every reconstruction, in parallel processes; the best by cost first."""
    run = joblib.delayed(calibrate)
    found = joblib.Parallel(n_jobs=jobs)(
        run(seed, base_proposals, model_proposals) for seed in RECONSTRUCTIONS
    )
    return sorted(found, key=lambda calibration: calibration.cost)


def save_calibrations(calibrations: list[Calibration], folder: Path) -> None:
    """Write `lengths.csv` and `engines.json`, atomically, with the hashes of the inputs."""
    tables = [
        pd.DataFrame(
            {
                "reconstruction": calibration.reconstruction,
                "model": model,
                "request": np.arange(lengths.prompt_tokens.size),
                "prompt_tokens": lengths.prompt_tokens,
                "output_tokens": lengths.output_tokens,
            }
        )
        for calibration in calibrations
        for model, lengths in calibration.lengths.items()
    ]
    write_atomically(folder / "lengths.csv", pd.concat(tables).to_csv(index=False))
    fits = [
        {"reconstruction": calibration.reconstruction, **asdict(fit)}
        for calibration in calibrations
        for fit in calibration.fits
    ]
    content = {"inputs": _input_hashes(), "fits": fits}
    write_atomically(folder / "engines.json", json.dumps(content, indent=1, allow_nan=False) + "\n")


def load_calibrations(folder: Path | None = None) -> list[Calibration]:
    """The saved reconstructions, the best by cost first.

    InputError when there are none, or when the recorded runs are not those that were fitted.
    """
    source = folder or data_dir("fitted")
    path = source / "engines.json"
    if not path.is_file():
        raise _fitted_error("no fits", "no file", path)
    content = json.loads(path.read_text())
    if content["inputs"][INPUTS[0]] != _input_hashes()[INPUTS[0]]:
        raise _fitted_error("fits of other runs", f"another {INPUTS[0]}", path)
    lengths = load_table(source / "lengths.csv")
    calibrations = [
        Calibration(
            number,
            {model: _lengths(rows) for model, rows in own.groupby("model")},
            tuple(_fit(row) for row in content["fits"] if row["reconstruction"] == number),
        )
        for number, own in lengths.groupby("reconstruction")
    ]
    return sorted(calibrations, key=lambda calibration: calibration.cost)


def refit_difference_frac(fit: Fit, lengths: Lengths) -> float:
    """How far the cost of a fit made anew is from the saved one's: |new / saved - 1|.

    The check that the saved engines come from these runs and this code.
    """
    runs = select_runs(load_recorded(), fit.model, fit.gpu, fit.gpu_count)
    return abs(fit_configuration(runs, lengths).cost / fit.cost - 1)


def serving_engine(
    calibration: Calibration, model: LanguageModel, gpu: Gpu, gpu_count: int
) -> tuple[Engine, bool]:
    """The engine to simulate a configuration with, and whether it was fitted to runs of its own.

    Where it was not, it is predicted from the card's constants and the model's figures.
    """
    keys = (model.model, gpu.gpu, gpu_count)
    for fit in calibration.fits:
        if (fit.model, fit.gpu, fit.gpu_count) == keys:
            return fit.engine, True
    return predict_engine(model, gpu, gpu_count, calibration.fits), False


def serving_lengths(calibration: Calibration, model: LanguageModel) -> Lengths:
    """The model's reconstructed lengths, or of a model unknown to the study, another's."""
    return calibration.lengths.get(model.model, calibration.lengths[DEFAULT_LENGTHS])


def _lengths(rows: pd.DataFrame) -> Lengths:
    ordered = rows.sort_values("request")
    return Lengths(
        ordered["prompt_tokens"].to_numpy(np.int64), ordered["output_tokens"].to_numpy(np.int64)
    )


def _fit(row: Mapping[str, object]) -> Fit:
    values = {name: value for name, value in row.items() if name != "reconstruction"}
    parts = dict(values.pop("engine"))  # type: ignore[call-overload]
    parts["step_time"] = StepTime(**parts["step_time"])
    parts["front_end"] = FrontEnd(**parts["front_end"])
    return Fit(engine=Engine(**parts), **values)  # type: ignore[arg-type]


def _input_hashes() -> dict[str, str]:
    return {name: sha256_of(root_dir() / name) for name in INPUTS}


def _fitted_error(what: str, got: str, path: Path) -> InputError:
    return InputError(
        what, got=got, expected="fits of these runs", where=path, do="run make calibrate"
    )
