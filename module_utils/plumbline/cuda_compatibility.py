"""Do driver, CUDA, torch and vLLM fit together? What their makers say, as data, and one sentence for each pair that does not."""

from __future__ import annotations

# CUDA's major release -> the oldest driver branch that runs its programs (NVIDIA, "CUDA Compatibility", Minor Version Compatibility,
# table 1; the upper ends of its ranges do not bind, since newer drivers run older programs).
OLDEST_DRIVER_OF_CUDA = {11: "450", 12: "525", 13: "580"}
