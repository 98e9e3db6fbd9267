import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hetinfer.cli import main
from hetinfer.paths import data_dir, root_dir
from hetinfer.runs import load_runs
from result_files import study_generation, today, write, write_study

FULL = Path("/dev/full")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A clone with the reference tables alone, so that campaigns go nowhere else."""
    reference = data_dir("reference")
    (tmp_path / "clone" / "data" / "recorded").mkdir(parents=True)
    (tmp_path / "clone" / "data" / "reference").symlink_to(reference)
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path / "clone"))
    return tmp_path / "clone"


@pytest.fixture
def hetinfer(capsys, monkeypatch):
    """Runs the command line within this process: exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hetinfer", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def refused(hetinfer):
    """Runs what must be refused: the one line that a user's mistake gives."""

    def run(*arguments):
        code, output, errors = hetinfer(*arguments)
        assert (2, "") == (code, output)
        assert errors.startswith("hetinfer: ")
        assert 1 == errors.count("\n")
        return errors

    return run


def start(*arguments, **options):
    """Starts the command line as a process of its own."""
    command = [sys.executable, "-m", "hetinfer", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, **pipes)


def ended(process):
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def seconds_of_the_day(number):
    return f"20250610-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}"


# import


def test_import_says_what_it_read_and_that_nothing_is_written(hetinfer, tmp_path):
    write(tmp_path / "a.json", study_generation())
    code, output, errors = hetinfer("import", tmp_path)
    assert (0, "") == (code, errors)
    assert "runs: 1, from 1 files" in output
    assert "nothing is written" in output
    assert ["a.json"] == names(tmp_path)


def test_import_writes_a_table(hetinfer, tmp_path):
    write(tmp_path / "in" / "a.json", study_generation(gpu_count=None))
    target = tmp_path / "out" / "runs.csv"
    options = ["--gpu-count", 8, "--engine-version", "0.10", "--dataset", "sonnet"]
    code, output, _ = hetinfer("import", tmp_path / "in", "--output", target, *options)
    (run,) = load_runs(target).to_dict("records")
    assert (0, 8, "0.10", "sonnet", "measured") == (
        code,
        run["gpu_count"],
        run["engine_version"],
        run["dataset"],
        run["evidence"],
    )
    assert str(target) in output


def test_import_adds_to_a_campaign_only_what_is_new(hetinfer, refused, tmp_path, root):
    first = write(tmp_path / "a.json", study_generation())
    second = write(tmp_path / "b.json", today())
    table = root / "data" / "measured" / "mine" / "runs.csv"
    assert 0 == hetinfer("import", first, "--campaign", "mine")[0]
    assert 0 == hetinfer("import", second, "--campaign", "mine")[0]
    assert 2 == len(load_runs(table))
    before = table.read_bytes()
    assert "duplicate run" in refused("import", first, "--campaign", "mine")
    assert before == table.read_bytes()


@pytest.mark.parametrize("name", ["../mine", "a/b", ".", "..", "/tmp"])
def test_import_to_a_campaign_that_is_no_plain_name_is_refused(refused, tmp_path, root, name):
    write(tmp_path / "a.json", study_generation())
    assert "campaign name" in refused("import", tmp_path, "--campaign", name)
    assert not (root / "data" / "measured").exists()


def test_import_to_two_places_or_to_another_kind_of_file_is_refused(refused, tmp_path):
    write(tmp_path / "a.json", study_generation())
    refused("import", tmp_path, "--campaign", "a", "--output", tmp_path / "a.csv")
    refused("import", tmp_path, "--output", tmp_path / "a.parquet")
    assert ["a.json"] == names(tmp_path)


def test_an_empty_folder_is_refused(refused, tmp_path):
    assert "empty folder" in refused("import", tmp_path)


@pytest.mark.parametrize(
    ("text", "what"),
    [('{"date": "2025', "unreadable file"), ('{"a": 1}', "no result of a serving benchmark")],
)
def test_truncated_or_foreign_json_is_refused(refused, tmp_path, text, what):
    (tmp_path / "bad.json").write_text(text)
    errors = refused("import", tmp_path, "--output", tmp_path / "runs.csv")
    assert what in errors
    assert "bad.json" in errors
    assert ["bad.json"] == names(tmp_path)


def test_a_negative_duration_is_refused(refused, tmp_path):
    write(tmp_path / "a.json", study_generation(duration=-2.0))
    assert "duration: got -2.0" in refused("import", tmp_path)


