"""The BMC's clock, which a fault may set wrong.

Many machines share a process, so each has its own: the network side puts it into the context of whatever it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone

# Returns by how many seconds this machine's clock is ahead.
OFFSET: ContextVar[Callable[[], float]] = ContextVar("OFFSET", default=lambda: 0.0)


def present() -> datetime:
    """Return the time that the BMC believes it is."""
    return datetime.now(timezone.utc) + timedelta(seconds=OFFSET.get()())


def now() -> str:
    """Return it as Redfish writes it."""
    return present().isoformat(timespec="seconds")
