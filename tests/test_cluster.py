from dataclasses import replace
from importlib.util import find_spec

import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.campaign import all_series, load_campaign
from hetinfer.measurement.cluster import check_offers, is_offered, ray_source


def series_on(gpu, count):
    one = all_series(load_campaign("cpu-demo"))[0]
    return replace(one, cells=tuple(replace(c, gpu=gpu, gpu_count=count) for c in one.cells))


def test_a_series_needs_one_node_with_all_its_cards():
    two_nodes = [{"rtx-4090": 2.0}, {"rtx-4090": 2.0, "CPU": 8.0}]
    assert is_offered(two_nodes, series_on("rtx-4090", 2))
    assert not is_offered(two_nodes, series_on("rtx-4090", 4))
    assert not is_offered([], series_on("cpu", 1))


def test_cards_that_no_node_offers_are_named_with_what_to_do():
    offers = [{"rtx-4090": 4.0, "node:10.0.0.1": 1.0}]
    with pytest.raises(InputError) as caught:
        check_offers(offers, [series_on("rtx-4090", 4), series_on("h100-pcie", 1)])
    assert "got rtx-4090 offered, expected a node with 1 x h100-pcie" in str(caught.value)
    assert """--resources='{"h100-pcie": 1}'""" in str(caught.value)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named():
    with pytest.raises(InputError, match="run make cluster"):
        ray_source(load_campaign("cpu-demo"), "127.0.0.1:6379")
