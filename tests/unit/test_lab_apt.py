"""The node's package source, from whatever the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import apt

DEB822 = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian/
Suites: trixie trixie-updates
Components: main contrib
Signed-By:
 /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
"""
ONE_LINE = """\
# deb http://off.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] https://old.example/debian bookworm main
deb http://sec.example/debian-security bookworm-security main
deb http://backports.example/debian bookworm-backports main
deb http://vendor.example/tools stable contrib
deb-src http://src.example/debian bookworm main
"""


def test_deb822_sources() -> None:
    found = apt.entries([DEB822])
    assert found == [
        ("http://mirror.example/debian", "trixie"),
        ("http://mirror.example/debian", "trixie-updates"),
        ("http://mirror.example/debian-security", "trixie-security"),
    ]


def test_one_line_sources() -> None:
    assert ("https://old.example/debian", "bookworm") in apt.entries([ONE_LINE])
    assert not any(
        "off.example" in uri or "src.example" in uri or "vendor.example" in uri for uri, _ in apt.entries([ONE_LINE])
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEB822, ("http://mirror.example/debian", "http://mirror.example/debian-security")),
        (ONE_LINE, ("https://old.example/debian", "http://sec.example/debian-security")),
        ("", (apt.DEFAULT_MIRROR, apt.DEFAULT_SECURITY)),
        ("deb file:///media/cdrom/debian bookworm main", (apt.DEFAULT_MIRROR, apt.DEFAULT_SECURITY)),
    ],
)
def test_a_debian_machine_lends_its_mirrors(text: str, expected: tuple[str, str]) -> None:
    assert apt.mirrors("debian", apt.entries([text])) == expected


def test_ubuntu_has_no_mirror_of_debian() -> None:
    sources = apt.entries(["deb http://archive.ubuntu.example/ubuntu noble main"])
    assert apt.mirrors("ubuntu", sources) == (apt.DEFAULT_MIRROR, apt.DEFAULT_SECURITY)


def test_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME="Debian"\nID=debian\n')
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "apt" / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "apt" / "sources.list.d" / "debian.sources.save").write_text(ONE_LINE)
    assert "http://mirror.example/debian\n" in apt.node_sources({}, tmp_path)
    text = apt.node_sources({"LAB_DEBIAN_MIRROR": "http://site.example/debian"}, tmp_path)
    assert "URIs: http://site.example/debian\n" in text
    # Whatever the machine runs, the node is bookworm.
    assert "trixie" not in text
    assert "Suites: bookworm bookworm-updates\n" in text


def test_what_a_proxy_needs_is_carried_into_the_node() -> None:
    dump = (
        'Acquire::http::Proxy "http://proxy.example:3128";\nAcquire::https::Proxy "";\nAPT::Install-Recommends "1";\n'
        'Acquire::Check-Valid-Until "false";\nAcquire "";\n'
    )
    assert apt.carried(dump) == (
        'Acquire::Check-Valid-Until "false"',
        'Acquire::http::Proxy "http://proxy.example:3128"',
    )
