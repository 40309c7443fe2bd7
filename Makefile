# Everything a developer runs; CI calls the same names. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CLUSTER ?= auto
SEEDS ?= 300
EDGE_SEEDS ?= 500
TYPE_SEEDS ?= 200
MINUTES ?= 20
WORKERS ?= 2
PYTEST_ARGS ?=
CHAOS_ARGS ?=
MUTANTS_ARGS ?=
TESTS ?=
RUNS ?= 20
LOOPS ?= 4
BENCH_ARGS ?=
BESIDE ?=
SOAK_ARGS ?=
OVERLOAD_ARGS ?=
GROUPS ?= 500
SCALE_ARGS ?=
GROWTH_ARGS ?=
HOSTILE_ARGS ?=
FUZZ_ARGS ?=
CLIENTS_ARGS ?=
DURATIONS_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.synced

# Most tests wait or use one core, and run beside each other; those marked `alone` follow by themselves.
TOGETHER := $(PY) -m pytest -n $(WORKERS) --durations=25
ALONE := $(PY) -m pytest --durations=25
ALONE_IN := tests/chaos tests/system
# What takes over 20 s is left to `make test-all`; `make unit NOT_LONG=` takes it along.
NOT_LONG := and not long
# Arguments that choose tests may leave one of the two parts with none (pytest's exit code 5), not both:
# the second mkdir of a run fails, and its complaint names what is wrong.
NO_TEST := build/no-test-was-chosen
MAY_BE_NONE := $(if $(PYTEST_ARGS),$(shell rmdir $(NO_TEST) 2>/dev/null)|| { [ $$? = 5 ] && mkdir -p build && mkdir $(NO_TEST); })

.PHONY: help setup lint check proto unit coverage mutants sim chaos e2e e2e-all test test-all found shake demo demo-backup demo-outage demo-down bench bench-pipeline clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Install everything the project needs into .venv (uses uv, installs it if missing)

$(STAMP): pyproject.toml uv.lock
	@bash scripts/setup.sh
	@touch $(STAMP)

lint: $(STAMP) ## Lint, format and import contracts: what a commit is held to (.pre-commit-config.yaml)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

check: lint ## That, and types
	$(VENV)/bin/mypy

proto: $(STAMP) ## Regenerate the protobuf code from node/proto, and the types of RocketMQ's messages
	$(PY) scripts/generate_proto.py
	$(PY) scripts/generate_rocketmq_stubs.py

.PHONY: catalogue
catalogue: $(STAMP) ## Write docs/catalogue.yaml (reasons, Events, metrics, alerts) into the documents
	$(PY) -m scripts.catalogue

.PHONY: tools
tools: $(STAMP) ## Build Helm, etcd, Kubernetes, Prometheus and versitygw for the tests; at once if there
	@$(PY) -m e2e.cluster tools

unit: tools ## Tests without a cluster
	$(TOGETHER) tests -m "not alone and not e2e $(NOT_LONG)" $(PYTEST_ARGS) $(MAY_BE_NONE)
	$(ALONE) $(ALONE_IN) -m "alone and not e2e $(NOT_LONG)" $(PYTEST_ARGS) $(MAY_BE_NONE)

DECIDED := operator/dledger_operator/decisions,operator/dledger_operator/status
ONE_PICTURE := */decisions/facts.py,*/decisions/plan.py,*/status/status.py,*/status/conditions.py,*/status/degraded.py

coverage: $(STAMP) ## Branches the tests take: 95 % of raft/ and store/, all of the operator's picture and plan
	@mkdir -p build
	$(PY) -m coverage run -m pytest -q -x tests/raft tests/store tests/files tests/replica tests/server \
		--ignore tests/store/test_crash_enumerator.py --ignore tests/store/test_bit_flips.py \
		--ignore tests/store/test_crash_snapshots.py $(PYTEST_ARGS)
	$(PY) -m coverage report
	$(PY) -m coverage json -q -o build/coverage.json
	$(PY) scripts/check_branches.py build/coverage.json 95
	$(PY) -m coverage run --data-file build/.coverage-operator --source $(DECIDED) \
		-m pytest -q -x tests/operator -m "not alone and not e2e and not long" $(PYTEST_ARGS)
	$(PY) -m coverage report --data-file build/.coverage-operator --fail-under 100 --include $(ONE_PICTURE)

mutants: $(STAMP) ## Plant bugs and show which check caught each: make mutants [MUTANTS_ARGS=...]
	$(PY) -m tests.mutants $(MUTANTS_ARGS)

sim: $(STAMP) ## Seeded simulator, topics of all types, producers at its edge: make sim SEEDS=1000 [TYPE_SEEDS=200] [EDGE_SEEDS=500]
	$(PY) -m dledger_sim --seeds $(SEEDS)
	$(PY) -m dledger_sim --world types --seeds $(TYPE_SEEDS)
	$(PY) -m dledger_sim --edge --seeds $(EDGE_SEEDS)

.PHONY: model
model: $(STAMP) ## When a damaged end of a log may go: every state of a model, and walks of it on the core
	$(PY) -m tests.raft.discard_worlds

chaos: $(STAMP) ## Real nodes under kills, cuts, I/O errors: make chaos MINUTES=20 [CHAOS_ARGS=...]
	$(PY) -m e2e.chaos --minutes $(MINUTES) $(CHAOS_ARGS)

