"""Shared by all tests: where the checkout is."""

from __future__ import annotations

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return CHECKOUT / "tests" / "fixtures"
