"""The node: a container with systemd as PID 1, reached by SSH on loopback like any server."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import socket
import tarfile
import time
from pathlib import Path

from lab import credentials, image, netfilter
from lab.pipconf import PipConfiguration
from lab.podman import CHECKOUT_LABEL, SETTINGS_LABEL, Podman
from lab.settings import VARIABLES, Lab
from lab.shell import LabError, last_line, read, run, say, write_atomically

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


def port_holder(port: int) -> str:
    """Which program listens on a port, for the error message; empty where that cannot be seen."""
    shown = (
        run(["ss", "-ltnpH", f"sport = :{port}"], what="looking for the port's user", check=False).stdout
        if _has_ss()
        else ""
    )
    _, found, users = shown.partition('users:(("')
    if not found:
        return ""
    name, _, rest = users.partition('"')
    pid = rest.partition("pid=")[2].partition(",")[0]
    return f" by {name} (process {pid})"


def _has_ss() -> bool:
    return any(Path(directory, "ss").exists() for directory in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"))


def require_free_port(port: int, variable: str) -> None:
    """Refuse, with the remedy, a port of 127.0.0.1 that something else listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LabError(f"port {port} on 127.0.0.1 cannot be used: {error.strerror}") from None
            raise LabError(
                f"port {port} on 127.0.0.1 is already in use{port_holder(port)}: stop that, or choose another port with "
                f"{variable}=NUMBER (make {'lab-vm' if variable.startswith('LAB_VM_') else 'lab'} {variable}={port + 1})"
            ) from None


