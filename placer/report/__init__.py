"""What people read: the plan as a table, predicted beside measured, and the same as JSON documents with units."""

from placer.report.comparison import comparison_view
from placer.report.documents import error_document, ledger_document, plan_document
from placer.report.experts import expert_placement, experts_text
from placer.report.mixed_allreduce import route_document, route_text
from placer.report.ops import ops_document, ops_view
from placer.report.plan_table import doubts, plan_table, plan_view
from placer.report.printing import plain, show

__all__ = [
    "comparison_view",
    "doubts",
    "error_document",
    "expert_placement",
    "experts_text",
    "ledger_document",
    "ops_document",
    "ops_view",
    "plain",
    "plan_document",
    "plan_table",
    "plan_view",
    "route_document",
    "route_text",
    "show",
]
