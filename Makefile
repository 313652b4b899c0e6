# gpujob: the two commands of the README are `make demo` and `make test`; the rest is for those who change it.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := bot scheduler demo tests

.PHONY: help demo test check format lint types contracts bench harvest ablation chaos browser node-bolt screenshots cluster test-cluster test-node test-prometheus lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "gpujob needs Python 3.11, 3.12 or 3.13; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "Making $(VENV) from requirements.lock; this happens once and takes about half a minute."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY) ## the story of one night on this computer; GPUJOB_DEMO_EXIT=1 ends after it
	$(BIN)/python -m demo

test: $(READY) ## everything that needs only Python
	$(BIN)/python -m pytest -n auto -m "not browser and not node_bolt and not cluster and not node and not prometheus"

check: format lint types contracts test ## what every commit passes

format: $(READY)
	$(BIN)/ruff format --check $(SOURCES) examples

lint: $(READY)
	$(BIN)/ruff check $(SOURCES) examples

types: $(READY)
	$(BIN)/mypy bot scheduler demo

contracts: $(READY)
	$(BIN)/lint-imports --no-cache

bench: $(READY) ## speed and memory, as JSON
	$(BIN)/python -m tests.bench

harvest: $(READY) ## the harvest benchmark: all files and policies; writes docs/harvest.md (about 5 minutes)
	$(BIN)/python -m tests.harvest

ablation: $(READY) ## what each rule of the planner is worth; writes docs/planning.md (about 8 minutes)
	$(BIN)/python -m tests.ablation

chaos: $(READY) ## 200 random kill -9 of scheduler and bot during a compressed story
	$(BIN)/python -m tests.chaos

browser: $(READY) ## a person's way through the playground page, in Chromium
	$(BIN)/python -m pytest -m browser -p no:randomly

node-bolt: $(READY) ## the official Node @slack/bolt against the playground
	$(BIN)/python -m pytest -m node_bolt

screenshots: $(READY) ## docs/images, from the real playground page
	$(BIN)/python -m tests.screenshots
	GPUJOB_SCREENSHOTS=1 $(BIN)/python -m pytest -m browser -p no:randomly tests/browser

cluster: $(READY) ## a real control plane with Argo on this computer (needs Go; about 8 minutes the first time)
	$(BIN)/python -m tests.cluster.control_plane

test-cluster: $(READY) ## what only a real control plane can prove; starts it, and ends it
	$(BIN)/python -m tests.cluster.build
	$(BIN)/python -m tests.go_programs
	$(BIN)/python -m pytest -m cluster -p no:randomly

test-node: $(READY) ## one real node with containerd and kubelet (root, Debian)
	$(BIN)/python -m pytest -m node -p no:randomly

test-prometheus: $(READY) ## whatif against a real Prometheus with seven days of traffic (needs the package prometheus)
	$(BIN)/python -m pytest -m prometheus -p no:randomly -s

lock: ## requirements.lock from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras pyproject.toml -o requirements.lock

clean: ## what the commands above made
	rm -rf $(VENV) .demo demo/transcript.json demo/timings.json .mypy_cache .ruff_cache .import_linter_cache .pytest_cache build dist *.egg-info
