"""What would change for callers between two states of resources: who sees more, what breaks. Pure; no database is asked.

A change is told for every live ApiKey it reaches (and for the role itself, if no key has it). What can't be compared without the database
(another SQL text) is said to be so. Never tells a value, a secret or SQL.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network

from tailrace_contract.apikey import ApiKey
from tailrace_contract.ids import Ref, glob_matches
from tailrace_contract.plan import Mask, Missing, Returns
from tailrace_contract.queryapi import Items, Parameter, Query, QueryAPI, Role

from tailrace_gateway.resources.state import ResourceState

_TELLS = (Mask.NULL, Mask.REDACT, Mask.HASH, Mask.PARTIAL)
"""From least to most: nothing; whether there is a value; which are equal; parts of it."""


class Effect(StrEnum):
    """What a change does to callers."""

    WIDENS = "widens"
    """Someone sees or may do more."""
    BREAKS = "breaks"
    """Calls that were answered are refused, or answered in another shape."""
    NARROWS = "narrows"
    """Someone sees less in answers that keep their shape."""
    CHANGES = "changes"
    """Answers may differ; without the database it can't be told how."""
    ADDS = "adds"
    """Something new that nobody could call before and that nothing depended on."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One difference. `subject` is what changed (`query customer_by_id`), `who` the keys (or role) that it reaches."""

    effect: Effect
    subject: str
    message: str
    who: tuple[str, ...] = ()


def differences(old: ResourceState, new: ResourceState, elsewhere: Mapping[Ref, frozenset[str]] | None = None) -> list[Change]:
    """Every change, worst effects first. `elsewhere`: by API, the other namespaces that it admits now; their keys count where an entry has their role."""
    changes: set[Change] = set()
    for ref in old.query_apis.keys() | new.query_apis.keys():
        changes |= set(_api(ref, old, new, (elsewhere or {}).get(ref, frozenset())))
    order = list(Effect)
    return sorted(changes, key=lambda change: (order.index(change.effect), change.subject, change.message, change.who))


def _keys(state: ResourceState, ref: Ref, elsewhere: frozenset[str]) -> dict[Ref, ApiKey]:
    api = state.query_apis.get(ref)
    roles = {role for entry in (api.spec.allow_keys_from if api is not None else ()) for role in entry.roles}
    return {
        key_ref: key
        for key_ref, key in state.api_keys.items()
        if key.api_ref == ref
        and not key.spec.suspended
        and (key_ref.namespace == ref.namespace or (key_ref.namespace in elsewhere and key.spec.role in roles))
    }


def _whole(state: ResourceState, ref: Ref) -> QueryAPI | None:
    """An API with the queries of its ConfigMaps among its own."""
    api = state.query_apis.get(ref)
    return None if api is None else api.model_copy(update={"spec": api.spec.model_copy(update={"queries": state.queries_of(api)})})


def _granted(api: QueryAPI, role: Role) -> dict[str, Query]:
    return {query.name: query for query in api.spec.queries if any(glob_matches(glob, query.name) for glob in role.queries)}


def _api(ref: Ref, old: ResourceState, new: ResourceState, elsewhere: frozenset[str]) -> Iterator[Change]:
    before, after = _whole(old, ref), _whole(new, ref)
    keys_before, keys_after = _keys(old, ref, elsewhere), _keys(new, ref, elsewhere)
    if before is None:
        yield Change(Effect.ADDS, f"API {ref}", "is new", tuple(sorted(map(str, keys_after))))
        return
    if after is None:
        yield Change(Effect.BREAKS, f"API {ref}", "is gone", tuple(sorted(map(str, keys_before))))
        return
    yield from _http(ref, before, after, keys_before)
    yield from _elsewhere(ref, before, after)
    roles_before = {role.name: role for role in before.spec.roles}
    roles_after = {role.name: role for role in after.spec.roles}
    for name in sorted(roles_before.keys() | roles_after.keys()):
        both = {key for key in keys_before.keys() & keys_after.keys() if keys_before[key].spec.role == keys_after[key].spec.role == name}
        who = tuple(sorted(map(str, both))) or (f"role {name}",)
        if name not in roles_before:
            yield (
                Change(Effect.WIDENS, f"role {name}", "is new, and keys that name it work now", who)
                if both
                else Change(Effect.ADDS, f"role {name}", "is new")
            )
        elif name not in roles_after:
            yield Change(Effect.BREAKS, f"role {name}", "is gone: its keys are refused", who)
        else:
            yield from _role(name, before, after, roles_before[name], roles_after[name], who)
    for key in sorted(keys_before.keys() | keys_after.keys()):
        yield from _key(key, keys_before.get(key), keys_after.get(key), roles_before, roles_after, before, after)


