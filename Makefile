# The front door. `make` alone prints what there is.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEED   ?= 1
OUT    ?= out
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-component test-gateway test-cluster test-quality lint format api-reference charts lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv with everything the other targets need

$(VENV)/.ready: requirements/dev.txt pyproject.toml hatch_build.py $(wildcard picker/src/poolpilot_picker/compiled/*.p[xy][xd] lab/src/poolpilot_lab/engine/compiled/*.pyx)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("poolpilot needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another with: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## the whole data path for real, against round robin and least request (SEED=1, OUT=out)
	$(BIN)/poolpilot demo --seed $(SEED) --out $(OUT)

test: setup ## every test
	$(BIN)/python -m pytest

test-unit: setup ## pure tests only
	$(BIN)/python -m pytest tests/unit

test-component: setup ## gRPC, HTTP and files, no gateway
	$(BIN)/python -m pytest tests/component

test-gateway: setup ## tests through a real Envoy
	$(BIN)/python -m pytest tests/gateway

test-cluster: setup ## tests in a Kubernetes cluster, its pods as local processes
	$(BIN)/python -m pytest tests/cluster

test-quality: setup ## benchmark gates and slopes
	$(BIN)/python -m pytest tests/quality

lint: setup ## ruff, mypy (strict) and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

api-reference: setup ## rewrite docs/api.md from crds/
	$(BIN)/python -m poolpilot_lab.api_reference

charts: setup ## rewrite what is derived in charts/: copies of crds/, values.yaml and README.md
	$(BIN)/python -m poolpilot_lab.charts

lock: ## rewrite the hashed requirement files (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra picker --extra operator --extra lab --group envoy --group lint --group test --group build pyproject.toml -o requirements/dev.txt
	for e in picker operator lab; do uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra $$e -c requirements/dev.txt pyproject.toml -o requirements/$$e.txt; done

clean: ## remove .venv, out and caches
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
