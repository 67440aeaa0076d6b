//! Whether a result is what the plan expects (docs/contract.md, "MySQL and MariaDB"). Pure. May reject: as `Failure` says.
use super::value::Kind;
use super::wire::Definition;
use crate::engine::Failure;
use crate::plan::snapshot::ColumnPlan;

/// A Prepare's column is the planned one.
pub fn is_described(definition: &Definition<'_>, plan: &ColumnPlan) -> bool {
    definition.name == plan.name.as_bytes() && definition.type_oid() == plan.type_oid && definition.table_oid() == plan.table_oid
}

/// An execution's column: how its values are read. The server prepares again unseen after an ALTER TABLE, so this one counts.
pub fn shown(definition: &Definition<'_>, plan: &ColumnPlan) -> Result<Kind, Failure> {
    if definition.name != plan.name.as_bytes() || definition.table_oid() != plan.table_oid {
        return Err(Failure::Stale);
    }
    let kind = Kind::of(definition);
    if kind.fits(plan.encoding) { Ok(kind) } else { Err(Failure::Protocol) }
}

/// A batch's column, of its Prepare or an execution: the server names our wrapper, so its table says nothing.
pub fn shown_in_batch(definition: &Definition<'_>, plan: &ColumnPlan) -> Result<Kind, Failure> {
    let kind = Kind::of(definition);
    if definition.name == plan.name.as_bytes() && kind.fits(plan.encoding) { Ok(kind) } else { Err(Failure::Stale) }
}

/// What a batch's rows begin with.
pub fn is_ordinal(definition: &Definition<'_>) -> Option<Kind> {
    Some(Kind::of(definition)).filter(|kind| definition.name == b"ord" && matches!(kind, Kind::Integer(_) | Kind::Unsigned(_)))
}
