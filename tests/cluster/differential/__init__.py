# SPDX-License-Identifier: Apache-2.0
"""A real kubelet and the embedded one, side by side: the same sequences, every difference seen."""
