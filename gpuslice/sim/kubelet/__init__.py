# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster's kubelet: what a device plugin and a scheduler can see of a real one.

Behaves like Kubernetes 1.36's, bugs that a plugin must survive included (`quirks`). Topology
manager policy `none`; containers are no processes but timers.
"""