def test_an_unknown_gpu_is_refused_with_the_known_ones(refused, tmp_path):
    write(tmp_path / "a.json", study_generation(gpu_name="Voodoo 2"))
    errors = refused("import", tmp_path)
    assert "h100-pcie" in errors
    assert "add a row" in errors


def test_a_duplicate_run_is_refused_and_both_files_are_named(refused, tmp_path):
    write(tmp_path / "a.json", study_generation())
    write(tmp_path / "b.json", study_generation())
    errors = refused("import", tmp_path)
    assert "a.json" in errors
    assert "b.json" in errors


def test_one_bad_file_of_a_thousand_is_named_or_skipped(hetinfer, refused, tmp_path):
    for number in range(1000):
        record = study_generation(date=seconds_of_the_day(number))
        write(tmp_path / "in" / f"{number:03}.json", record)
    write(tmp_path / "in" / "567.json", study_generation(completed=5))
    target = tmp_path / "runs.csv"
    errors = refused("import", tmp_path / "in", "--output", target)
    assert "567.json" in errors
    assert not target.exists()
    arguments = ["import", tmp_path / "in", "--output", target, "--skip-bad"]
    code, output, errors = hetinfer(*arguments)
    assert 0 == code
    assert "runs: 999, from 999 files" in output
    assert errors.startswith("skipped: completed requests")
    assert "567.json" in errors
    assert 999 == len(load_runs(target))


# verify-sources


def test_verify_sources_agrees_with_the_study_s_files(hetinfer, tmp_path):
    write_study(tmp_path)
    code, output, errors = hetinfer("verify-sources", tmp_path)
    assert (0, "120 files and 130 runs compared: all agree\n", "") == (code, output, errors)


def test_verify_sources_names_each_difference(hetinfer, tmp_path):
    first, second, *_ = write_study(tmp_path)
    first.unlink()
    second.write_text(second.read_text().replace("vllm", "tgi"))
    code, output, _ = hetinfer("verify-sources", tmp_path)
    assert 1 == code
    assert f"missing: {first.name}" in output
    assert f"differs: {second.name}: sha256" in output
    assert "engine is tgi, recorded vllm" in output


def test_verify_sources_of_another_folder_is_refused(refused, tmp_path):
    assert "none of the study's files" in refused("verify-sources", tmp_path)


# Every command


def test_without_arguments_the_commands_are_listed(hetinfer):
    code, output, errors = hetinfer()
    assert (0, "") == (code, errors)
    assert "verify-sources" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["import"],
        ["bogus"],
        ["import", ".", "--gpu-count", "many"],
        ["import", ".", "--gpu-count", "0"],
        ["import", ".", "--bogus"],
        ["import", "/nowhere/at-all"],
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(refused, arguments):
    refused(*arguments)


def test_a_target_that_cannot_be_written_is_named(refused, tmp_path):
    path = write(tmp_path / "a.json", study_generation())
    assert str(path / "runs.csv") in refused("import", path, "--output", path / "runs.csv")


def test_the_module_is_the_command_line(tmp_path):
    (tmp_path / "a.json").write_text("{")
    code, output, errors = ended(start("import", tmp_path))
    assert (2, "", 1) == (code, output, errors.count("\n"))


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is full")
def test_a_full_disk_is_said_in_one_line(tmp_path):
    write(tmp_path / "a.json", study_generation())
    with FULL.open("w") as full:
        code, _, errors = ended(start("import", tmp_path, stdout=full))
    assert (2, "hetinfer: No space left on device: standard output\n") == (code, errors)


def test_a_reader_that_goes_away_is_no_error_to_talk_about(tmp_path):
    write(tmp_path / "a.json", study_generation())
    reading, writing = os.pipe()
    os.close(reading)
    process = start("import", tmp_path, stdout=writing)
    os.close(writing)
    code, _, errors = ended(process)
    assert (1, "") == (code, errors)


def test_an_interrupt_ends_with_130(tmp_path):
    os.mkfifo(tmp_path / "endless.json")
    process = start("import", tmp_path)
    with (tmp_path / "endless.json").open("w"):  # opens once the process reads it
        process.send_signal(signal.SIGINT)
        assert (130, "", "") == ended(process)


QWEN_14B = ["--model", "DeepSeek-R1-Distill-Qwen-14B"]


def test_share_prints_estimates_with_interval_and_evidence(hetinfer):
    code, output, _ = hetinfer("share", *QWEN_14B, "--rate", 16, "--gpus", 4)
    assert code == 0
    assert output.splitlines()[0].startswith("recorded ")
    assert output.count("evidence: recorded") == len(output.splitlines()) == 5


