# Load on the webhook, over the loopback address only.
MINUTES ?= 30

.PHONY: bench-webhook soak-webhook

bench-webhook: $(STAMP) ## what the webhook costs, beside a handler that does nothing
	$(BIN)/python -m tests.load.webhook_bench

soak-webhook: $(STAMP) ## MINUTES=30 of bad input, bad clients and new certificates
	$(BIN)/python -m tests.load.webhook_soak --minutes $(MINUTES)
