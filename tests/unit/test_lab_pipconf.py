"""The host's pip configuration as the node gets it."""

from __future__ import annotations

import configparser
from pathlib import Path

from lab import pipconf

LISTING = """\
:env:.find-links='/from/environment'
:env:.default-timeout='180'
download.find-links='/only/for/download'
global.find-links='/from/file'
global.index-url='https://user:it%27s@index.example/simple'
install.index-url='https://install.example/simple'
global.extra-index-url='file:///srv/a/simple\\nhttps://b.example/simple'
user.note
broken.line=('
"""


def test_environment_wins_and_install_wins_over_global() -> None:
    options = pipconf.parse(LISTING)
    assert options["find-links"] == "/from/environment"
    assert options["index-url"] == "https://install.example/simple"
    assert options["extra-index-url"].split() == ["file:///srv/a/simple", "https://b.example/simple"]
    assert "note" not in options


def test_order_of_the_listing_does_not_matter() -> None:
    assert pipconf.parse("\n".join(reversed(LISTING.splitlines()))) == pipconf.parse(LISTING)


def test_the_text_is_a_configuration_that_pip_reads(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    made = pipconf.build(
        {"find-links": f"{wheels} https://x.example/%20w", "default-timeout": "180", "no-color": "1"}, tmp_path
    )
    parser = configparser.RawConfigParser()
    parser.read_string(made.text())
    assert parser["global"]["find-links"].split() == [str(wheels), "https://x.example/%20w"]
    assert parser["global"]["timeout"].strip() == "180"
    assert "no-color" not in parser["global"]


def test_local_directories_are_mounted_and_missing_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "wheels" / "inner").mkdir(parents=True)
    (tmp_path / "mirror" / "simple").mkdir(parents=True)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "links.html").write_text("")
    made = pipconf.build(
        {
            "find-links": f"wheels {tmp_path}/wheels/inner {tmp_path}/gone {tmp_path}/page/links.html https://x.example",
            "extra-index-url": f"file://{tmp_path}/mirror/simple",
        },
        tmp_path,
    )
    # An index links to files beside its pages; a directory inside another needs no mount of its own.
    assert made.mounts == tuple(f"{tmp_path}/{name}" for name in ("mirror", "page", "wheels"))
    assert made.find_links == (
        f"{tmp_path}/wheels",
        f"{tmp_path}/wheels/inner",
        f"{tmp_path}/page/links.html",
        "https://x.example",
    )


def test_a_system_directory_is_never_mounted_over_the_nodes_own() -> None:
    assert pipconf.mounts_for(["/etc", "/usr", "/"], ["file:///var"], Path("/")) == ()


def test_files_of_the_host_are_copied_in(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"certificate")
    (tmp_path / "a.txt").write_bytes(b"torch<3")
    (tmp_path / "b.txt").write_bytes(b"numpy<9")
    made = pipconf.build(
        {"cert": str(tmp_path / "ca.pem"), "constraint": f"{tmp_path}/a.txt {tmp_path}/b.txt"}, tmp_path
    )
    assert made.files[made.options["cert"]] == b"certificate"
    assert made.files[made.options["constraint"]].split() == [b"torch<3", b"numpy<9"]


def test_a_certificate_that_is_gone_is_left_out(tmp_path: Path) -> None:
    assert pipconf.build({"cert": str(tmp_path / "gone.pem")}, tmp_path).options == {}


def test_a_machine_without_any_configuration() -> None:
    made = pipconf.build(pipconf.parse(""), Path("/"))
    assert (made.find_links, made.mounts, made.files) == ((), (), {})
