"""The vendors' mappings as files on the controller: read once a process, checked, a site's own laid over those that are shipped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .bios_text import TextError, parse
from .bios_vendor_data import Json, VendorDataError, checked, merged, strange_words

# plugins/module_utils/plumbline/ of the collection; data/ lies beside plugins/.
_SHIPPED = Path(__file__).parents[3] / "data" / "bios_vendors"


def load_mappings(site_files: Sequence[str] = ()) -> list[Json]:
    """The shipped mappings with a site's own over them. The result is shared: do not change it.

    Raises:
        VendorDataError: a file is missing or malformed.
    """
    stamps = tuple((name, _stamp(Path(name).expanduser())) for name in site_files)
    return _load(stamps)


def _stamp(path: Path) -> int:
    """What makes a changed file another one within a long-lived process; 0 where it cannot be asked (reading will tell)."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _load(site_files: tuple[tuple[str, int], ...]) -> list[Json]:
    shipped = sorted(_SHIPPED.glob("*.yml"))
    if not shipped:
        raise VendorDataError(
            f"The vendors' BIOS mappings are missing in {_SHIPPED}: expected one YAML file a vendor; install the collection again"
        )
    known = merged([checked(read_yaml(path), str(path)) for path in shipped], [str(path) for path in shipped])
    paths = [Path(name).expanduser() for name, _ in site_files]
    own = [checked(read_yaml(path), str(path)) for path in paths]
    for mapping, path in zip(own, paths):
        problems = strange_words(mapping, known, str(path))
        if problems:
            raise VendorDataError(f"A vendor's BIOS mapping cannot be used: {'; '.join(problems)}")
    return merged([*known, *own], [*(one["vendor"] for one in known), *(str(path) for path in paths)]) if own else known


def read_yaml(path: Path) -> Any:
    """Read one YAML document.

    Raises:
        VendorDataError: the file cannot be read or is not YAML.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise VendorDataError(
            f"The file {path} with a vendor's BIOS mapping cannot be read on the controller ({reason}): correct bios_vendor_files"
        ) from None
    except TextError as error:
        raise VendorDataError(f"The file {path} with a vendor's BIOS mapping {error}") from None
    except UnicodeError as error:
        raise VendorDataError(f"The file {path} with a vendor's BIOS mapping is no text in UTF-8: {error}") from None
