"""A sum by a server: every other rank sends its tensor in pieces and gets back the sum of all, piece by piece.

Pieces are under way in both directions at once. The messages are those of `placer.program.reductions`.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import torch
from torch import distributed as dist

from placer.program.reductions import ROOMS, ServerRoute, pieces


def served_sum(tensor: torch.Tensor, way: ServerRoute, rank: int, group: dist.ProcessGroup) -> None:
    """Sum `tensor`, contiguous and on the host, over the ranks of `way` in place; all of them call it."""
    item, line = tensor.element_size(), tensor.detach().view(-1)
    found = [line[start // item : end // item] for start, end in pieces(line.numel() * item, item)]
    (_serve if rank == way.server else _hand_in)(found, way, group)


def _hand_in(found: list[torch.Tensor], way: ServerRoute, group: dist.ProcessGroup) -> None:
    """A piece is written to only when its sum arrives, which the server makes of what was sent."""
    under_way = []
    for piece in found:
        under_way.append(dist.isend(piece, way.server, group=group))
        under_way.append(dist.irecv(piece, way.server, group=group))
    _wait(under_way)


def _serve(found: list[torch.Tensor], way: ServerRoute, group: dist.ProcessGroup) -> None:
    coming = iter(found)
    arriving = deque(_received(piece, way, group) for piece in islice(coming, ROOMS))
    sent: list[dist.Work | None] = []
    for piece in found:
        for room, work in arriving.popleft():
            _wait([work])
            piece += room
        following = next(coming, None)
        if following is not None:
            arriving.append(_received(following, way, group))
        sent += [dist.isend(piece, other, group=group) for other in way.served]
    _wait(sent)


def _received(
    piece: torch.Tensor, way: ServerRoute, group: dist.ProcessGroup
) -> list[tuple[torch.Tensor, dist.Work | None]]:
    """Rooms for what each rank sends of a piece."""
    rooms = [torch.empty_like(piece) for _ in way.served]
    return [(room, dist.irecv(room, other, group=group)) for room, other in zip(rooms, way.served, strict=True)]


def _wait(works: list[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
