"""`python -m lab.bmc --config FILE`, or without a file: `--profile NAME --port N --generate-certificate DIR`."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path

from . import profile as profiles
from . import tls
from .app import BmcServer
from .config import Config, ConfigError, load
from .messages import RedfishError
from .network import server_context
from .profile import ProfileError
from .service import Service
from .state import StateError


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bmc", description="A Redfish BMC simulator: BIOS settings wait for the next reset."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON configuration; other options override it")
    parser.add_argument("--profile", help=f"one of {', '.join(profiles.available())}, or a profile file")
    parser.add_argument("--listen", help="address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port (default 8443; 0 takes a free one)")
    parser.add_argument("--username", help="account (default admin); its password: password_file or $BMC_PASSWORD")
    parser.add_argument("--password-file", metavar="FILE", help="file that holds the password")
    parser.add_argument("--state-file", metavar="FILE", help="where state survives a restart")
    parser.add_argument("--post-seconds", type=float, metavar="S", help="how long a POST takes")
    parser.add_argument(
        "--generate-certificate", type=Path, metavar="DIR", help="make a CA and a certificate there and use them"
    )
    parser.add_argument(
        "--count", type=int, default=1, metavar="N", help="simulate N machines, on N ports from --port on (a fleet)"
    )
    parser.add_argument("--verbose", action="store_true", help="log more")
    return parser.parse_args(arguments)


def _configuration(options: argparse.Namespace) -> Config:
    config = load(options.config) if options.config is not None else Config()
    given = {
        name: getattr(options, name)
        for name in ("profile", "listen", "port", "username", "password_file", "state_file", "post_seconds")
        if getattr(options, name) is not None
    }
    config = replace(config, **given)
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"The port must be 0 to 65535, found {config.port}; correct --port.")
    if options.generate_certificate is not None:
        hosts = list(dict.fromkeys([config.listen, "127.0.0.1", "localhost"]))
        try:
            _, cert_file, key_file = tls.generate(options.generate_certificate, hosts)
        except OSError as error:
            raise ConfigError(
                f"No certificate can be written to {options.generate_certificate}: {error.strerror}; "
                "give a directory that you may write to."
            ) from error
        config = replace(config, cert_file=str(cert_file), key_file=str(key_file))
    if config.cert_file is None or config.key_file is None:
        raise ConfigError(
            "No certificate is set; give cert_file and key_file in the configuration, or --generate-certificate DIR."
        )
    return config


def _fleet(config: Config, count: int) -> list[Config]:
    """Return one configuration a machine: its own port, name and state file."""
    if count == 1:
        return [config]
    if count < 1 or (config.port and config.port + count - 1 > 65535):
        raise ConfigError(f"{count} machines from port {config.port} on do not fit; choose another --count or --port.")
    name, state_file = config.node or "node", config.state_file
    return [
        replace(
            config,
            port=config.port + index if config.port else 0,
            node=f"{name}{index + 1}",
            state_file=f"{state_file}.{index + 1}" if state_file else None,
        )
        for index in range(count)
    ]


async def _serve(configurations: list[Config]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    first = configurations[0]
    context = server_context(str(first.cert_file), str(first.key_file))
    servers: list[BmcServer] = []
    try:
        for config in configurations:
            servers.append(BmcServer(Service(config), context))
            await _start(servers[-1])
        await ended.wait()
    finally:
        for server in servers:
            await server.stop()


async def _start(server: BmcServer) -> None:
    config = server.service.config
    try:
        await server.start()
    except OSError as error:
        reason = "the address is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        raise ConfigError(
            f"Port {config.port} on {config.listen} cannot be used: {reason}; "
            "end the process that holds it, or choose another port."
        ) from error
    print(
        f"BMC simulator: https://{config.listen}:{server.port}/redfish/v1 ({server.service.profile.name})", flush=True
    )


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM; return the exit status."""
    options = _arguments(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # What is not HTTP at all is answered with 400 by aiohttp, and is no news; errors of ours are logged by app.py.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_serve(_fleet(_configuration(options), options.count)))
    except (ConfigError, ProfileError, StateError, RedfishError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
