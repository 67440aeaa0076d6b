# README's commands. Each target installs what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo .venv/bin/uv)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
STAMP := $(VENV)/.stamp-$(shell sha256sum requirements.lock 2>/dev/null | cut -c1-16)

.PHONY: help venv demo lock fmt lint generate deny build test fuzz differential faults revocation bench bench-quick bench-figures e2e clean

TOOLS := $(or $(TAILRACE_TOOLS),$(CURDIR)/.tools)

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The plugin of kubectl: `kubectl tailrace` finds it by this name on PATH.
$(VENV)/bin/kubectl-tailrace: | $(STAMP)
	@printf '#!%s\nimport sys\nfrom tailrace_gateway.plugin.cli import main\nsys.exit(main())\n' $(BIN)/python > $@ && chmod +x $@

$(STAMP):
	@command -v uv >/dev/null || { $(PYTHON) -m venv $(VENV) && $(VENV)/bin/python -m pip install -q uv; }
	@[ -x $(VENV)/bin/python ] || $(UV) venv -q --python $(PYTHON) $(VENV)
	@$(UV) pip install -q --python $(VENV)/bin/python --require-hashes -r requirements.lock
	@printf '%s\n' $(CURDIR)/crds/src $(CURDIR)/gateway/src $(CURDIR)/loadtests/src $(CURDIR)/operator/src $(CURDIR)/e2e/src > $$($(VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tailrace.pth
	@printf '#!%s\nimport sys\nfrom tailrace_gateway.cli import main\nsys.exit(main())\n' $(BIN)/python > $(VENV)/bin/tailrace && chmod +x $(VENV)/bin/tailrace
	@touch $@

venv: $(STAMP) $(VENV)/bin/kubectl-tailrace ## Python environment in .venv, from requirements.lock

lock: ## Recompute requirements.lock (after a change of a pyproject.toml)
	uv pip compile -q --generate-hashes --no-header --no-annotate --universal --python-version 3.11 \
	  --no-emit-package tailrace-contract crds/pyproject.toml gateway/pyproject.toml loadtests/pyproject.toml operator/pyproject.toml \
	  --group pyproject.toml:dev -o requirements.lock
	@# What each image holds: the same versions, only what that part needs, and only for Linux.
	for part in operator gateway; do uv pip compile -q --generate-hashes --no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-emit-package tailrace-contract --constraints requirements.lock crds/pyproject.toml $$part/pyproject.toml -o images/$$part/requirements.lock; done

generate: venv ## Rewrite what is derived from the contract
	python -m tailrace_contract.generate

DEMO ?=
demo: venv ## Serve the example shop: prints a curl line to paste (DEMO="--listen 127.0.0.1:8081" if a port is taken)
	@exec python docs/examples/shop/local/demo.py $(DEMO)

fmt: venv ## Format everything
	ruff format -q . && ruff check -q --fix .
	cargo fmt

lint: venv ## Formatting, types, layers, generated files, acceptance rows
	ruff format --check . && ruff check .
	mypy
	lint-imports
	python -m tailrace_contract.generate --check
	python -m tailrace_loadtest.bench.figures --check
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	python .ci/acceptance.py

deny: ## Licences, bans and sources of every crate (deny.toml)
	@[ -x $(TOOLS)/bin/cargo-deny ] || cargo install -q --locked --root $(TOOLS) --target-dir $(TOOLS)/target cargo-deny@0.20.2
	$(TOOLS)/bin/cargo-deny --locked --log-level error check licenses bans sources

build: ## Release builds of the data plane and the load generator
	cargo build --release --workspace

WORKERS ?= 2
# The release build comes first: built by the first Python test that needs it, it would have that one's time limit.
test: venv build ## Every test that needs no cluster (WORKERS=2: processes that the Python ones are spread over, by file)
	cargo test --workspace
	pytest -n $(WORKERS) --dist loadfile

E2E ?=
e2e: venv ## What a user sees on a real cluster: KUBECONFIG's, or the testbed beside this clone (KEEP=1 keeps it up; LONG=1 has every change under load; E2E="-k quickstart")
	@exec e2e/run $(E2E)

# Coverage without a sanitizer needs no nightly toolchain, only permission to pass its flags.
FUZZ := RUSTC_BOOTSTRAP=1 PATH=$(TOOLS)/bin:$$PATH cargo fuzz
SECONDS ?= 30

fuzz: ## Every fuzz target for SECONDS=30, from its committed corpus; new inputs go into .fuzz/
	@[ -x $(TOOLS)/bin/cargo-fuzz ] || cargo install -q --locked --root $(TOOLS) --target-dir $(TOOLS)/target cargo-fuzz@0.13.2
	cd dataplane-rs && $(FUZZ) build --sanitizer none
	@for target in $$(cd dataplane-rs && $(FUZZ) list); do \
	  mkdir -p .fuzz/$$target && echo "fuzz $$target" && (cd dataplane-rs && $(FUZZ) run --sanitizer none $$target \
	    $(CURDIR)/.fuzz/$$target fuzz/corpus/$$target -- -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1) || exit 1; \
	done

N ?= 5000
SEED ?= 1
ROUNDS ?= 20
LEAST ?= 100000
ENGINE ?= postgres
REVOKED ?= 20

differential: venv ## N calls to the data plane and to Python alone, and N more on MariaDB, everything compared (N=50000 SEED=1)
	python -m tailrace_loadtest.differential --calls $(N) --seed $(SEED) --transports http1,pipelined,http2
	python -m tailrace_loadtest.differential --engine mysql --calls $(N) --seed $(SEED) --transports http1,pipelined,http2

faults: venv ## kill -9 under full load, run ids compared as sets (ROUNDS=20)
	python -m tailrace_loadtest.faults --rounds $(ROUNDS) --least $(LEAST) --engine $(ENGINE)

revocation: venv ## Keys, tables and views changed under full load (REVOKED=20)
	python -m tailrace_loadtest.revocation --keys $(REVOKED)

BENCH ?=
instructions: ## Instructions a call of each stage, by callgrind, against dataplane-rs/instructions/figures.json (ACCEPT=1 writes them)
	python3 .ci/instructions.py $(if $(ACCEPT),--accept)

bench: venv ## Every bar and curve of docs/performance.md beside its peers, into .bench/ (BENCH="--only plain peers --rounds 5")
	python -m tailrace_loadtest.bench --output .bench $(BENCH)

bench-quick: venv ## The bars that need no peer, in 3 minutes
	python -m tailrace_loadtest.bench --quick --output .bench

FROM ?= .bench/bench.json
bench-figures: venv ## docs/figures from a run's results (FROM="docs/figures/bench.json .bench/bench.json" keeps what it didn't measure)
	python -m tailrace_loadtest.bench.figures --from $(FROM)

clean: ## Remove what was built here
	rm -rf .venv .demo .tailrace .bench .fuzz target dataplane-rs/fuzz/target
