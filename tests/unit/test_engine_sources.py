"""The node's pip configuration in uv's words."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_sources import (
    Sources,
    from_pip_config,
    pip_arguments,
    pip_environment,
    uv_arguments,
    uv_environment,
    with_inventory,
)

LISTING = r"""
global.cert='/etc/ssl/certs/company.pem'
global.constraint='/etc/pip-constraints.txt'
global.extra-index-url='https://one.example.invalid/simple\nhttps://two.example.invalid/simple'
global.find-links='/srv/wheels'
global.index-url='https://overridden.example.invalid/simple'
install.index-url='https://mirror.example.invalid/simple'
list.format='json'
:env:.find-links='/srv/other https://wheels.example.invalid/'
:env:.trusted-host='mirror.example.invalid'
:env:.broken=not a string
"""


def test_what_pip_config_list_says() -> None:
    found = from_pip_config(LISTING)
    assert found.index_url == "https://mirror.example.invalid/simple"
    assert found.extra_index_urls == ["https://one.example.invalid/simple", "https://two.example.invalid/simple"]
    # The environment replaces the file's value, as with pip.
    assert found.find_links == ["/srv/other", "https://wheels.example.invalid/"]
    assert found.ca_file == "/etc/ssl/certs/company.pem"
    assert found.trusted_hosts == ["mirror.example.invalid"]
    assert not found.no_index
    assert from_pip_config("") == Sources()


def test_no_index_in_its_spellings() -> None:
    assert from_pip_config("global.no-index='true'").no_index
    assert from_pip_config(":env:.no_index='1'").no_index
    assert not from_pip_config("global.no-index='false'").no_index


def test_the_inventory_comes_first() -> None:
    node = Sources(find_links=["/a", "/b"], index_url="https://node.example.invalid", ca_file="/ca.pem")
    merged = with_inventory(node, ["/b", "/c"], "https://ours.example.invalid", "")
    assert merged.find_links == ["/b", "/c", "/a"]
    assert merged.index_url == "https://ours.example.invalid"
    assert merged.ca_file == "/ca.pem"


def test_a_wheelhouse_means_nothing_but_it(tmp_path: Path) -> None:
    node = Sources(
        find_links=["/a"], index_url="https://node.example.invalid", extra_index_urls=["https://x.example.invalid"]
    )
    merged = with_inventory(node, ["/b"], "https://ours.example.invalid", str(tmp_path))
    assert uv_arguments(merged, "https://torch.example.invalid") == ["--no-index", "--find-links", str(tmp_path)]
    # pip would add the find-links of the node's configuration and environment to the given ones.
    assert pip_environment(str(tmp_path))["PIP_CONFIG_FILE"] == "/dev/null"
    assert "PIP_CONFIG_FILE" not in pip_environment("")
    assert pip_arguments(["/b"], "https://ours.example.invalid", str(tmp_path)) == [
        "--isolated",
        "--no-index",
        "--find-links",
        str(tmp_path),
    ]


def test_uv_is_spared_directories_that_are_not_there(tmp_path: Path) -> None:
    sources = Sources(
        find_links=[str(tmp_path), "/nonexistent", f"file://{tmp_path}", "https://wheels.example.invalid/"],
        extra_index_urls=["file:///nonexistent/simple", f"file://{tmp_path}/"],
        trusted_hosts=["h.example.invalid"],
    )
    arguments = uv_arguments(sources, "https://torch.example.invalid/cpu")
    assert arguments == [
        *["--find-links", str(tmp_path)],
        *["--find-links", f"file://{tmp_path}"],
        *["--find-links", "https://wheels.example.invalid/"],
        *["--extra-index-url", f"file://{tmp_path}/"],
        *["--extra-index-url", "https://torch.example.invalid/cpu"],
        *["--allow-insecure-host", "h.example.invalid"],
        *["--index-strategy", "unsafe-best-match"],
    ]


def test_environment_of_uv() -> None:
    plain = uv_environment(Sources(), "/cache")
    assert plain["UV_SYSTEM_CERTS"] == "1"
    assert plain["UV_PYTHON_DOWNLOADS"] == "never"
    assert plain["UV_CACHE_DIR"] == "/cache"
    own = uv_environment(Sources(ca_file="/ca.pem", proxy="http://proxy.example.invalid:3128"), "/cache")
    assert own["SSL_CERT_FILE"] == "/ca.pem"
    assert "UV_SYSTEM_CERTS" not in own
    assert own["HTTPS_PROXY"] == "http://proxy.example.invalid:3128"


def test_pips_own_arguments() -> None:
    assert pip_arguments([], "", "") == []
    assert pip_arguments(["/a"], "https://i.example.invalid", "") == [
        "--find-links",
        "/a",
        "--index-url",
        "https://i.example.invalid",
    ]
