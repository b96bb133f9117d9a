"""Shared by all tests: where the checkout is, and how hypothesis searches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CHECKOUT = Path(__file__).resolve().parent.parent

# No test may fail because the machine is busy. The gate always tries the same examples; at a desk each run tries new ones.
settings.register_profile(
    "plumbline", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=os.environ.get("CI") == "true"
)
settings.load_profile("plumbline")


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return CHECKOUT / "tests" / "fixtures"
