# Load on both halves, over the loopback address only.
MINUTES ?= 30
RESTARTS ?= 1000

.PHONY: bench-webhook soak-webhook bench-deviceplugin soak-deviceplugin

bench-webhook: $(STAMP) ## what the webhook costs, beside a handler that does nothing
	$(BIN)/python -m tests.load.webhook_bench

soak-webhook: $(STAMP) ## MINUTES=30 of bad input, bad clients and new certificates
	$(BIN)/python -m tests.load.webhook_soak --minutes $(MINUTES)

bench-deviceplugin: $(STAMP) ## what the device plugin costs, beside its goals
	$(BIN)/python -m tests.load.deviceplugin_bench

soak-deviceplugin: $(STAMP) ## RESTARTS=1000 of kubelet: descriptors, threads and memory stay flat
	$(BIN)/python -m tests.load.deviceplugin_soak --restarts $(RESTARTS)
