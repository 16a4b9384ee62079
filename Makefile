# Sandgate: everything a person types. `make help` lists it.
#
# The environment is .venv in this clone, built from constraints.txt. Downloads are cached outside of it, so a fresh clone is quick.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sandgate
export UV_CACHE_DIR ?= $(CACHE)/uv
# The machine's own certificates, as pip and git use them: behind a company's proxy uv's built-in ones do not verify.
export UV_SYSTEM_CERTS ?= 1
# uv does not read pip's settings; a machine that names its package index to pip only should still work.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

BIN := .venv/bin
# Most tests that take long wait, so two workers suit one core as well as four. A few tests are quicker, and easier to read, alone.
WORKERS ?= 2
SIDE_BY_SIDE = $(if $(T),,--numprocesses $(WORKERS))
# One stamp for each state of the two files that define the environment; a change of either builds it anew.
STAMP := .venv/.sandgate-$(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)

## make demo [FRESH=1]      a whole job on this machine: engine, gateway, agents, trajectories -> out/demo; FRESH=1: anew
.PHONY: demo
demo: venv
	@finished="$(if $(filter-out 0,$(FRESH)),,$(wildcard out/demo/result.json))"
	engine="$$(scripts/engine-env.sh | tail -n 1)"
	SANDGATE_ENGINE_VENV="$$engine" $(BIN)/sandgate run examples/shop/job.yaml --out out/demo $(if $(filter-out 0,$(FRESH)),--fresh)
	[ -z "$$finished" ] || echo "make demo FRESH=1 runs it anew"

## make demo-rl [ARGS=...] [EXAMPLE=shop]  TRL's GRPO on an agent that programs: watch it learn -> out/demo-rl. ARGS: --seed 1 --ahead 1
.PHONY: demo-rl
demo-rl: OUT = out/demo-rl$(if $(EXAMPLE),-$(EXAMPLE))
demo-rl: PROGRAM = examples/learning/demo.py --example examples/$(or $(EXAMPLE),coder)-rl --out $(OUT)
demo-rl: venv
	@$(LEARN)

## make compare-rl [ARGS=...]  what the trainer is told: exact records, transcripts, lost sandboxes; 5 seeds -> out/compare-rl
.PHONY: compare-rl
compare-rl: PROGRAM = examples/coder-rl/compare.py --out out/compare-rl
compare-rl: venv
	@$(LEARN)

define LEARN
engine="$$(scripts/engine-env.sh | tail -n 1)"
trl="$$(scripts/trainer-env.sh trl | tail -n 1)"
export SANDGATE_ENGINE_VENV="$$engine" PYTHONPATH="$$(printf '$(CURDIR)/%s:' contract gateway operator sandbox trainer)"
"$$trl/bin/python" $(PROGRAM) $(ARGS)
endef

## make test [T=...]        what needs no root, compiler, cluster or whole trainer; T: a path (all of it), or options (T='-k lease')
##                          HOG=2: beside two processes that never rest; WORKERS=2: so many tests at once, where T names none
.PHONY: test
test: venv
	@$(BIN)/pytest $(SIDE_BY_SIDE) $(if $(HOG),--hog $(HOG)) $(T)

## make test-all [T=...]    every test: a real Kubernetes, chart and images (root, Go), chaos, verl, AReaL, TRL
.PHONY: test-all
test-all: venv
	@$(BIN)/pytest --tier all --durations 60 --durations-min 10 $(SIDE_BY_SIDE) $(if $(HOG),--hog $(HOG)) $(T)

## make check               lint, format, types, walls, generated files: all that can be said without running
.PHONY: check
check: venv
	@$(MAKE) -k $(STATIC) check-tidy # -k: say all that is wrong

STATIC := check-lint check-format check-types check-layers check-generated
.PHONY: check-static
check-static: venv
	@$(MAKE) -k $(STATIC)

.PHONY: check-lint check-format check-types check-layers check-generated check-tidy
check-lint: ; $(BIN)/ruff check
check-format: ; $(BIN)/ruff format --check
check-types: ; $(BIN)/mypy
check-layers: ; $(BIN)/lint-imports --no-logo --cache-dir .venv/.import-linter
check-generated: ; $(BIN)/python scripts/generate.py --check
check-tidy: ; $(BIN)/pytest -q -p no:cacheprovider tests/tidy && $(BIN)/python -m tests.tidy.long_files

## make fix                 what tools can mend: lint, format, generated files
.PHONY: fix
fix: venv
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python scripts/generate.py

## make bench [ARGS=--smoke]  gateway overhead and friends, measured here; numbers go to out/bench
.PHONY: bench
bench: venv
	$(BIN)/python -m tests.bench $(ARGS)

