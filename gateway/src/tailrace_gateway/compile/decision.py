"""A statement's lineage and one role's rules → masks of its result columns, or a refusal. Pure; the same for every engine.

Rejects: a table that is not allowed, a masked column where its value would tell itself, a page key that is masked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import Mask, MaskPlan

from tailrace_gateway.compile.lineage import Flow, Lineage, Origin


@dataclass(frozen=True, slots=True)
class Rules:
    """One role on one database, resolved. `masks` holds also what depends on the masked columns (children, generated columns, views)."""

    tables: frozenset[int | str] | None = None
    """None: all but `system`."""
    masks: Mapping[Origin, Mask] = field(default_factory=dict)
    filter_on_masked: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Masks, or why not."""

    masks: tuple[MaskPlan, ...] = ()
    refused: Refusal | None = None
    hint: str = ""


def decide(lineage: Lineage, rules: Rules, system: frozenset[int | str], page_columns: Sequence[int] = ()) -> Verdict:
    """The verdict for a role. `system` are tables that count only when listed; `page_columns` are positions of page keys."""
    touched = lineage.tables | lineage.written
    denied = touched & system if rules.tables is None else touched - rules.tables
    if rules.tables is not None:
        denied |= (touched & system) - rules.tables
    if denied:
        return Verdict(refused=Refusal.TABLE_NOT_ALLOWED, hint="it reads a table that is not under the role's tables.allow")
    masked = rules.masks.keys()
    if not rules.filter_on_masked and not masked.isdisjoint(lineage.consumed):
        return Verdict(
            refused=Refusal.MASK_LEAK,
            hint="a masked column stands where its value would tell itself (a condition, an order, a grouping, something that can fail):"
            " take it out, or say filterOnMasked: true",
        )
    masks = tuple(
        MaskPlan(column=n, with_=mask) for n, flow in enumerate(lineage.columns) if (mask := mask_of(flow, rules.masks)) is not None
    )
    if any(mask.column in page_columns for mask in masks):
        return Verdict(refused=Refusal.PAGE_KEY, hint="a column of page.key is masked for the role: page by another column")
    return Verdict(masks)


def mask_of(flow: Flow, masks: Mapping[Origin, Mask]) -> Mask | None:
    """None for no masked column; the column's own mask if the value is the plain column in every arm that has one; else null."""
    found = {masks[origin] for origin in flow.origins if origin in masks}
    if not found:
        return None
    if len(found) == 1 and not any(origin in masks for origin in flow.computed):
        return found.pop()
    return Mask.NULL