class Node:
    """The lab's one node."""

    def __init__(self, lab: Lab, podman: Podman) -> None:
        """Nothing is started yet."""
        self.lab = lab
        self.podman = podman
        self.key = lab.state / "ssh_key"
        self.host_key = lab.state / "ssh_host_key"
        self.known_hosts = lab.state / "known_hosts"
        self.stamp = lab.state / "node-files.sha256"

    # -- access -------------------------------------------------------------------------------------------------------

    def ssh_options(self) -> list[str]:
        """Options that reach this node and nothing else, whatever the user's own SSH configuration says."""
        return [
            *("-F", "none"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}"),
            *("-o", "GlobalKnownHostsFile=/dev/null"),
            *("-o", f"HostKeyAlias={self.lab.container}"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", "IdentitiesOnly=yes"),
        ]

    def ssh_command(self, command: str, *, terminal: bool = False) -> list[str]:
        """A command on the node through SSH; a shell where the command is empty."""
        target = ["-i", str(self.key), "-p", str(self.lab.ssh_port), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        how = ["-t"] if terminal else ["-T"]
        return ["ssh", *how, *self.ssh_options(), *target, "ops@127.0.0.1", *filter(None, [command])]

    def ensure_keys(self) -> None:
        """Both key pairs, and the node's key among the known hosts."""
        credentials.ensure_key(self.key, f"ops@{self.lab.container}")
        public = credentials.ensure_key(self.host_key, self.lab.container)
        line = f"{self.lab.container} {public}\n"
        if read(self.known_hosts) != line:
            write_atomically(self.known_hosts, line, 0o644)

    # -- files laid into the container --------------------------------------------------------------------------------

    def files(self, pip: PipConfiguration) -> dict[str, tuple[int, bytes]]:
        """Path -> (mode, content): what makes this container this lab's node."""
        public = self.key.with_name("ssh_key.pub").read_bytes()
        laid = {
            "/etc/ssh/authorized_keys.d/ops": (0o644, public),
            "/etc/ssh/ssh_host_ed25519_key": (0o600, self.host_key.read_bytes()),
            "/etc/ssh/ssh_host_ed25519_key.pub": (0o644, self.host_key.with_name("ssh_host_key.pub").read_bytes()),
            "/etc/pip.conf": (0o644, pip.text().encode()),
            "/etc/environment": (0o644, proxy_environment(dict(os.environ)).encode()),
        }
        for path, content in pip.files.items():
            laid[path] = (0o644, content)
        for authority in sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt")):
            laid[f"/usr/local/share/ca-certificates/host-{authority.name}"] = (0o644, authority.read_bytes())
        return laid

    def lay_files(self, container_id: str, pip: PipConfiguration) -> str | None:
        """Put the files into the container; the stamp to write when they have taken effect, None where they had before."""
        laid = self.files(pip)
        digest = hashlib.sha256(repr([container_id, sorted(laid.items())]).encode()).hexdigest()
        if read(self.stamp) == digest:
            return None
        self.podman("cp", "-", f"{self.lab.container}:/", what="laying files into the node", stdin=tar_of(laid))
        return digest

    # -- life ---------------------------------------------------------------------------------------------------------

    def up(self, pip: PipConfiguration) -> None:
        """Bring the node up: make, start or leave it, whichever is right."""
        found = self.podman.inspect(self.lab.container)
        if found is not None:
            self._require_same_lab(found["Config"]["Labels"] or {}, pip)
            if found.get("ImageName") != image.recipe(self.lab.root).reference():
                say("note: the node was made from another version of its image; make clean and make lab renew it")
        running = found is not None and found["State"]["Status"] == "running"
        if not running:
            require_free_port(self.lab.ssh_port, VARIABLES["ssh_port"])
            require_free_port(self.lab.api_port, VARIABLES["api_port"])
            require_free_port(self.lab.gateway_port, VARIABLES["gateway_port"])
        container_id = found["Id"] if found is not None else self._create(pip)
        laid = self.lay_files(container_id, pip)
        if not running:
            self.podman("start", self.lab.container, what="starting the node")
        elif laid:
            self.podman("exec", self.lab.container, "systemctl", "restart", "ssh", what="restarting the node's sshd")
        self.wait_for_ssh()
        if laid:
            self.podman(
                "exec", self.lab.container, "update-ca-certificates", what="trusting the host's authorities in the node"
            )
            write_atomically(self.stamp, laid, 0o600)
        if not running:
            say(f"node {self.lab.container} is up: SSH on 127.0.0.1:{self.lab.ssh_port}")

    def labels(self, pip: PipConfiguration) -> dict[str, str]:
        """What cannot be changed once the container is made."""
        return {
            CHECKOUT_LABEL: str(self.lab.root),
            SETTINGS_LABEL: json.dumps(self.lab.settings(), sort_keys=True),
            "plumbline.mounts": json.dumps(pip.mounts),
        }

    def _require_same_lab(self, labels: dict[str, str], pip: PipConfiguration) -> None:
        wanted = self.labels(pip)
        owner = labels.get(CHECKOUT_LABEL)
        if owner != str(self.lab.root):
            whose = f"belongs to the checkout {owner}" if owner else "was not made by this lab"
            raise LabError(
                f"a container named {self.lab.container} exists and {whose}: choose another name (make lab LAB_NAME=my-lab and other "
                "ports), or take that one down first"
            )
        was = json.loads(labels.get(SETTINGS_LABEL, "{}"))
        wanted_ports = {"SSH": "ssh_port", "API": "api_port", "gateway": "gateway_port"}
        if any(was.get(key) != getattr(self.lab, key) for key in wanted_ports.values()):
            made = ", ".join(f"{was.get(key, 'none')} ({name})" for name, key in wanted_ports.items())
            asked = ", ".join(str(getattr(self.lab, key)) for key in wanted_ports.values())
            raise LabError(
                f"the node {self.lab.container} was made with the ports {made}, asked for {asked}: run make clean first, which "
                "discards the node"
            )
        if labels.get("plumbline.mounts") != wanted["plumbline.mounts"]:
            say("note: pip's local directories have changed since the node was made; make clean and make lab renew it")

    def _create(self, pip: PipConfiguration) -> str:
        reference = image.ensure(self.lab.root, self.podman)
        if not self.podman.succeeds("network", "exists", self.lab.name):
            self.podman("network", "create", "--disable-dns", self.lab.name, what="making the lab's network")
        words = ["create", "--name", self.lab.container, "--hostname", "lab-node1", "--network", self.lab.name]
        words += ["--privileged", "--shm-size=2g", "--restart=on-failure:20"]
        # What podman does for systemd (--systemd=always), without the bind mount of the machine's own systemd hierarchy that
        # it adds where cgroup v1 is left: two nodes would manage each other's services in it. A private cgroup namespace
        # alone gives systemd a tree of its own on every layout.
        words += ["--systemd=false", "--cgroupns=private", "--stop-signal=SIGRTMIN+3", "--env", "container=podman"]
        words += ["--tmpfs", "/run:rw,nosuid,nodev,mode=755", "--tmpfs", "/run/lock:rw,nosuid,nodev,noexec,size=5m"]
        # API and gateway keep their numbers inside and outside, so that one address is right for the node and for this machine.
        inside = {
            self.lab.ssh_port: 22,
            self.lab.api_port: self.lab.api_port,
            self.lab.gateway_port: self.lab.gateway_port,
        }
        for port, port_inside in inside.items():
            words += ["--publish", f"127.0.0.1:{port}:{port_inside}"]
        for directory in pip.mounts:
            words += ["--volume", f"{directory}:{directory}:ro"]
        for name, value in self.labels(pip).items():
            words += ["--label", f"{name}={value}"]
        return self.podman(*words, reference, what="making the node").strip()

    def wait_for_ssh(self, timeout_seconds: float = 60) -> None:
        """Wait until a command runs on the node."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            done = run(self.ssh_command("true"), what="reaching the node by SSH", check=False)
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"the node {self.lab.container} does not answer SSH on 127.0.0.1:{self.lab.ssh_port} after {timeout_seconds:.0f} s "
                    f"({last_line(done.stderr)}): look at `podman logs {self.lab.container}`, or run make clean and make lab"
                )
            time.sleep(0.3)

    def _own(self) -> bool:
        """True where the container is there and this checkout's."""
        found = self.podman.inspect(self.lab.container)
        if found is None:
            return False
        owner = (found["Config"]["Labels"] or {}).get(CHECKOUT_LABEL)
        if owner != str(self.lab.root):
            say(f"note: {self.lab.container} belongs to {owner or 'something else'} and is left alone")
            return False
        return True

    def stop(self) -> None:
        """Shut the node down; its disk stays."""
        if self._own():
            self.podman("stop", "--time", "20", self.lab.container, what="stopping the node")

    def _remove_container(self, attempts: int = 6) -> None:
        """Kill and remove the container. A process that waits for a busy disk outlasts podman's patience, so that is asked again."""
        for attempt in range(1, attempts + 1):
            try:
                self.podman("rm", "--force", "--time", "5", self.lab.container, what="removing the node")
                return
            except LabError:
                if attempt == attempts:
                    raise
                time.sleep(5)

    def remove(self) -> None:
        """Remove the container and its network; nothing to remove is fine."""
        own = self._own()
        if own:
            self._remove_container()
        if self.podman.succeeds("network", "exists", self.lab.name):
            # Refused by podman where another container is on it, which is then not ours to remove.
            run(self.podman.command("network", "rm", self.lab.name), what="removing the lab's network", check=False)
        self.stamp.unlink(missing_ok=True)
        if not self.podman("ps", "--all", "--quiet", what="listing containers").strip():
            netfilter.forget()


def proxy_environment(environ: dict[str, str]) -> str:
    """``/etc/environment`` of the node: the host's proxies, never used for loopback."""
    lines: list[str] = []
    for name in PROXY_VARIABLES:
        value = environ.get(name) or environ.get(name.upper(), "")
        if name == "no_proxy" and lines:
            value = ",".join(dict.fromkeys([*filter(None, value.split(",")), "127.0.0.1", "localhost"]))
        if value:
            lines += [f'{name}="{value}"', f'{name.upper()}="{value}"']
    return "".join(f"{line}\n" for line in lines)


def tar_of(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A tar archive of files for ``podman cp``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (mode, content) in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