.PHONY: paths
paths: $(STAMP) ## Calls of our own that one message costs; fails past a bound: make paths [PATHS_ARGS="--top 20"]
	$(PY) -m dledger_sim paths $(PATHS_ARGS)

.PHONY: bench-restart
bench-restart: $(STAMP) ## A node with a log of 10 GiB: seconds until it votes (needs 11 GiB under build/)
	$(PY) -m e2e.bench.restart

e2e: $(STAMP) ## Stories on a real Kubernetes cluster: make e2e [CLUSTER=auto|local|kind|current]
	E2E_CLUSTER=$(CLUSTER) $(PY) -m pytest e2e -m "not long" $(PYTEST_ARGS)

e2e-all: $(STAMP) ## The same, and the stories that take long; their figures are in build/e2e.json
	E2E_CLUSTER=$(CLUSTER) $(PY) -m pytest e2e $(PYTEST_ARGS)

test: check tools ## Lint, types, unit, simulator, stories on a real cluster: what CI runs
test-all: check tools ## The same, and the tests that take over 20 s each
test-all: NOT_LONG :=
test test-all:
	$(TOGETHER) tests -m "not alone $(NOT_LONG)" $(PYTEST_ARGS) $(MAY_BE_NONE)
	E2E_CLUSTER=$(CLUSTER) $(ALONE) $(ALONE_IN) e2e -m "alone $(NOT_LONG)" $(PYTEST_ARGS) $(MAY_BE_NONE)

found: $(STAMP) ## The faults that were found from outside, as tests
	$(PY) -m pytest $$(grep -rl 'mark\.found' tests --include='test_*.py') -m found $(PYTEST_ARGS)

shake: $(STAMP) ## A new or changed test 20 times beside four busy loops: make shake TESTS=tests/x.py::test_y
	@$(PY) scripts/shake.py --runs $(RUNS) --loops $(LOOPS) $(TESTS)

demo: $(STAMP) ## A cluster, a group, a killed leader, nothing lost (about 2 minutes once built)
	$(PY) -m e2e.demo --cluster $(CLUSTER)

demo-backup: $(STAMP) ## The same cluster: a backup by Spark, a lost group, a restored one, all compared
	$(PY) -m e2e.demo.backup --cluster $(CLUSTER)

demo-outage: $(STAMP) ## All nodes killed for 30 s under SDK producers beside sidecars, nothing lost; no cluster (1 minute)
	$(PY) -m e2e.clients.demo_outage $(DEMO_ARGS)

demo-down: $(STAMP) ## Remove everything that demo and e2e put on this machine
	$(PY) -m e2e.cluster purge --cluster $(CLUSTER)

bench-pipeline: $(STAMP) ## What backup and restore take of a processor, line by line (BENCH_ARGS="--mib 128 --only size")
	$(PY) -m e2e.bench.pipeline $(BENCH_ARGS)

bench: $(STAMP) ## Beside Java DLedger, etcd, RocketMQ, Kafka and NATS (BENCH_ARGS="--help"), or a commit: make bench BESIDE=main
	$(PY) -m e2e.bench$(if $(BESIDE),.beside $(BESIDE)) $(BENCH_ARGS)

.PHONY: soak
soak: $(STAMP) ## Steady load with a fault each minute: make soak MINUTES=30 [SOAK_ARGS=...]
	$(PY) -m e2e.bench.soak --minutes $(MINUTES) $(SOAK_ARGS)

.PHONY: overload
overload: $(STAMP) ## More than a group can take, four ways, and how it is afterwards
	$(PY) -m e2e.bench.overload $(OVERLOAD_ARGS)

.PHONY: scale
scale: tools ## What many groups cost the operator: make scale GROUPS=500 [SCALE_ARGS="--idle-s 60 --peer-tls"]
	$(PY) -m tests.scale --groups $(GROUPS) $(SCALE_ARGS)

.PHONY: growth
growth: $(STAMP) ## A group that has lived for a year: make growth [GROWTH_ARGS="--only polls,storm"]
	$(PY) -m e2e.growth $(GROWTH_ARGS)

.PHONY: hostile
hostile: $(STAMP) ## An honest client beside attackers: make hostile [HOSTILE_ARGS="--only a02,b02 --ways plain,tls"]
	$(PY) -m e2e.hostile $(HOSTILE_ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## Hostile inputs to every decoder: make fuzz MINUTES=20 [FUZZ_ARGS="--target frames --seed 7"]
	$(PY) -m tests.fuzz --minutes $(MINUTES) --jobs $(WORKERS) $(FUZZ_ARGS)

.PHONY: clients
clients: $(STAMP) ## Official clients of five languages: make clients [CLIENTS_ARGS="--languages node,rust"]
	$(PY) -m e2e.clients $(CLIENTS_ARGS)

.PHONY: durations
durations: $(STAMP) ## The slowest files of tests, by what the runs on this machine noted (DURATIONS_ARGS="--top 50")
	@$(PY) -m tests.running.durations $(DURATIONS_ARGS)

.PHONY: bench-report
bench-report: $(STAMP) ## Write docs/performance.md and its plots from bench/results
	$(PY) -m e2e.bench.report

clean: ## Remove build products of this checkout
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache
