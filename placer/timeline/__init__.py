"""Timeline: what every simulated rank does when, in one step; its ledger; a trace for chrome://tracing and Perfetto."""

from placer.timeline.chrome import chrome_trace
from placer.timeline.slices import Lane, Part, Slice, Timeline

__all__ = ["Lane", "Part", "Slice", "Timeline", "chrome_trace"]
