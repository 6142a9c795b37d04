# SPDX-License-Identifier: Apache-2.0
# The real Kubernetes under the tests; included by the Makefile. Needs root and Go, and says so.
KUBE_VERSION ?= 1.36.3
NAME         ?= dev
GPUS         ?= tests/cluster/gpus.yaml
SEQUENCES    ?= 200
SEED         ?=
HARNESS      := $(BIN)/python -m tests.cluster.harness

.PHONY: cluster-packages cluster-build cluster cluster-down cluster-test cluster-differential image-lock

cluster-packages: $(STAMP) ## the Debian packages of a real cluster (as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $$($(HARNESS) packages)

cluster-build: $(STAMP) ## Kubernetes, etcd and containerd, compiled into the cache (10 min once)
	@$(HARNESS) build --kube-version $(KUBE_VERSION)

cluster: $(STAMP) ## a real cluster with gpuslice on it, left running (NAME=, GPUS=, KUBE_VERSION=)
	@$(HARNESS) up --name $(NAME) --gpus $(GPUS) --kube-version $(KUBE_VERSION)

cluster-down: $(STAMP) ## take it down, without a trace (NAME=)
	@$(HARNESS) down --name $(NAME)

cluster-test: $(STAMP) ## the tests that need a real cluster (KUBE_VERSION=, T=-k words)
	@missing=$$($(HARNESS) check 2>&1) || { echo "no real cluster here, so no tests of it: $$missing"; [ "$$CI" != true ]; exit; }; \
	KUBE_VERSION=$(KUBE_VERSION) $(BIN)/python -m pytest -m cluster -rs --durations=15 tests/cluster $(T)

cluster-differential: $(STAMP) ## the embedded kubelet against the real one, at length (SEQUENCES=, SEED=)
	DIFFERENTIAL_SEQUENCES=$(SEQUENCES) DIFFERENTIAL_SEED=$(SEED) KUBE_VERSION=$(KUBE_VERSION) \
	$(BIN)/python -m pytest -q -s tests/cluster/test_differential.py

lock: image-lock

image-lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes deploy/image/build.in -o deploy/image/build.txt
