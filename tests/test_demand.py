import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.fleet.availability import NO_OUTAGES, Ownership, draw_outages
from hetinfer.fleet.demand import (
    ServiceClass,
    Workload,
    check_class,
    check_workload,
    daily_rates,
    hourly_workload,
    load_trace,
    spread_lengths,
    steady_workload,
)
from hetinfer.fleet.dispatch import BACK, GONE, NOTICE
from hetinfer.workload import fresh_requests

CHAT = ServiceClass("chat", spread_lengths(200, 200), 0.5)
EMBED = ServiceClass("embeddings", spread_lengths(500, 1), 2.0)
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_lengths_have_the_means_asked_for_and_an_embedding_one_token():
    assert CHAT.lengths.prompt_tokens.mean() == pytest.approx(200, rel=0.05)
    assert {1} == set(EMBED.lengths.output_tokens)
    assert spread_lengths(900, 900, longest=1000).prompt_tokens.max() == 1000


def test_steady_arrivals_come_at_their_rate_by_class_in_order():
    workload = steady_workload([CHAT, EMBED], [3.0, 9.0], 2000.0, np.random.default_rng(0))
    assert np.bincount(workload.service) == pytest.approx([6000, 18000], rel=0.05)
    assert (np.diff(workload.requests.arrival_s) >= 0).all()
    assert (workload.requests.output_tokens[workload.service == 1] == 1).all()


def test_bursty_arrivals_vary_as_their_burstiness_says():
    workload = steady_workload([CHAT], [5.0], 4000.0, np.random.default_rng(0), burstiness=0.25)
    gaps_s = np.diff(workload.requests.arrival_s)
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps_s.var() / gaps_s.mean() ** 2 == pytest.approx(4.0, rel=0.15)


def test_a_day_peaks_at_two_and_keeps_a_fifth_at_night():
    rates = daily_rates(10.0)
    assert 13 <= rates.argmax() <= 14
    assert rates.max() == pytest.approx(10.0, rel=0.02)
    assert rates.min() == pytest.approx(2.0, rel=0.1)


def test_hourly_arrivals_follow_each_hour():
    rates = np.array([[0.0, 4.0, 2.0]])
    workload = hourly_workload([CHAT], rates, np.random.default_rng(0), hour_s=1000.0)
    hours = np.floor(workload.requests.arrival_s / 1000.0).astype(int)
    assert np.bincount(hours, minlength=3) == pytest.approx([0, 4000, 2000], rel=0.1)


def test_a_trace_is_read_in_azures_format(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        f"{TRACE}2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.1805900,396,109\n"
    )
    workload = load_trace(path, CHAT)
    assert workload.requests.arrival_s.tolist() == pytest.approx([0.0, 3.5])
    assert [374, 396] == workload.requests.prompt_tokens.tolist()
    assert [44, 109] == workload.requests.output_tokens.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n", "columns missing: got GeneratedT"),
        (f"{TRACE}2023-11-16 18:15:50,1,1\n2023-11-16 18:15:46,1,1\n", "out of order: got row 3"),
        (f"{TRACE}2023-11-16 18:15:50,1,1\nsoon,1,1\n", "time unreadable: got row 3"),
        (f"{TRACE}2023-11-16 18:15:50,1,\n", "lengths unreadable: got row 2"),
        (f"{TRACE}2023-11-16 18:15:50,1,1.5\n", "lengths unreadable: got row 2"),
        (f"{TRACE}2023-11-16 18:15:50,1e300,1\n", "lengths unreadable: got row 2"),
        (f"{TRACE}1e9,1,1\n", "time unreadable: got row 2"),
        (f"{TRACE}2023-11-16 18:15:50Z,1,1\n2023-11-16 18:15:50+01:00,1,1\n", "got row 3 before"),
        (f"{TRACE}2023-11-16 18:15:50,1,0\n", "output_tokens: got 0"),
    ],
)
def test_a_trace_that_is_none_is_named(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_trace(path, CHAT)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (ServiceClass("x", CHAT.lengths, 0.0), "class x: ttft_target_s"),
        (ServiceClass("x", CHAT.lengths, 1.0, -1.0), "class x: tpot_target_s"),
        (ServiceClass("x", CHAT.lengths, 1.0, attainment_frac=1.2), "attainment_frac"),
    ],
)
def test_a_class_with_targets_that_are_none_is_named(service, said):
    with pytest.raises(InputError, match=said):
        check_class(service)


def test_demands_that_are_none_are_named():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="arrivals"):
        steady_workload([CHAT], [-1.0], 10.0, rng)
    with pytest.raises(InputError, match="no request"):
        steady_workload([CHAT], [0.0], 10.0, rng)
    with pytest.raises(InputError, match="hourly rates"):
        hourly_workload([CHAT], [[1.0], [2.0]], rng)
    with pytest.raises(InputError, match="lengths"):
        spread_lengths(0.0, 10.0)
    with pytest.raises(InputError, match="class numbers"):
        check_workload(Workload((CHAT,), fresh_requests([0.0], [1], [1]), np.array([1])))


def test_cards_are_there_as_often_as_said_with_notice_before_they_go():
    rng = np.random.default_rng(0)
    outages = draw_outages([3], Ownership(0.8, 100.0, 5.0), 1e6, rng)
    gone_s, back_s = (outages.time_s[outages.kind == kind] for kind in (GONE, BACK))
    notice_s = outages.time_s[outages.kind == NOTICE]
    assert (back_s - gone_s).sum() / 1e6 == pytest.approx(0.2, rel=0.06)
    assert np.allclose(5.0, (gone_s - notice_s)[1:])
    assert {3} == set(outages.engine)
    assert draw_outages([3], Ownership(1.0, 100.0), 1e6, rng) is NO_OUTAGES
    with pytest.raises(InputError, match="ownership not usable"):
        draw_outages([3], Ownership(0.0, 100.0), 1e6, rng)