def _http(ref: Ref, before: QueryAPI, after: QueryAPI, keys: dict[Ref, ApiKey]) -> Iterator[Change]:
    who, subject = tuple(sorted(map(str, keys))), f"API {ref}"
    old, new = before.spec.http, after.spec.http
    if old.big_numbers != new.big_numbers:
        yield Change(Effect.BREAKS, subject, f"http.bigNumbers: large numbers are written as {new.big_numbers.value}s", who)
    if old.hide_forbidden and not new.hide_forbidden:
        yield Change(Effect.WIDENS, subject, "http.hideForbidden is off: callers can tell that a query exists (403 instead of 404)", who)
    if not old.hide_forbidden and new.hide_forbidden:
        yield Change(Effect.NARROWS, subject, "http.hideForbidden is on: a forbidden query looks absent (404 instead of 403)", who)
    if added := set(new.trusted_proxies) - set(old.trusted_proxies):
        yield Change(Effect.WIDENS, subject, f"http.trustedProxies: addresses that these say are believed: {', '.join(sorted(added))}", who)
    if old.tls is None and new.tls is not None:
        yield Change(Effect.BREAKS, subject, "http.tls: only TLS is served from now on (https)", who)
    if old.tls is not None and new.tls is None:
        yield Change(Effect.BREAKS, subject, "http.tls is gone: callers' keys travel in the clear (http)", who)
    for connection in after.spec.connections:
        was = next((each for each in before.spec.connections if each.name == connection.name), None)
        if was is not None and (was.url_from, was.session) != (connection.url_from, connection.session):
            yield Change(Effect.CHANGES, f"connection {connection.name}", "its URL or session settings are others", who)


@dataclass(frozen=True, slots=True)
class _Admission:
    """One role that keys of other namespaces may have: which labels these namespaces need, and which parameters are fixed by which label."""

    labels: frozenset[tuple[str, str]]
    role: str
    bind: frozenset[tuple[str, str]]

    def gives(self, other: "_Admission") -> bool:
        """Whether whoever is admitted by the other is admitted by this one, with no more fixed."""
        return self.role == other.role and self.labels <= other.labels and self.bind <= other.bind

    def __str__(self) -> str:
        fixed = f", with {' and '.join(sorted(name for name, _ in self.bind))} fixed" if self.bind else ""
        return (
            f"keys of namespaces with {', '.join(f'{key}={value}' for key, value in sorted(self.labels))} may have role {self.role}{fixed}"
        )


def _admissions(api: QueryAPI) -> set[_Admission]:
    return {
        _Admission(
            frozenset(entry.namespaces.match_labels.items()),
            role,
            frozenset((name, source.namespace_label) for name, source in entry.bind.items()),
        )
        for entry in api.spec.allow_keys_from
        for role in entry.roles
    }


def _elsewhere(ref: Ref, before: QueryAPI, after: QueryAPI) -> Iterator[Change]:
    old, new, subject = _admissions(before), _admissions(after), f"API {ref}"
    for each in sorted(new, key=str):
        if not any(known.gives(each) for known in old):
            yield Change(Effect.WIDENS, subject, f"allowKeysFrom: {each}")
    for each in sorted(old, key=str):
        if not any(known.gives(each) for known in new):
            yield Change(Effect.BREAKS, subject, f"allowKeysFrom: no longer that {each}")


