"""The simulator in a thread, for tests: `with running() as bmc: requests.get(bmc.base_url + "/redfish/v1", ...)`.

    from lab.bmc.testing import running

    @pytest.fixture
    def bmc():
        with running("ieit-nf8260g7") as simulator:
            yield simulator

It listens on a free port of 127.0.0.1 with TLS from its own CA, powers nothing (null driver) and passes POST in
0.05 s unless told otherwise. Ports and files are gone at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from . import tls
from .app import BmcServer
from .clock import OFFSET
from .config import Config
from .network import server_context
from .power import Driver, NullDriver
from .service import Service

Json = dict[str, Any]
T = TypeVar("T")
_START_SECONDS = 30.0


@dataclass
class RunningBmc:
    """A simulator under test. Methods are for the test's thread; they run in the simulator's event loop."""

    base_url: str
    ca_file: str
    username: str
    password: str
    server: BmcServer = field(repr=False)
    driver: Driver = field(repr=False)
    loop: asyncio.AbstractEventLoop = field(repr=False)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the simulator's loop and return its result."""
        result: Future[T] = Future()

        def run() -> None:
            OFFSET.set(self.service.faults.clock_offset)
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return result.result(_START_SECONDS)

    @property
    def service(self) -> Service:
        """The simulator's insides; read them through `call` or `truth`."""
        return self.server.service

    @property
    def system_url(self) -> str:
        """The URL of the computer system."""
        return self.base_url + self.service.paths.system

    def truth(self) -> Json:
        """Return power, boot, active, pending, firmware, ... as they really are (also GET /lab/state)."""
        return self.call(self.server.truth)

    @property
    def active(self) -> Json:
        """The active BIOS attributes."""
        return dict(self.truth()["active"])

    @property
    def pending(self) -> Json:
        """The pending BIOS attributes."""
        return dict(self.truth()["pending"])

    def inject(self, kind: str, **parameters: Any) -> Json:
        """Put a fault in force, e.g. `inject("http_error", count=2, status=503, retry_after=1)` (also POST /lab/faults)."""
        return self.call(lambda: self.server.inject({"kind": kind, **parameters}))

    def clear_faults(self) -> None:
        """End all faults."""
        self.call(self.service.faults.clear)

    def settle(self, timeout_seconds: float = 30.0) -> Json:
        """Wait until no reset is under way, and return the truth."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            truth = self.truth()
            if not truth["busy"]:
                return truth
            time.sleep(0.01)
        raise TimeoutError(f"the simulator was still in transition after {timeout_seconds:g} s")

    def reset(self, reset_type: str = "ForceRestart") -> Json:
        """Restart the host as a power button would (or another of Redfish's ResetTypes), wait, and return the truth."""
        self.call(lambda: self.service.power.request(reset_type))
        return self.settle()


@contextlib.contextmanager
def running(
    profile: str = "ieit-nf8260g7",
    *,
    post_seconds: float = 0.05,
    username: str = "admin",
    password: str = "correct-horse",  # noqa: S107  (a test's own)
    driver: Driver | None = None,
    **settings: Any,
) -> Iterator[RunningBmc]:
    """Run a simulator on a free port. `settings` are further keys of the configuration (see config.py)."""
    with tempfile.TemporaryDirectory(prefix="bmc-") as directory:
        ca_file, cert_file, key_file = tls.generate(Path(directory), ["127.0.0.1", "localhost"])
        config = Config(
            profile=profile,
            port=0,
            username=username,
            password=password,
            cert_file=str(cert_file),
            key_file=str(key_file),
            post_seconds=post_seconds,
            **settings,
        )
        used: Driver = driver if driver is not None else NullDriver()
        service = Service(config, None if config.power_command else used)
        timing = service.timing
        timing.off = timing.os_boot = timing.job = timing.update = min(0.03, post_seconds)
        timing.bmc_restart = 0.3
        server = BmcServer(service, server_context(str(cert_file), str(key_file)))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="bmc-simulator", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(_START_SECONDS)
            yield RunningBmc(f"https://127.0.0.1:{server.port}", str(ca_file), username, password, server, used, loop)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(_START_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_START_SECONDS)
            loop.close()
