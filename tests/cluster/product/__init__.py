# SPDX-License-Identifier: Apache-2.0
"""gpuslice on the real cluster, as its users see it: pods that share, and what became of them."""
