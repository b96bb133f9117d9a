"""Shared by the tests that run in the engine's Python."""

from __future__ import annotations

import os

# Where Triton is there but no GPU, its kernels run in its interpreter; it reads this when they are first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
