"""What the figures of `placer bench parallel` say, in sentences; nothing is said that no row shows.

On the largest number of processes, for each model: the fastest way that agrees with one process and how far the next
is, whether intervals tell them apart; who hides most communication; speed-ups; accuracy as processes increase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.report.bench.parallel_rows import Row


def analysis(rows: Sequence[Row], reference: str) -> list[str]:
    """Sentences, model by model, and first whether losses agree."""
    ran = [row for row in rows if row.step is not None]
    told = [_losses(ran)]
    for model in dict.fromkeys(row.model for row in ran):
        own = [row for row in ran if row.model == model]
        most = max(row.ranks for row in own)
        told += _speeds(model, [row for row in own if row.ranks == most and row.agrees], most, reference)
        told += _accuracies(model, own)
    return told


def _losses(ran: Sequence[Row]) -> str:
    held = [row for row in ran if row.agrees and row.apart is not None]
    wrong = [f"{row.way} ({row.model} on {row.ranks})" for row in held if row.wrong]
    if wrong:
        return f"Losses differ from those of one process: {', '.join(wrong)}"
    apart = max((row.apart for row in held if row.apart is not None), default=None)
    if apart is None:
        return "No losses were compared"
    return f"Losses of all synchronous ways are those of one process on the whole batch, within {apart:.1e} of them"


def _speeds(model: str, rows: Sequence[Row], ranks: int, reference: str) -> Iterator[str]:
    """Of the ways that are spread over processes."""
    spread = sorted((row for row in rows if row.exposed is not None), key=lambda row: _seconds(row))
    if not spread:
        return
    first = spread[0]
    yield (
        f"{model} on {ranks}: {first.way} is the fastest synchronous way, {_seconds(first) * 1e3:.1f} ms a step"
        f"{_before(spread)}"
    )
    yield from _exposed(model, spread, ranks)
    ups = [row for row in spread if row.speed_up is not None and row.ranks > 1]
    if ups:
        each = ", ".join(f"{row.way} {row.speed_up.value:.2f}" for row in ups if row.speed_up)
        yield f"{model} on {ranks}: rows a second over one process of the same way: {each}"
    alone = next((row for row in rows if row.way == reference), None)
    if alone and _seconds(alone) < _seconds(first):
        yield (
            f"{model} on {ranks}: one process with as many threads does the whole batch sooner than any of them, "
            f"in {_seconds(alone) * 1e3:.1f} ms"
        )


def _exposed(model: str, spread: Sequence[Row], ranks: int) -> Iterator[str]:
    """Who adds nothing that rounds tell from noise, and who adds most."""
    seen = [(row, row.exposed) for row in spread if row.exposed is not None]
    none = [row.way for row, exposed in seen if exposed.low <= 0]
    if none:
        yield f"{model} on {ranks}: what these add to computing is not told from noise: {', '.join(none)}"
    most, exposed = max(seen, key=lambda one: one[1].value)
    if exposed.low > 0:
        yield f"{model} on {ranks}: {most.way} adds most to computing, {exposed.value * 1e3:.1f} ms a step"


def _before(spread: Sequence[Row]) -> str:
    if len(spread) == 1:
        return ""
    first, second = spread[0], spread[1]
    apart = first.step is not None and second.step is not None and first.step.high < second.step.low
    sure = "their intervals lie apart" if apart else "their intervals overlap: no order is shown"
    return f", {_seconds(second) / _seconds(first) - 1:.0%} before {second.way} ({sure})"


def _accuracies(model: str, rows: Sequence[Row]) -> Iterator[str]:
    """Behind the last epoch, of synchronous ways and of others, by processes."""
    for way in dict.fromkeys(row.way for row in rows if row.accuracies):
        own = sorted((row for row in rows if row.way == way and row.accuracies), key=lambda row: row.ranks)
        if len(own) > 1:
            each = ", ".join(f"{row.accuracies[-1]:.0%} on {row.ranks}" for row in own)
            yield f"{model}, {way}: accuracy behind epoch {len(own[0].accuracies)} is {each}"


def _seconds(row: Row) -> float:
    return row.step.value if row.step is not None else 0.0
