"""The configuration file of `python -m lab.bmc --config FILE`, checked before anything starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class ConfigError(Exception):
    """The configuration cannot be used; the text is one sentence for a person."""


@dataclass
class Config:
    """Everything that a running simulator needs to know. Paths are as given; seconds are seconds."""

    profile: str = "ieit-nf8260g7"
    listen: str = "127.0.0.1"
    port: int = 8443
    cert_file: str | None = None
    key_file: str | None = None
    username: str = "admin"
    password: str = ""
    password_file: str | None = None
    state_file: str | None = None
    power_command: list[str] = field(default_factory=list)
    power_timeout_seconds: float = 120.0
    node: str = ""
    # What the host's console says, as a file that somebody else writes: served as OpenBMC's HostLogger.
    console_log: str | None = None
    post_seconds: float | None = None
    session_timeout_seconds: int = 1800
    session_limit: int = 16
    # Merged over the profile: `{"quirks": {"shape": "nested"}}`.
    profile_overrides: Json = field(default_factory=dict)


_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "profile": (str, "a string"),
    "listen": (str, "a string"),
    "port": (int, "an integer"),
    "cert_file": (str, "a path"),
    "key_file": (str, "a path"),
    "username": (str, "a string"),
    "password": (str, "a string"),
    "password_file": (str, "a path"),
    "state_file": (str, "a path"),
    "power_command": (list, "a list of strings"),
    "power_timeout_seconds": ((int, float), "a number"),
    "node": (str, "a string"),
    "console_log": (str, "a path"),
    "post_seconds": ((int, float), "a number"),
    "session_timeout_seconds": (int, "an integer"),
    "session_limit": (int, "an integer"),
    "profile_overrides": (dict, "an object"),
}


def check(data: Any, where: str) -> Config:
    """Return the configuration that a JSON value describes."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where} holds {type(data).__name__}; expected a JSON object.")
    for name, value in data.items():
        if name not in _TYPES:
            raise ConfigError(f"{where} has an unknown key {name!r}; known keys are {', '.join(sorted(_TYPES))}.")
        kinds, text = _TYPES[name]
        if value is None and getattr(Config(), name) is None:
            continue
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name} must be {text}, found {value!r}; correct it.")
    config = Config(**data)
    if not all(isinstance(part, str) and part for part in config.power_command):
        raise ConfigError(f"{where}: power_command must be a list of non-empty strings; correct it.")
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"{where}: port must be 0 to 65535, found {config.port}; correct it.")
    for name in ("post_seconds", "power_timeout_seconds"):
        value = getattr(config, name)
        if value is not None and value < 0:
            raise ConfigError(f"{where}: {name} must not be negative, found {value}; correct it.")
    if config.session_timeout_seconds < 1 or config.session_limit < 1:
        raise ConfigError(f"{where}: session_timeout_seconds and session_limit must be at least 1; correct them.")
    if bool(config.cert_file) != bool(config.key_file):
        raise ConfigError(f"{where}: cert_file and key_file go together; give both or neither.")
    return config


def load(path: Path) -> Config:
    """Read a configuration file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}; correct the path.") from error
    except ValueError as error:
        raise ConfigError(f"The configuration {path} is not JSON ({error}); correct it.") from error
    return check(data, f"The configuration {path}")


def password_of(config: Config) -> str:
    """Return the password, from `password`, `password_file` or the environment variable BMC_PASSWORD."""
    if config.password:
        return config.password
    if config.password_file:
        path = Path(config.password_file)
        try:
            text = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(
                f"The password file {path} cannot be read: {error.strerror}; create it with the BMC's password."
            ) from error
        if not text:
            raise ConfigError(f"The password file {path} is empty; write the BMC's password into it.")
        return text
    text = os.environ.get("BMC_PASSWORD", "")
    if not text:
        raise ConfigError("No password is set; give password_file, or set BMC_PASSWORD in the environment.")
    return text
