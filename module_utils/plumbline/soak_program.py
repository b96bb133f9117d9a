"""The soak's sampler in one file, for the node's own Python: `python3 -I plumbline-soak.pyz FOLDER RUNTIME`."""

from __future__ import annotations

import io
import pkgutil
import zipfile

# Imported here, so that Ansible carries them to the node.
from . import edac, nvidia_smi, soak_readings, soak_sampler, tree

_PACKAGE = "plumbline_soak"
_MODULES = tuple(module.__name__.rpartition(".")[2] for module in (edac, nvidia_smi, soak_readings, soak_sampler, tree))
_START = f"import sys\nfrom {_PACKAGE}.soak_sampler import main\nsys.exit(main(sys.argv[1:]))\n"


def program() -> bytes:
    """Return the program as a zip archive that Python runs; the same bytes for the same code."""
    sources = {"__main__.py": _START.encode(), f"{_PACKAGE}/__init__.py": b""}
    for name in _MODULES:
        # Not a path: on the node these modules lie in Ansible's archive.
        source = pkgutil.get_data(__package__ or __name__.rpartition(".")[0], f"{name}.py")
        if source is None:
            raise FileNotFoundError(f"Plumbline's own module {name} was not carried to the node: report this")
        sources[f"{_PACKAGE}/{name}.py"] = source
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, source in sources.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), source)
    return out.getvalue()
