"""The table of link peaks, and which device certainly has which links."""

import pytest

from dptune.measure.communication.peaks import PEAKS, intra_node, peak


@pytest.mark.parametrize(
    ("name", "link", "gb_per_s"),
    [
        ("Tesla V100-SXM2-16GB", "NVLink 2", 150),
        ("NVIDIA A100-SXM4-80GB", "NVLink 3", 300),
        ("NVIDIA H100 80GB HBM3", "NVLink 4", 450),
        ("NVIDIA H200", "NVLink 4", 450),
        ("NVIDIA H800", "NVLink 4, H800", 200),
        ("NVIDIA B200", "NVLink 5", 900),
        ("NVIDIA GB200", "NVLink 5", 900),
    ],
)
def test_modules_have_all_their_links(name, link, gb_per_s):
    assert intra_node(name) == peak(link)
    assert peak(link).gb_per_s == gb_per_s


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA H800 PCIe",
        "Tesla V100-PCIE-16GB",
        "NVIDIA A10G",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 3090",
        "AMD Instinct MI300X",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_of_others_nothing_is_claimed(name):
    assert intra_node(name) is None


def test_the_table():
    """Doubling lanes or generation doubles the rate; each row has a source."""
    by = {one.link: one.gb_per_s for one in PEAKS}
    assert len(by) == len(PEAKS)
    assert all(one.source and one.per for one in PEAKS)
    assert by["PCIe 3 x16"] == pytest.approx(15.754, abs=1e-3)
    assert by["PCIe 5 x16"] == pytest.approx(4 * by["PCIe 3 x16"])
    assert by["PCIe 4 x16"] == pytest.approx(2 * by["PCIe 4 x8"])
    assert by["InfiniBand NDR"] == by["Ethernet 400"] == by["RoCE 400"] == 50
    assert by["Ethernet 1"] == 0.125