def _role(name: str, before: QueryAPI, after: QueryAPI, old: Role, new: Role, who: tuple[str, ...]) -> Iterator[Change]:
    subject = f"role {name}"
    granted_before, granted_after = _granted(before, old), _granted(after, new)
    existed = {query.name for query in before.spec.queries}
    for query in sorted(granted_after.keys() - granted_before.keys()):
        yield Change(Effect.WIDENS, f"query {query}", "may be called" if query in existed else "is new and may be called", who)
    for query in sorted(granted_before.keys() - granted_after.keys()):
        yield Change(Effect.BREAKS, f"query {query}", "may not be called any more", who)
    for query in sorted(granted_before.keys() & granted_after.keys()):
        yield from _query(granted_before[query], granted_after[query], who)
    masks_before, masks_after = {m.column: m.with_ for m in old.masks}, {m.column: m.with_ for m in new.masks}
    for column in sorted(masks_before.keys() - masks_after.keys()):
        yield Change(Effect.WIDENS, subject, f"{column} is not masked any more", who)
    for column in sorted(masks_after.keys() - masks_before.keys()):
        yield Change(Effect.NARROWS, subject, f"{column} is masked ({masks_after[column].value})", who)
        if not new.filter_on_masked:
            yield Change(Effect.BREAKS, subject, f"queries that filter, join or sort by {column} are refused", who)
    for column in sorted(masks_before.keys() & masks_after.keys()):
        if masks_before[column] != masks_after[column]:
            text = f"{column} is masked otherwise ({masks_before[column].value} → {masks_after[column].value})"
            yield Change(
                Effect.NARROWS if _TELLS.index(masks_after[column]) < _TELLS.index(masks_before[column]) else Effect.WIDENS,
                subject,
                text,
                who,
            )
    if new.filter_on_masked and not old.filter_on_masked:
        yield Change(Effect.WIDENS, subject, "filterOnMasked: callers may learn masked values by filtering", who)
    if old.filter_on_masked and not new.filter_on_masked:
        yield Change(Effect.BREAKS, subject, "filterOnMasked is off: queries that filter by masked columns are refused", who)
    yield from _tables(subject, old, new, who)


def _tables(subject: str, old: Role, new: Role, who: tuple[str, ...]) -> Iterator[Change]:
    was = set(old.tables.allow) if old.tables is not None else None
    now = set(new.tables.allow) if new.tables is not None else None
    if was is not None and now is None:
        yield Change(Effect.WIDENS, subject, "has no allow-list of tables any more", who)
    elif was is None and now is not None:
        yield Change(Effect.BREAKS, subject, f"queries that touch other tables than {', '.join(sorted(now)) or 'none'} are refused", who)
    elif was is not None and now is not None:
        for table in sorted(now - was):
            yield Change(Effect.WIDENS, subject, f"queries may touch table {table}", who)
        for table in sorted(was - now):
            yield Change(Effect.BREAKS, subject, f"queries that touch table {table} are refused", who)


def _query(old: Query, new: Query, who: tuple[str, ...]) -> Iterator[Change]:
    subject = f"query {new.name}"
    if old.write != new.write:
        yield Change(Effect.BREAKS, subject, "is a write now: POST only" if new.write else "is a read now", who)
    if (old.sql, old.connection) != (new.sql, new.connection):
        yield Change(Effect.CHANGES, subject, "has other SQL or another connection: compare with `tailrace explain`", who)
    if old.returns != new.returns or (new.returns is Returns.ONE and old.missing != new.missing):
        now = new.returns.value + (" or null" if new.returns is Returns.ONE and new.missing is Missing.NULL else "")
        yield Change(Effect.BREAKS, subject, f"returns {now}", who)
    if (old.page is None) != (new.page is None):
        yield Change(Effect.BREAKS, subject, "answers in pages" if new.page is not None else "has no pages any more", who)
    elif old.page is not None and new.page is not None:
        if old.page.key != new.page.key:
            yield Change(Effect.BREAKS, subject, "page.key: cursors that callers hold are refused", who)
        if new.page.max_size < old.page.max_size:
            yield Change(Effect.BREAKS, subject, f"page.maxSize: page_size above {new.page.max_size} is refused", who)
    for name in sorted(old.params.keys() - new.params.keys()):
        yield Change(Effect.BREAKS, subject, f"parameter {name} is gone: calls with it are refused", who)
    for name in sorted(new.params.keys() - old.params.keys()):
        if new.params[name].required:
            yield Change(Effect.BREAKS, subject, f"parameter {name} is new and required", who)
        else:
            yield Change(Effect.ADDS, subject, f"parameter {name} is new", who)
    for name in sorted(old.params.keys() & new.params.keys()):
        yield from (
            Change(effect, subject, f"parameter {name} {text}", who) for effect, text in _parameter(old.params[name], new.params[name])
        )


def _parameter(old: Parameter, new: Parameter) -> Iterator[tuple[Effect, str]]:
    if (old.array, old.element_type) != (new.array, new.element_type):
        yield Effect.BREAKS, "has another type"
        return
    if new.required and not old.required:
        yield Effect.BREAKS, "is required"
    if old.nullable and not new.nullable:
        yield Effect.BREAKS, "may not be null any more"
    if old.default != new.default:
        yield Effect.CHANGES, "has another default"
    yield from _bounds(old.element, new.element)


