"""What Python serves from: a snapshot whose indices were checked, with everything worked out that a call would otherwise have to.

The twin of `dataplane-rs/src/plan/tables.rs`. Pure. Rejects (`SnapshotRefused`) a snapshot that contradicts itself; then the old tables stay.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace_contract.plan import (
    ConnectionPlan,
    Engine,
    Grant,
    KeyPlan,
    MaskPlan,
    PagePlan,
    QueryPlan,
    Returns,
    Snapshot,
    StatementPlan,
)
from tailrace_gateway.errors import SnapshotRefused
from tailrace_gateway.serve.arguments import Bound, Spec
from tailrace_gateway.serve.cursor import CursorKey, cursor_key
from tailrace_gateway.serve.masks import MaskKey, mask_key
from tailrace_gateway.serve.request import Address, Network, contains, networks
from tailrace_gateway.serve.rows import RowWriter

LONGEST_KEY_BYTES = 512
"""A longer key text is refused unread."""


@dataclass(frozen=True, slots=True)
class Key:
    """One live key."""

    plan: KeyPlan
    cidrs: tuple[Network, ...]

    @property
    def id(self) -> str:
        """`namespace/name` of the ApiKey."""
        return self.plan.id

    def valid(self, now_us: int, address: Address) -> bool:
        """At this time (µs since 1970) and from this address."""
        after = self.plan.not_before_us is None or self.plan.not_before_us <= now_us
        before = self.plan.not_after_us is None or now_us < self.plan.not_after_us
        return after and before and (not self.cidrs or contains(self.cidrs, address))


@dataclass(frozen=True, slots=True)
class Query:
    """One saved query. `refused`: the error code when no role may call it."""

    index: int
    plan: QueryPlan
    connection: ConnectionPlan
    spec: Spec
    unbound: Bound
    refused: str | None

    @property
    def name(self) -> str:
        """Path segment."""
        return self.plan.name

    @property
    def allow(self) -> str:
        """Value of an Allow header."""
        return "POST, OPTIONS" if self.plan.write else "GET, HEAD, POST, OPTIONS"


@dataclass(frozen=True, slots=True)
class Sight:
    """What one role sees of one query. `refused`: the error code when it may name the query and not call it."""

    writer: RowWriter
    refused: str | None


class Tables:
    """Everything that a call is served from. Never changed; a new snapshot makes new ones.

    `before`: the last tables. What was worked out there of the very same plans is taken over, so that a change costs what it changes.
    """

    def __init__(self, snapshot: Snapshot, secret: bytes | None, before: "Tables | None" = None) -> None:
        self.snapshot = snapshot
        self.version = snapshot.version
        self.hide_forbidden = snapshot.api.hide_forbidden
        self.trusted_proxies = _networks("api", snapshot.api.trusted_proxies)
        self.cursor_key: CursorKey | None = None if secret is None else cursor_key(secret)
        _unique("connection", (connection.name for connection in snapshot.connections))
        _unique("query", (query.name for query in snapshot.queries))
        _unique("role", (role.name for role in snapshot.roles))
        self._secret = secret
        before = before if before is not None and before._secret == secret else None
        old = before.queries if before is not None else ()
        self.queries: tuple[Query, ...] = tuple(
            _kept_query(old[n] if n < len(old) else None, n, plan, snapshot.connections) for n, plan in enumerate(snapshot.queries)
        )
        if secret is None and any(query.plan.page for query in self.queries):
            raise SnapshotRefused("The gateway's secret cannot be read, and cursors need it.")
        self._by_name = {query.name: query for query in self.queries}
        masker = None if secret is None else mask_key(secret)
        known: dict[object, Sight] = {}
        whole: dict[int, dict[int, Sight]] = {}
        """Tables of grants by the identity of the grants: many roles share theirs."""
        if before is not None and len(old) == len(self.queries) and all(a is b for a, b in zip(old, self.queries, strict=True)):
            whole = {id(role.grants): table for role, table in zip(before.snapshot.roles, before.roles, strict=True)}
        made = []
        for role in snapshot.roles:
            if id(role.grants) not in whole:
                whole[id(role.grants)] = self._grants(role.name, role.grants, masker, known)
            made.append(whole[id(role.grants)])
        self.roles: tuple[dict[int, Sight], ...] = tuple(made)
        self._bound: dict[tuple[str, int], Bound | None] = {}
        """Bindings of (key, query), made at their first call. Bounded by what is granted."""
        self._keys: dict[bytes, Key] = {}
        kept = {id(key.plan): key for key in before._keys.values()} if before is not None else {}
        for plan in snapshot.keys:
            self._add(plan, kept.get(id(plan)))

    def _grants(self, role: str, grants: tuple[Grant, ...], masker: MaskKey | None, known: dict[object, Sight]) -> dict[int, Sight]:
        table: dict[int, Sight] = {}
        for grant in grants:
            if grant.query >= len(self.queries):
                raise SnapshotRefused(f"role {role}: a granted query does not exist")
            if grant.query in table:
                raise SnapshotRefused(f"role {role}: a query is granted twice")
            query = self.queries[grant.query]
            refused = None if grant.refused is None else refusal(grant.refused)
            masks: tuple[MaskPlan, ...] = () if refused or query.refused else grant.masks
            mark = (grant.query, tuple((mask.column, mask.with_) for mask in masks), refused)
            if mark not in known:
                known[mark] = Sight(_writer(role, query, masks, masker), refused)
            table[grant.query] = known[mark]
        return table

    def _add(self, plan: KeyPlan, before: Key | None) -> None:
        if plan.role >= len(self.roles):
            raise SnapshotRefused(f"key {plan.id}: its role does not exist")
        key = before or Key(plan, _networks(f"key {plan.id}", plan.cidrs))
        for text in plan.sha256:
            try:
                digest = bytes.fromhex(text)
            except ValueError:
                digest = b""
            if len(digest) != 32 or len(text) != 64:
                raise SnapshotRefused(f"key {plan.id}: sha256 is not valid")
            if self._keys.setdefault(digest, key) is not key:
                raise SnapshotRefused(f"key {plan.id}: another key has its sha256")

    @property
    def keys(self) -> int:
        """How many digests can be presented."""
        return len(self._keys)

    def admit(self, text: bytes | None, now_us: int, address: Address) -> Key | None:
        """The key with this text, if it is valid now and from there; None whatever the reason."""
        if not text or len(text) > LONGEST_KEY_BYTES:
            return None
        digest = hashlib.sha256(text).digest()
        key = self._keys.get(digest)
        # The look-up is by digest, which a caller cannot steer; what it found is compared again in constant time.
        if key is None or not any(hmac.compare_digest(digest, bytes.fromhex(own)) for own in key.plan.sha256):
            return None
        return key if key.valid(now_us, address) else None

    def query(self, name: str) -> Query | None:
        """The query of that name."""
        return self._by_name.get(name)

    def sight(self, key: Key, query: Query) -> tuple[Sight, Bound] | None:
        """What this key sees of the query, and its bindings of it; None: it may not call it."""
        sight = self.roles[key.plan.role].get(query.index)
        if sight is None:
            return None
        if not key.plan.bind:
            return sight, query.unbound
        mark = (key.id, query.index)
        if mark not in self._bound:
            try:
                self._bound[mark] = query.spec.bound(key.plan.bind)
            except ValueError:
                self._bound[mark] = None
        bound = self._bound[mark]
        return None if bound is None else (sight, bound)


def refusal(reason: str) -> str:
    """The error code that a refused unit answers with."""
    return "database_unavailable" if reason == "database_unreachable" else "query_refused"


def _unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SnapshotRefused(f"{kind} {name}: there are two of this name")
        seen.add(name)


def _networks(unit: str, texts: tuple[str, ...]) -> tuple[Network, ...]:
    try:
        return networks(texts)
    except ValueError:
        raise SnapshotRefused(f"{unit}: a network is not valid") from None


def _query(index: int, plan: QueryPlan, connections: tuple[ConnectionPlan, ...]) -> Query:
    unit = f"query {plan.name}"
    if plan.connection >= len(connections):
        raise SnapshotRefused(f"{unit}: its connection does not exist")
    connection = connections[plan.connection]
    if plan.refused is None:
        _check_statements(unit, plan, connection.engine)
    try:
        spec = Spec(plan.params, plan.page, connection.engine)
        unbound = spec.bound({})
    except ValueError:
        raise SnapshotRefused(f"{unit}: its parameters are not valid") from None
    return Query(index, plan, connection, spec, unbound, None if plan.refused is None else refusal(plan.refused))


def _kept_query(old: Query | None, index: int, plan: QueryPlan, connections: tuple[ConnectionPlan, ...]) -> Query:
    """The old one if it was made of the very same plans."""
    if old is not None and old.plan is plan and plan.connection < len(connections) and old.connection is connections[plan.connection]:
        return old
    return _query(index, plan, connections)


def _check_statements(unit: str, plan: QueryPlan, engine: Engine) -> None:
    def check(statement: StatementPlan, places: int) -> None:
        if any(param >= len(plan.params) for param in statement.params):
            raise SnapshotRefused(f"{unit}: a parameter of its statement does not exist")
        if engine is not Engine.SQLITE and len(statement.oids) != places:
            raise SnapshotRefused(f"{unit}: a place of its statement has no type")

    page: PagePlan | None = plan.page
    if page is None:
        check(plan.statement, len(plan.statement.params))
        return
    sizes = page.default_size <= page.max_size
    if not sizes or plan.write or plan.returns is not Returns.MANY or any(key.column >= len(plan.columns) for key in page.keys):
        raise SnapshotRefused(f"{unit}: its page is not valid")
    check(page.first, len(page.first.params) + 1)
    check(page.next, len(page.next.params) + len(page.keys) + 1)


def _writer(role: str, query: Query, masks: tuple[MaskPlan, ...], masker: MaskKey | None) -> RowWriter:
    unit = f"role {role}: query {query.name}"
    if query.plan.page and any(key.column == mask.column for key in query.plan.page.keys for mask in masks):
        raise SnapshotRefused(f"{unit}: a page key is masked")
    try:
        return RowWriter(query.plan.columns, masks, masker)
    except ValueError:
        raise SnapshotRefused(f"{unit}: its masks or columns are not valid") from None
