import sys
import venv

import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.roofline import Roofline, measure_roofline, roofline_text


def test_an_interpreter_that_is_missing_or_has_no_torch_is_named(tmp_path):
    with pytest.raises(InputError, match="no interpreter"):
        measure_roofline(tmp_path / "python")
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    with pytest.raises(InputError, match="No module named 'torch'"):
        measure_roofline(folder / "bin" / "python")


def test_the_profile_prints_as_json_with_units_in_its_names():
    found = Roofline("cpu", "CPU", "2", {"float16": 1.0}, 2.0, 3.0, 1, "", {})
    assert '"copy_bytes_per_s": 2.0' in roofline_text(found)
    assert sys.modules.get("torch") is None