def _bounds(old: Items | Parameter, new: Items | Parameter) -> Iterator[tuple[Effect, str]]:
    def text(value: str | int | None) -> Decimal | None:
        return None if value is None else Decimal(value)

    for name, was, now, sign in (
        ("minimum", text(old.minimum), text(new.minimum), 1),
        ("maximum", text(old.maximum), text(new.maximum), -1),
        ("minLength", text(old.min_length), text(new.min_length), 1),
        ("maxLength", text(old.max_length), text(new.max_length), -1),
    ):
        if was == now:
            continue
        if now is not None and (was is None or (now - was) * sign > 0):
            yield Effect.BREAKS, f"accepts less: {name} {now}"
        else:
            yield Effect.WIDENS, f"accepts more: {name} {'is gone' if now is None else now}"
    if old.pattern != new.pattern:
        if new.pattern is None:
            yield Effect.WIDENS, "accepts more: pattern is gone"
        else:
            yield Effect.BREAKS, "may accept less: another pattern"
    was_values = None if old.enum is None else {repr(value) for value in old.enum}
    now_values = None if new.enum is None else {repr(value) for value in new.enum}
    if now_values is not None and (was_values is None or was_values - now_values):
        yield Effect.BREAKS, "accepts less: some values of enum are gone" if was_values is not None else "accepts less: enum"
    if was_values is not None and (now_values is None or now_values - was_values):
        yield Effect.WIDENS, "accepts more: enum"


def _key(
    ref: Ref,
    old: ApiKey | None,
    new: ApiKey | None,
    roles_before: dict[str, Role],
    roles_after: dict[str, Role],
    before: QueryAPI,
    after: QueryAPI,
) -> Iterator[Change]:
    subject, who = f"key {ref}", (str(ref),)
    if old is None:
        if new is not None:
            yield Change(Effect.WIDENS, subject, f"is in force, with role {new.spec.role}", who)
        return
    if new is None:
        yield Change(Effect.BREAKS, subject, "is not in force any more", who)
        return
    if old.spec.role != new.spec.role:
        yield Change(Effect.WIDENS, subject, f"has another role ({old.spec.role} → {new.spec.role})", who)
        had = _granted(before, roles_before[old.spec.role]).keys() if old.spec.role in roles_before else set()
        has = _granted(after, roles_after[new.spec.role]).keys() if new.spec.role in roles_after else set()
        for query in sorted(had - has):
            yield Change(Effect.BREAKS, f"query {query}", "may not be called any more", who)
    for name in sorted(old.spec.bind.keys() | new.spec.bind.keys()):
        if name not in new.spec.bind:
            yield Change(Effect.WIDENS, subject, f"parameter {name} is not fixed any more", who)
        elif name not in old.spec.bind:
            yield Change(Effect.BREAKS, subject, f"parameter {name} is fixed: callers can't send it", who)
        elif old.spec.bind[name] != new.spec.bind[name]:
            yield Change(Effect.WIDENS, subject, f"parameter {name} is fixed to another value", who)
    yield from _reach(subject, who, old, new)


def _reach(subject: str, who: tuple[str, ...], old: ApiKey, new: ApiKey) -> Iterator[Change]:
    was, now = old.spec.allowed_cidrs, new.spec.allowed_cidrs
    if not _covered(now, was):
        yield Change(Effect.WIDENS, subject, "allowedCIDRs: may be used from more addresses", who)
    if not _covered(was, now):
        yield Change(Effect.BREAKS, subject, "allowedCIDRs: may be used from fewer addresses", who)
    ends_before, ends_after = old.spec.expires_at, new.spec.expires_at
    if ends_before != ends_after:
        if ends_after is not None and (ends_before is None or ends_after < ends_before):
            yield Change(Effect.BREAKS, subject, "expiresAt: ends earlier", who)
        else:
            yield Change(Effect.WIDENS, subject, "expiresAt: lasts longer", who)
    if (old.spec.secret_name, old.spec.key_from) != (new.spec.secret_name, new.spec.key_from):
        yield Change(Effect.BREAKS, subject, "has another text: callers need the new one", who)


def _covered(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    """Whether every address of `inner` is in one network of `outer`; no networks mean every address."""
    if not outer:
        return True
    if not inner:
        return False
    networks = [ip_network(text, strict=False) for text in outer]
    return all(any(_within(ip_network(text, strict=False), network) for network in networks) for text in inner)


def _within(inner: object, outer: object) -> bool:
    if isinstance(inner, IPv4Network) and isinstance(outer, IPv4Network):
        return inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and isinstance(outer, IPv6Network) and inner.subnet_of(outer)
