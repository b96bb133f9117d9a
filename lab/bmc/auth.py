"""Sessions (X-Auth-Token) and basic authentication."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .accounts import Account, Accounts
from .clock import now
from .messages import refuse


@dataclass
class Session:
    """A login. `used_at` is a monotonic time: the timeout counts from the last use, as DSP0266 has it."""

    identity: str
    account: str  # its id
    username: str
    token: str
    created: str
    used_at: float
    client: str


class Sessions:
    """All open sessions. They live in memory only: a BMC that restarts has none."""

    def __init__(
        self, accounts: Accounts, timeout_seconds: int, limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Let `accounts` log in; `clock` is monotonic, in seconds."""
        self._accounts = accounts
        self.timeout_seconds = timeout_seconds
        self.limit = limit
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._count = 0

    def _expire(self) -> None:
        deadline = self._clock() - self.timeout_seconds
        self._open = {key: one for key, one in self._open.items() if one.used_at >= deadline}

    def all(self) -> list[Session]:
        """Return the sessions that are still valid."""
        self._expire()
        return list(self._open.values())

    def get(self, identity: str) -> Session | None:
        """Return a session by its id."""
        self._expire()
        return self._open.get(identity)

    def login(self, username: str, password: str, client: str) -> Session:
        """Open a session, or raise 401 or 503."""
        account = self._accounts.check(username, password)
        if account is None:
            raise refuse(401, "NoValidSession", "wrong user name or password")
        self._expire()
        if len(self._open) >= self.limit:
            raise refuse(503, "SessionLimitExceeded", self.limit)
        self._count += 1
        identity = f"{self._count}-{secrets.token_hex(4)}"
        session = Session(identity, account.identity, username, secrets.token_hex(24), now(), self._clock(), client)
        self._open[identity] = session
        return session

    def logout(self, identity: str) -> None:
        """End a session."""
        self._open.pop(identity, None)

    def logout_user(self, username: str) -> None:
        """End the sessions of an account that is no more."""
        self._open = {key: one for key, one in self._open.items() if one.username != username}

    def lose(self, token: str) -> None:
        """Forget the session of a token, as if its time had just run out."""
        self._open = {key: one for key, one in self._open.items() if one.token != token}

    def lose_all(self) -> None:
        """Forget every session, as a restarting BMC does."""
        self._open.clear()

    def authenticate(self, headers: Mapping[str, str]) -> Account:
        """Return the account of a request or raise 401. A token that is no longer valid is not replaced by basic."""
        token = headers.get("X-Auth-Token")
        if token is not None:
            self._expire()
            for session in self._open.values():
                account = self._accounts.get(session.account)
                if account is not None and hmac.compare_digest(session.token.encode(), token.encode()):
                    session.used_at = self._clock()
                    return account
            raise refuse(401, "NoValidSession", "the session is unknown or has expired")
        scheme, _, encoded = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                username, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise refuse(401, "NoValidSession", "the Authorization header is malformed") from None
            account = self._accounts.check(username, password)
            if account is not None:
                return account
            raise refuse(401, "NoValidSession", "wrong user name or password")
        raise refuse(401, "NoValidSession", "neither X-Auth-Token nor Authorization was sent")
