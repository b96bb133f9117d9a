"""`python -m lab.bmc --config FILE`, or without a file: `--profile NAME --port N --generate-certificate DIR`."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
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

_EXAMPLES = f"""profiles:
{chr(10).join("  " + name for name in profiles.available())}

examples:
  export BMC_PASSWORD=secret
  python -m lab.bmc --profile dell-r750 --port 8443 --generate-certificate /tmp/bmc
  python -m lab.bmc --profile dell-r750,hpe-dl380a-gen11 --count 200 --port 20000 --generate-certificate /tmp/bmc
  curl --cacert /tmp/bmc/ca.pem -u admin:$BMC_PASSWORD https://127.0.0.1:8443/redfish/v1/Systems

Faults on demand, profiles of your own and all else: docs/bmc-simulator.md."""


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bmc",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="A Redfish BMC simulator: BIOS settings wait for the next reset. SIGTERM or Ctrl-C ends it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON configuration; other options override it")
    parser.add_argument(
        "--profile",
        metavar="NAME[,NAME...]",
        help="the kind of server, below, or a profile file; several are taken in turn by the machines of --count",
    )
    parser.add_argument("--listen", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="port (default 8443; 0 takes a free one)")
    parser.add_argument("--username", metavar="NAME", help="administrator's account (default admin)")
    parser.add_argument(
        "--password-file", metavar="FILE", help="file that holds its password (default: the variable BMC_PASSWORD)"
    )
    parser.add_argument("--state-file", metavar="FILE", help="where settings, accounts and power survive a restart")
    parser.add_argument("--post-seconds", type=float, metavar="S", help="how long a POST takes (default 3)")
    parser.add_argument(
        "--generate-certificate",
        type=Path,
        metavar="DIR",
        help="make a CA (ca.pem, for clients) and a certificate there and use them",
    )
    parser.add_argument(
        "--count", type=int, default=1, metavar="N", help="a fleet: simulate N machines, on N ports from --port on"
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
    if config.post_seconds is not None and config.post_seconds < 0:
        raise ConfigError(f"--post-seconds must be 0 or more, found {config.post_seconds:g}; correct it.")
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
    kinds = config.profile.split(",")
    if count == 1 and len(kinds) == 1:
        return [config]
    if count < 1 or (config.port and config.port + count - 1 > 65535):
        raise ConfigError(f"{count} machines from port {config.port} on do not fit; choose another --count or --port.")
    name, state_file = config.node or "node", config.state_file
    return [
        replace(
            config,
            profile=kinds[index % len(kinds)].strip(),
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
            servers.append(BmcServer(_service(config), context))
            await _start(servers[-1])
        await ended.wait()
    finally:
        for server in servers:
            await server.stop()


def _service(config: Config) -> Service:
    """Put a machine together; what its own profile says wrongly, beyond what was checked, is the profile's fault."""
    try:
        return Service(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if config.profile in profiles.available() and not config.profile_overrides:
            raise
        raise ProfileError(
            f"The profile {config.profile} cannot be used: {type(error).__name__} {error}; compare it with those that"
            f" come with the simulator, in {profiles.DATA}."
        ) from error


async def _start(server: BmcServer) -> None:
    config = server.service.config
    try:
        await server.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "the address is in use; end the process that holds it, or choose another port"
        elif error.errno == errno.EACCES:
            advice = "permission denied; choose a port above 1023"
        else:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            advice = f"{reason}; give --listen an address of this machine"
        raise ConfigError(f"Port {config.port} on {config.listen} cannot be used: {advice}.") from error
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
