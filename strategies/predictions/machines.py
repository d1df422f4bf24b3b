"""The machines of a row as a spec of the catalogue: `h100x8*4`, `v100x4*16@4xib-edr`; None where the chip is unknown.

Chips are told by their printed names; a network by the words of `interconnect`, and where it says nothing it is the
usual one of the catalogue's node.
"""

from __future__ import annotations

import re

from placer.strategies.predictions.rows import Row

# Patterns of printed names, the first that is found -> the catalogue. Whose memory is not stated: vTrain's A100s keep
# 18 bytes a parameter of GPT 18.4B at tensor 8, 41 GB a device (row 27 of its multi-node table): they have 80 GB.
CHIPS = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"\bB300", "b300"),
    (r"\bB200|Blackwell", "b200"),
    (r"GH200", "gh200"),
    (r"H200", "h200"),
    (r"H100.*(96|95) ?GB", "h100-96gb"),
    (r"H100.*PCI", "h100-pcie"),
    (r"H100.*NVL", "h100-nvl"),
    (r"H100", "h100"),
    (r"H800", "h800"),
    (r"A100.*PCI.*80", "a100-80gb-pcie"),
    (r"A100.*PCI", "a100-40gb-pcie"),
    (r"A100.*40", "a100-40gb"),
    (r"A100", "a100-80gb"),
    (r"V100.*16", "v100-16gb"),
    (r"V100", "v100-32gb"),
    (r"P100", "p100"),
    (r"P40", "p40"),
    (r"K80", "k80"),
    (r"\bT4\b", "t4"),
    (r"\bL40S", "l40s"),
    (r"\bL4\b", "l4"),
    (r"A10G", "a10g"),
    (r"\bA10\b", "a10"),
    (r"A6000", "rtx-a6000"),
    (r"4090", "rtx-4090"),
    (r"3090", "rtx-3090"),
    (r"MI355", "mi355x"),
    (r"MI325", "mi325x"),
    (r"MI300", "mi300x"),
    (r"MI250X", "mi250x"),
)
# Words of `interconnect`, the first that is found -> a network, with its ports a node. OmniPath runs at the 100 Gb/s of
# EDR; a node's total of 800 or 1,600 Gb/s is so many HDR ports.
NETWORKS = (
    (r"(\d+)x OmniPath", "ib-edr", 0),
    (r"OmniPath", "ib-edr", 4),
    (r"(\d+)x ?400 ?Gb", "ib-ndr", 0),
    (r"(\d+)x ?200 ?Gb", "ib-hdr", 0),
    (r"(\d+)x ?100 ?Gb", "ib-edr", 0),
    (r"1600 ?Gb", "ib-hdr", 8),
    (r"\b800 ?Gb/s per node", "ib-hdr", 4),
    (r"\b25 ?Gb/s", "25gbe", 1),
)
# A domain of NVLink over several hosts: so many of its devices are one node.
DOMAIN = re.compile(r"NVL72")
DOMAINS = {"gb200": 64, "gb300": 64}  # of 72, tables use 64
NODE = 8


def cluster_of(row: Row) -> str | None:
    """The spec of the machines of a row; None where the catalogue does not hold its chip or no count is printed."""
    chip = chip_of(row)
    if chip is None or row.devices < 1:
        return None
    size = DOMAINS.get(chip, row.count("gpus_per_node", NODE))
    size = min(row.devices, size)
    if row.devices % size:
        return None
    nodes = row.devices // size
    if nodes == 1:
        return f"{chip}x{size}"
    return f"{chip}x{size}*{nodes}" + _network(row.text("interconnect"))


def chip_of(row: Row) -> str | None:
    """The catalogue's name of its chip; None where it does not hold it."""
    return next((name for pattern, name in CHIPS if re.search(pattern, row.text("gpu"))), None)


def _network(told: str) -> str:
    for pattern, name, ports in NETWORKS:
        found = re.search(pattern, told)
        if found is not None:
            return f"@{ports or int(found[1])}x{name}"
    return ""
