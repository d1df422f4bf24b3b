"""The finish time of one run where every device does one op at a time, first come first served.

    arrival   when everything an op reads is on its device: the maker's end, and `send` for either end of the way that
              is an accelerator where it was made on another device; messages do not wait for each other
    begin     when it has arrived and its device has done all that arrived before; of ops that arrive at once the
              first of the file (what is made then in no time joins them when its maker had its turn)
    finish    when the last op ends

The rules of DOPPLER's simulator (arXiv 2505.23131; github.com/xinyuyao/Doppler, env/cost.py), in our own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from placer.placement.problem import PlacementProblem


class DeviceQueues:
    """Plays placements of one problem; a search asks it thousands of times."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._readers = [sorted(readers) for readers in problem.successors]
        self._waiting = [0] * len(problem.nodes)
        for readers in self._readers:
            for reader in readers:
                self._waiting[reader] += 1
        self._sources = [(0.0, op) for op, count in enumerate(self._waiting) if not count]
        heapify(self._sources)
        self._send = [node.send for node in problem.nodes]
        self._seconds = [
            [node.accelerator] * problem.accelerators + [node.host] * problem.cpus for node in problem.nodes
        ]
        ends = [1.0] * problem.accelerators + [0.0] * problem.cpus
        self._ways = [[a + b for b in ends] for a in ends]

    def finish(self, placement: Sequence[int]) -> float:
        """In the problem's unit, of a device for every node; edges must have no cycle."""
        waiting, queue = self._waiting.copy(), self._sources.copy()
        arrival = [0.0] * len(waiting)
        free = [0.0] * len(self._ways)
        # Ops leave the queue in the order of their arrival: what is made later arrives no earlier.
        while queue:
            arrived, op = heappop(queue)
            device = placement[op]
            end = max(arrived, free[device]) + self._seconds[op][device]
            free[device] = end
            ways, send = self._ways[device], self._send[op]
            for reader in self._readers[op]:
                other = placement[reader]
                there = end if other == device else end + ways[other] * send
                if there > arrival[reader]:
                    arrival[reader] = there
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(queue, (arrival[reader], reader))
        return max(free)
