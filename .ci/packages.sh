#!/usr/bin/env bash
# Debian packages that the tests and gates need and this machine lacks. Installing needs root; otherwise says what to run.
set -euo pipefail
declare -A wanted=(
  [postgresql]=/usr/lib/postgresql/15/bin/initdb
  [mariadb-server]=/usr/sbin/mariadbd
  [pgbouncer]=/usr/sbin/pgbouncer
  [sqlite3]=/usr/bin/sqlite3
  [nginx-light]=/usr/sbin/nginx
  [valgrind]=/usr/bin/valgrind
  [openssl]=/usr/bin/openssl
  [curl]=/usr/bin/curl
  [gcc]=/usr/bin/cc
  [g++]=/usr/bin/c++
  [make]=/usr/bin/make
)
missing=()
for package in "${!wanted[@]}"; do [ -e "${wanted[$package]}" ] || missing+=("$package"); done
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -gt 0 ] || { echo 'nothing is missing'; exit 0; }
if [ "$(id -u)" -ne 0 ]; then
  echo "install first: sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then
  # Debian's packages start their servers on install; the tests start their own, on ports of their own.
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "installed: ${missing[*]}"
