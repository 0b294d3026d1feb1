"""What links can carry at most: GB/s (1e9 bytes per second) per direction.

Signalling rates less the line code, before the overhead of packets: no program sees quite as much. NVLink and PCIe are
full duplex, so a vendor's "bidirectional" figure is twice the one here.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """One kind of link. `per` is what one has the bandwidth: a GPU with all its links, a slot, or a port."""

    link: str
    gb_per_s: float
    per: str
    source: str


_PCIE3 = "PCI Express Base Specification 3.0: 8 GT/s per lane, 128b/130b"
_PCIE4 = "PCI Express Base Specification 4.0: 16 GT/s per lane, 128b/130b"
_PCIE5 = "PCI Express Base Specification 5.0: 32 GT/s per lane, 128b/130b"
_IBTA = "InfiniBand Trade Association, InfiniBand Roadmap: 4 lanes"
_IEEE = "IEEE 802.3: rate of the MAC"
_ROCE = "IBTA, RoCEv2 (Annex A17), over IEEE 802.3: rate of the MAC, before headers"

PEAKS = (
    Peak("NVLink 2", 150.0, "GPU", "NVIDIA Tesla V100 architecture whitepaper: 6 links of 25 GB/s per direction"),
    Peak("NVLink 3", 300.0, "GPU", "NVIDIA A100 architecture whitepaper: 12 links of 25 GB/s per direction"),
    Peak("NVLink 4", 450.0, "GPU", "NVIDIA H100 architecture whitepaper: 18 links of 25 GB/s per direction"),
    Peak("NVLink 4, H800", 200.0, "GPU", "NVIDIA H800 datasheet: 400 GB/s, both directions"),
    Peak("NVLink 5", 900.0, "GPU", "NVIDIA Blackwell architecture technical brief: 18 links of 50 GB/s per direction"),
    *(
        Peak(f"PCIe {generation} x{lanes}", gt * lanes * 128 / 130 / 8, "slot", source)
        for generation, gt, source in ((3, 8, _PCIE3), (4, 16, _PCIE4), (5, 32, _PCIE5))
        for lanes in (1, 4, 8, 16)
    ),
    Peak("InfiniBand HDR", 25.0, "port", f"{_IBTA}, 200 Gbit/s"),
    Peak("InfiniBand NDR", 50.0, "port", f"{_IBTA}, 400 Gbit/s"),
    Peak("InfiniBand XDR", 100.0, "port", f"{_IBTA}, 800 Gbit/s"),
    *(Peak(f"RoCE {gbit}", gbit / 8, "port", _ROCE) for gbit in (25, 50, 100, 200, 400)),
    *(Peak(f"Ethernet {gbit}", gbit / 8, "port", _IEEE) for gbit in (1, 10, 25, 40, 50, 100, 200, 400)),
)

# The SXM modules, which have all links; of the PCIe cards only some are bridged in pairs. H100 and H200 name the form
# in their memory: HBM3 is the SXM one of the H100, which calls its PCIe card "H100 PCIe" and "H100 NVL".
_BRIDGED = re.compile(r"PCIe|NVL\b|MIG")
_NVLINK = (
    (re.compile(r"V100-SXM[23]"), "NVLink 2"),
    (re.compile(r"A100-SXM"), "NVLink 3"),
    (re.compile(r"H100 80GB HBM3|H100 SXM"), "NVLink 4"),
    (re.compile(r"H800\b(?! PCIe)"), "NVLink 4, H800"),
    (re.compile(r"H200(?! NVL)"), "NVLink 4"),
    (re.compile(r"\bG?B[23]00\b"), "NVLink 5"),
)


def peak(link: str) -> Peak:
    """The row of a link by its name in the table; raises KeyError for any other."""
    return {row.link: row for row in PEAKS}[link]


def intra_node(device_name: str) -> Peak | None:
    """The links of a GPU to the others of its node, by what the device calls itself; None where that is not certain.

    A name that says SXM stands for a node whose GPUs are joined by all their NVLinks. Of PCIe cards nobody knows from
    the name whether they are bridged, and of AMD's how many links join two of them.
    """
    if _BRIDGED.search(device_name):
        return None
    return next((peak(link) for pattern, link in _NVLINK if pattern.search(device_name)), None)
