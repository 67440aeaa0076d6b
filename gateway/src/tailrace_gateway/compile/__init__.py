"""Governance: each (query, role) becomes a plan or a refusal, against the live catalog, ahead of the first call.

`spec` (what is asked) → `placeholders` (numbered SQL) → `postgres`/`sqlite` (facts of the live database: types, lineage) →
`decision` (facts and a role's rules → masks or refusal) → `snapshot` (what both processes serve). Only `compiler`, `postgres.session`
and `sqlite.session` do IO; everything else is pure. The default is refusal.
"""
