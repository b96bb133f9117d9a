"""What the commands do with the whole lab: up, down, clean, purge, status."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lab import credentials, image, masters, model, pipconf, settings
from lab.bmcd import Bmc
from lab.node import Node
from lab.podman import Podman
from lab.settings import Lab
from lab.shell import LabError, run, say, sudo, which

# What `make distclean` removes besides the images. Evidence and reports (artifacts/) are a person's, and stay.
MADE = (".cache", ".venv", ".ansible", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "lab/.state")


def up(lab: Lab) -> None:
    """Bring everything up that is not; what is up is left alone."""
    # Needs a package of the virtual environment, which taking the lab down must not.
    from lab import tls  # noqa: PLC0415

    podman = Podman(lab)
    node, bmc = Node(lab, podman), Bmc(lab)
    podman.prepare()
    _refuse_second_lab(lab, podman)
    # Noted before anything is made, so that `make clean` finds what an interrupted `make lab` left.
    lab.write_record(_noted(lab, node))
    pip = pipconf.discover(lab.root)
    bmc_password = credentials.ensure_secret(lab.state / "bmc-password")
    api_key = credentials.ensure_secret(lab.state / "api-key")
    node.ensure_keys()
    renewed = tls.ensure(lab.state)
    credentials.ensure_vault(lab, bmc_password, api_key)
    source = model.ensure(lab.cache)
    node.up(pip)
    lab.write_record({**_noted(lab, node), "find_links": list(pip.find_links), "model_source": str(source)})
    bmc.up(renewed=renewed)


def _noted(lab: Lab, node: Node) -> dict[str, object]:
    return {
        "known_hosts": str(node.known_hosts),
        "ssh_key": str(node.key),
        "ca_file": str(lab.state / "ca.pem"),
        "container": lab.container,
        "control_path_dir": str(masters.directory(lab)),
    }


def recorded(root: Path) -> dict[str, Any]:
    """Settings of the lab that this checkout has: as noted, or where the note is gone, as its container says."""
    record = settings.read_record(root)
    if record or not (root / "lab" / ".state").is_dir() or not which("podman"):
        return record
    podman = Podman(settings.load(root, {}, {}))
    podman.prepare()
    return next(filter(None, map(settings.sound, podman.nodes_of(root).values())), {})


def _refuse_second_lab(lab: Lab, podman: Podman) -> None:
    others = [name for name in podman.nodes_of(lab.root) if name != lab.container]
    if others:
        raise LabError(
            f"this checkout already has a lab, the node {others[0]}, and was asked for {lab.container}: run make clean first, or use a "
            "checkout of its own for each lab"
        )


def down(lab: Lab) -> None:
    """Stop everything. The node keeps its disk: the next ``up`` starts it again."""
    masters.end(lab)
    Bmc(lab).down()
    if which("podman"):
        podman = Podman(lab)
        podman.prepare()
        Node(lab, podman).stop()


def clean(lab: Lab) -> None:
    """Stop and remove everything that runs, the node's disk and the BMC's memory included."""
    masters.end(lab)
    bmc = Bmc(lab)
    bmc.down()
    if which("podman"):
        podman = Podman(lab)
        podman.prepare()
        Node(lab, podman).remove()
    for path in (lab.record, *lab.state.glob("bmc-state*"), bmc.stamp):
        path.unlink(missing_ok=True)


def purge(lab: Lab) -> None:
    """And remove what was made on the way: images, caches, environment, keys."""
    if which("podman") and lab.state.is_dir():
        podman = Podman(lab)
        listed = podman("images", "--quiet", "--filter", f"reference={image.REPOSITORY}", what="listing images")
        for identity in dict.fromkeys(listed.split()):
            done = run(podman.command("rmi", identity), what="removing an image", check=False)
            if done.returncode != 0:
                say(f"note: the image {identity} is used by another lab and stays")
    for name in MADE:
        remove_tree(lab.root / name)
    lab.vault_file.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory in which root may have made files."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        run([*sudo(), "rm", "-rf", "--", path], what=f"removing {path}")


def status(lab: Lab) -> None:
    """Say what runs."""
    if not which("podman"):
        raise LabError("the lab has never been up on this machine (podman is not installed): run make lab")
    found = Podman(lab).inspect(lab.container)
    node = found["State"]["Status"] if found else "absent"
    bmc = "answers" if Bmc(lab).answers() else "does not answer"
    print(f"node {lab.container}: {node}, SSH on 127.0.0.1:{lab.ssh_port}")
    print(f"BMC https://127.0.0.1:{lab.bmc_port}/redfish/v1/: {bmc}")
    print(f"API http://127.0.0.1:{lab.api_port}/v1 (once the serving stage has passed)")
    print(f"gateway https://127.0.0.1:{lab.gateway_port}/v1 (once the gateway stage has passed)")
