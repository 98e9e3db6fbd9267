import json

import pytest

from hetinfer.errors import InputError
from hetinfer.sources import check_sources, report_text
from result_files import write_study

PHI = "vllm_200prompts8qps_phi-4_sharegpt_1xNVIDIA-H100-PCIe.json"
PHI_RUN = "phi-4/1xh100-pcie/8qps/r1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_study(folder)
    return folder


@pytest.fixture
def one(whole, tmp_path):
    (tmp_path / PHI).write_bytes((whole / PHI).read_bytes())
    return tmp_path / PHI


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_files_made_again_from_the_recorded_runs_have_the_recorded_hashes(whole):
    check = check_sources(whole)
    assert check.agrees
    assert (120, 130, (), (), ()) == (
        check.files,
        check.rows,
        check.missing,
        check.changed,
        check.differing,
    )
    assert "120 files and 130 runs compared: all agree" == report_text(check)


def test_missing_files_are_named_and_the_rest_compared(one):
    check = check_sources(one.parent)
    assert (1, 1, 119) == (check.files, check.rows, len(check.missing))
    assert not check.agrees
    assert PHI not in check.missing
    assert not (check.changed or check.differing)


def test_other_files_are_left_alone(one):
    (one.parent / "notes.json").write_text("not a result")
    assert not check_sources(one.parent).changed


def test_a_changed_value_is_found_in_file_and_run(one):
    change(one, date="20250610-000000")
    check = check_sources(one.parent)
    assert ["sha256"] == [difference.what for difference in check.changed]
    (difference,) = check.differing
    assert (PHI_RUN, "started", "2025-06-10T00:00:00") == (
        difference.where,
        difference.what,
        difference.got,
    )


def test_a_change_in_the_last_digit_is_found(one):
    duration_s = json.loads(one.read_text())["duration"]
    change(one, duration=duration_s + 1e-13)
    assert ["duration_s"] == [it.what for it in check_sources(one.parent).differing]


def test_a_file_cut_short_is_changed_and_its_run_differs(one):
    one.write_bytes(one.read_bytes()[:-100])
    check = check_sources(one.parent)
    assert ["sha256", "bytes", "records"] == [it.what for it in check.changed]
    assert ["runs"] == [it.what for it in check.differing]
    assert f"differs: {PHI}: bytes is" in report_text(check)


def test_a_run_under_another_model_is_one_missing_and_one_too_many(one):
    change(one, model_id="microsoft/phi-5")
    found = {it.where: it.got for it in check_sources(one.parent).differing}
    assert {PHI_RUN: "missing", "phi-5/1xh100-pcie/8qps/r1": "there"} == found


def test_a_folder_without_any_of_the_files_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"none of the study's files"):
        check_sources(tmp_path)