def test_cost_prints_the_studys_cost_and_another_at_another_price(hetinfer):
    cell = [*QWEN_14B, "--gpu", "rtx-4090", "--rate", 16, "--gpus", 4]
    _, output, _ = hetinfer("cost", *cell)
    _, dearer, _ = hetinfer("cost", *cell, "--price", "rtx-4090=0.50")
    assert "0.139" in output.splitlines()[0]
    assert "0.278" in dearer.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rate", 64, "--gpus", 4], "rate outside the measured ones"),
        (["--rate", 8, "--gpus", 0], "GPU count outside the measured ones"),
        (["--rate", "nan", "--gpus", 4], "rate outside the measured ones"),
    ],
)
def test_share_of_what_no_run_brackets_is_refused(refused, options, reason):
    assert reason in refused("share", *QWEN_14B, *options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gpu", "banana"], "unknown GPU"),
        (["--gpu", "a100-sxm"], "GPU without runs"),
        (["--gpu", "rtx-4090", "--price", "rtx-4090"], "price not understood"),
        (["--gpu", "rtx-4090", "--price", "rtx-4090=-1"], "price not positive"),
        (["--gpu", "rtx-4090", "--scenario", "gold"], "unknown price scenario"),
    ],
)
def test_cost_without_a_usable_gpu_or_price_is_refused(refused, options, reason):
    assert reason in refused("cost", *QWEN_14B, "--rate", 8, "--gpus", 2, *options)


def test_simulate_and_capacity_print_what_an_engine_does(hetinfer):
    engine = ["--model", "DeepSeek-R1-Distill-Qwen-14B", "--gpu", "h100-pcie", "--requests", "500"]
    code, output, _ = hetinfer("simulate", *engine, "--rate", "4")
    assert code == 0
    assert "evidence simulated" in output
    code, output, _ = hetinfer("capacity", *engine, "--seeds", "1", "--ttft-p99-ms", "300")
    assert code == 0
    assert "cold (new prompts)" in output


def test_simulating_what_cannot_be_is_refused(refused):
    model = ["--model", "Meta-Llama-3-70B-Instruct", "--gpu", "rtx-4090", "--rate", "1"]
    assert "does not fit" in refused("simulate", *model)
    model[1] = "DeepSeek-R1-Distill-Qwen-7B"
    assert "run too short" in refused("simulate", *model, "--requests", "5")
    assert "no arrivals" in refused("simulate", *model[:-1], "0")


# plan and fleet


EXAMPLE = root_dir() / "notebooks" / "demand.toml"
FLEET = ["--copies", "rtx-4090=2", "--hour", "3", "--duration-s", "10"]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46,374,44\n"
# what is changed in the example's text, and what the line says of it
BAD_DEMANDS = [
    ("[[class]]", "[[class", "demand file unreadable"),
    ('objective = "cost"', 'objectives = "cost"', "unknown objectives"),
    ("most = 20 ", "mots = 20 ", "unknown mots"),
    ("ttft_target_s = 0.5       #", "#", "class without target"),
    ("# [usd_per_gpu_h]", '[usd_per_gpu_h]\n"rtx-4090" = -0.3 #', "price not positive: got -0.3"),
    ("# [usd_per_gpu_h]", '[usd_per_gpu_h]\n"rtx-4090" = "cheap" #', "rtx-4090: got 'cheap'"),
    ("daily_peak_requests_per_s = 3.0", "requests_per_s = -3.0", "requests_per_s: got -3.0"),
    ("daily_peak_requests_per_s = 3.0", "daily_peak_requests_per_s = -3", "got -3, expected 0"),
    ("  12, 12, 12, 12, 12, 12, 8,", "  12, 12, 12, 12, 12, 8,", "got 23 numbers"),
    ('gpu = "rtx-4090"', 'gpu = "gtx-1"', "unknown GPU: got 'gtx-1', expected one of h100-pcie"),
    (
        'policy = "slo-aware"',
        'policy = "best"',
        "unknown policy: got 'best', expected one of one-t",
    ),
    ('prices = "study-2025"', 'prices = "now"', "unknown price scenario: got 'now', expected one"),
    ("most = 20 ", 'most = "many" ', "most: got 'many', expected a whole number"),
    ("gpus = 1\nmost = 20", "gpus = 0\nmost = 20", "gpus: got 0, expected a whole number of 1"),
    ('name = "agents"', 'name = "chat"', "class name: got chat twice"),
]


