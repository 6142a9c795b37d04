# gpuslice: `make demo` and `make test` set themselves up from a bare checkout.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test check generate docs-reference manifests verify lock clean

help: ## what there is to do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: $(STAMP) ## the virtual environment, from hash-locked dependencies

$(STAMP): requirements/dev.txt pyproject.toml deploy/preflight.sh
	@sh deploy/preflight.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## the main job on an embedded cluster: the sharing manifests, end to end
	$(BIN)/gpuslice demo

test: $(STAMP) ## all tests that need no real cluster
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not cluster" tests

histories: SEED := $(shell date +%s)
histories: $(STAMP) ## 10 000 generated histories of placement (SEED=, for those of another day)
	GPUSLICE_HISTORIES=10000 GPUSLICE_HISTORY_SEED=$(SEED) $(BIN)/python -m pytest -n 2 -rP tests/property/placement/test_histories_invariants.py

check: $(STAMP) ## ruff, format, types, layering, spelling, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict -p tests.cluster
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell gpuslice webhook deviceplugin tests deploy docs README.md CONTRIBUTING.md CHANGELOG.md
	$(MAKE) --no-print-directory verify

PROTOC = $(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
         protos/deviceplugin/v1beta1/api.proto protos/podresources/v1/api.proto

generate: $(STAMP) ## the gRPC stubs, from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PROTOC)

docs-reference: $(STAMP) ## docs/settings.md, docs/metrics.md and deploy/sbom.json, from code and lock
	$(BIN)/python -m gpuslice.cli.reference .

# In the order in which they are applied: kinds before objects, and last what asks the webhook.
MANIFESTS = deploy/manifests/00-namespaces.yaml $(sort $(wildcard deploy/crds/*.yaml)) \
            $(filter-out deploy/manifests/00-namespaces.yaml,$(sort $(wildcard deploy/manifests/*.yaml))) \
            deploy/webhook-configuration.yaml

manifests: ## deploy/install.yaml, from deploy/crds and deploy/manifests
	@{ echo "# gpuslice, all of it: kubectl apply -f install.yaml. Made by 'make manifests'; edit deploy/crds and deploy/manifests."; \
	   for file in $(MANIFESTS); do echo "---"; cat $$file; done; } > deploy/install.yaml

verify: generate docs-reference manifests ## generated files are current
	@git diff --exit-code --stat -- protos deploy/install.yaml docs/settings.md docs/metrics.md deploy/sbom.json || { echo "generated files differ: commit what 'make generate docs-reference manifests' wrote"; exit 1; }

lock: ## requirements/*.txt, from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra cli --extra demo --group dev pyproject.toml -o requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes pyproject.toml -o requirements/runtime.txt

clean: ## everything that make made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis

include tests/cluster/cluster.mk
include tests/load/load.mk
