#!/bin/bash
# Makes the shop's databases in $PGDATA when it is empty, then serves them. Passwords come from files below /etc/passwords:
# shop (reads the shop), runs (owns the run store). Each start sets them anew, so a restart takes a changed one.
set -euo pipefail
export PGDATA=${PGDATA:-/var/lib/postgresql/data} PGHOST=/tmp
serve=(postgres -c unix_socket_directories=/tmp -c fsync=off -c max_connections=200)

if [ ! -e "$PGDATA/made" ]; then
  rm -rf "${PGDATA:?}"/*
  initdb --pgdata "$PGDATA" --username admin --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C.UTF-8 >/dev/null
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
"${serve[@]}" -c listen_addresses= & server=$!
until pg_isready -q -U admin -d postgres; do kill -0 $server; sleep 0.1; done
sql(){ psql -q -v ON_ERROR_STOP=1 -U admin "$@"; }
if [ ! -e "$PGDATA/made" ]; then
  sql -d postgres -c 'CREATE ROLE shop LOGIN' -c 'CREATE ROLE runs LOGIN' -c 'CREATE DATABASE shop' -c 'CREATE DATABASE runs OWNER runs'
  sql -d shop -1 -f /shop.sql -c 'GRANT SELECT ON ALL TABLES IN SCHEMA public TO shop'
  touch "$PGDATA/made"
fi
for role in shop runs; do
  sql -d postgres -v role="$role" -v password="$(cat "/etc/passwords/$role")" <<<'ALTER ROLE :"role" PASSWORD :'"'password'"';'
done
kill -INT $server; wait $server
exec "${serve[@]}" -c listen_addresses='*'