## make fuzz [INPUTS=1000000] [EXAMPLES=n]  mutated bodies, records, manifests, answers; with EXAMPLES the property tests too, for longer
.PHONY: fuzz
fuzz: export SANDGATE_FUZZ_EXAMPLES := $(EXAMPLES)
fuzz: venv
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),1000000)
	$(if $(EXAMPLES),$(BIN)/pytest -m hypothesis --hypothesis-profile=fuzz -o timeout=0 $(T))

## make truth [ONLY="Gemma 2"]  recorded logprobs of tiny models of many architectures, on a real vLLM, against transformers: docs/logprobs.md
.PHONY: truth
truth: venv
	$(BIN)/python -m tests.truth $(if $(ONLY),--only "$(ONLY)")

## make cluster-up          a real three-node Kubernetes without Docker (Linux, root); tests use it and leave it on
.PHONY: cluster-up
cluster-up: venv
	@$(BIN)/python -m tests.cluster.harness up

## make cluster-down        ends it, and clears what a crashed run left
.PHONY: cluster-down
cluster-down: venv
	@$(BIN)/python -m tests.cluster.harness down

## make kind-test [KUBECONFIG=path] [CONTEXT=name] [IMAGES=registry/team] [TAG=tag]  helm install to acknowledged groups, on a cluster
##                          of yours; without KUBECONFIG on one made here as kind makes it (Linux, root)
.PHONY: kind-test
kind-test: venv
	@scripts/kind-test.sh "$(KUBECONFIG)" "$(CONTEXT)" "$(IMAGES)" "$(TAG)"

## make test-parts [PARTS="helm cluster"]  what tests need that takes minutes to make; runs of tests make what they need by themselves
.PHONY: test-parts
test-parts: venv
	@$(BIN)/python -m tests.support.prepare $(PARTS)

## make chaos [TIMES=10] [HAND=8] [TASKS=10] [KINDS="node etcd"]  kills operators, gateways, agents, nodes, engines, etcd, API servers under jobs in the test cluster
##                          then a gateway 20 times under one job on this machine (KILLS=20), if no KINDS are named
.PHONY: chaos
chaos: export SANDGATE_CHAOS_TIMES := $(or $(TIMES),10)
chaos: export SANDGATE_CHAOS_TASKS := $(or $(TASKS),10)
chaos: export SANDGATE_CHAOS_KINDS := $(KINDS)
chaos: export SANDGATE_CHAOS_HAND := $(or $(HAND),8)
chaos: export SANDGATE_KILLS := $(or $(KILLS),20)
chaos: venv
	$(BIN)/pytest -s tests/cluster/e2e/test_chaos.py $(if $(KINDS),,tests/e2e/test_kill_gateway.py tests/gateway/test_restarts.py) $(T)

## make chart [VERSION=1.2.3]  the Helm chart as an archive, the same bytes for the same files -> out/chart (docs/install.md)
.PHONY: chart
chart: venv
	@$(BIN)/python scripts/package_chart.py $(if $(VERSION),--version "$(VERSION)")

## make help                this list
.PHONY: help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

# -- below: used by the targets above ---------------------------------------------------------------------------------

.PHONY: venv
venv: $(STAMP)

# --compile-bytecode: where Python may not write what it compiled, each process compiles it anew: 4 s of CPU for a gateway.
$(STAMP): pyproject.toml constraints.txt
	@[ -w . ] || { echo "$(CURDIR) cannot be written: make puts its environment (.venv) and results (out) here; clone it to a place of yours" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=python3.11" >&2; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	[ -x $(BIN)/uv ] || $(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^uv==' constraints.txt)"
	$(BIN)/uv pip install -q -p $(BIN)/python --compile-bytecode -c constraints.txt --build-constraints constraints.txt -e '.[all,dev]'
	rm -f .venv/.sandgate-*
	touch $@

# The engine's own environment (vLLM), outside this clone. Idempotent; prints its path.
.PHONY: engine
engine: venv
	@scripts/engine-env.sh

# The tiny model of an example (EXAMPLE=coder-rl), trained anew; the one that is checked in was made like this.
.PHONY: model
model: venv
	engine="$$(scripts/engine-env.sh | tail -n 1)"
	"$$engine/bin/python" examples/$(or $(EXAMPLE),shop)/make_model.py $(ARGS)

# New pins for everything; read the diff before you commit it.
.PHONY: lock
lock: venv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile -q --upgrade pyproject.toml --all-extras --no-annotate --no-emit-package sandgate -p $(BIN)/python -o constraints.txt > /dev/null
