# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes with N nodes on one machine, for the tests in tests/cluster."""