@pytest.fixture
def demand(tmp_path, monkeypatch):
    """Writes the example with some of its text changed, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)

    def write_changed(old, new):
        text = EXAMPLE.read_text()
        assert old in text
        (tmp_path / "demand.toml").write_text(text.replace(old, new))
        return "demand.toml"

    return write_changed


@pytest.mark.parametrize("command", [["plan"], ["fleet", *FLEET]], ids=["plan", "fleet"])
@pytest.mark.parametrize(("old", "new", "said"), BAD_DEMANDS, ids=[bad[2] for bad in BAD_DEMANDS])
def test_a_demand_that_is_wrong_is_refused_in_one_line(refused, demand, command, old, new, said):
    name, *options = command
    errors = refused(name, demand(old, new), *options)
    assert said in errors
    assert re.fullmatch(r"hetinfer: .+: got .+, expected .+, in .+; .+\n", errors)
    assert ["demand.toml"] == names(Path())


@pytest.mark.parametrize("command", [["plan"], ["fleet", *FLEET]], ids=["plan", "fleet"])
def test_a_demand_that_is_not_there_is_refused(refused, tmp_path, command):
    name, *options = command
    assert "no demand file" in refused(name, tmp_path / "none.toml", *options)
    assert "no demand file" in refused(name, tmp_path, *options)
    assert [] == names(tmp_path)


def test_more_demand_than_the_caps_allow_names_the_one_that_binds(refused, demand):
    path = demand("most = 20                 # copies that can be had", "most = 0")
    Path(path).write_text(Path(path).read_text().replace("most = 100", "most = 1"))
    errors = refused("plan", path, "--unchecked")
    assert "more demand than all caps allow" in errors
    assert "requests/s of agents at its peak, of which" in errors
    assert "what 0 of 1x H100, 1 of 1x 4090 can serve" in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "best"], "unknown policy: got 'best', expected one of one-tier, static"),
        (["--hour", "24"], "no such hour: got 24, expected 0 to 23"),
        (["--hour", "-1"], "no such hour: got -1"),
        (["--hour", "noon"], "--hour"),
        (["--copies", "rtx-4090:2=1"], "copies: got 'rtx-4090:2=1', expected CONFIGURATION=NUMBER"),
        (["--copies", "rtx-4090=few"], "with one of h100-pcie:1, rtx-4090:1"),
        (["--copies", "rtx-4090=99"], "expected at most 100 of rtx-4090:1"),
        (["--copies", "gtx-1=1"], "unknown GPU: got 'gtx-1'"),
        (["--duration-s", "nan"], "arrivals"),
        (["--duration-s", "inf"], "arrivals"),
        (["--seed", "-1"], "--seed"),
        (["--trace", "none.csv"], "table missing"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_in_one_line(refused, demand, options, said):
    assert said in refused("fleet", demand("most", "most"), *FLEET, *options)
    assert ["demand.toml"] == names(Path())


def test_a_fleet_without_a_copy_is_refused(refused):
    assert "expected at least one copy" in refused("fleet", EXAMPLE, "--copies", "rtx-4090=0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n", "columns missing: got GeneratedTo"),
        (f"{TRACE}{ROW}2023-11-16 18:15:40,1,1\n", "rows out of order: got row 3"),
        (f"{TRACE}{ROW}soon,1,1\n", "time unreadable: got row 3"),
        (f"{TRACE}{ROW}2023-11-16 18:15:50,many,1\n", "lengths unreadable: got row 3"),
        (f"{TRACE}", "table empty"),
        ("", "table unreadable"),
    ],
)
def test_a_trace_that_is_none_is_refused_in_one_line(refused, demand, text, said):
    path = demand("most", "most")
    Path("trace.csv").write_text(text)
    errors = refused("fleet", path, *FLEET, "--trace", "trace.csv")
    assert said in errors
    assert "trace.csv" in errors
    assert ["demand.toml", "trace.csv"] == names(Path())


@pytest.mark.parametrize("command", [["plan"], ["fleet", *FLEET]], ids=["plan", "fleet"])
def test_a_process_refuses_a_wrong_demand_without_a_traceback(tmp_path, command):
    (tmp_path / "demand.toml").write_text(EXAMPLE.read_text().replace("most = 20 ", "most = 'x' "))
    name, *options = command
    code, output, errors = ended(start(name, "demand.toml", *options, cwd=tmp_path))
    assert (2, "", 1) == (code, output, errors.count("\n"))
    assert "hetinfer: most: got 'x', expected a whole number of 0 or more, in demand.toml" in errors
    assert ["demand.toml"] == names(tmp_path)


def test_a_name_of_two_lines_is_told_in_one(refused, demand):
    assert "class a b" in refused("plan", demand('name = "chat"', 'name = "a\\nb"\nttft = 3'))
