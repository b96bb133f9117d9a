"""Packages that no unattended upgrade may move: a drop-in for unattended-upgrades, a list in dnf-automatic's file."""

from __future__ import annotations

import re

from .kernel_files import FileWish, current
from .kernel_parts import Context, Part, measured, row

APT = "/etc/apt/apt.conf.d/95-plumbline.conf"
DNF = "/etc/dnf/automatic.conf"
_OPTION = "Unattended-Upgrade::Package-Blacklist"
_APT_HEADER = "// Managed by Plumbline (role kernel): change the inventory, not this file.\n"
_DUMPED = re.compile(rf'^{_OPTION}::\S* "(.*)";$', re.MULTILINE)
_EXCLUDES = re.compile(r"^(\s*(?:excludepkgs|exclude)\s*[=:]\s*)(.*)$")


def plan_unattended(context: Context) -> Part:
    """The part `hold_back`. Raises nothing: where nothing upgrades by itself there is nothing to hold back."""
    part = Part("hold_back")
    tree, wanted = context.tree, context.wish.hold_back
    if tree.exists("/etc/apt/apt.conf.d"):
        _plan_apt(context, part)
    elif tree.exists(DNF):
        _plan_dnf(context, part)
    elif wanted:
        reason = "neither apt nor dnf-automatic is here: no package is upgraded unattended"
        part.rows = [row("hold_back", "skipped", (" ".join(wanted), ""), reason)]
        part.measurements = [measured("hold_back", " ".join(wanted), skipped=reason)]
    return part


def _plan_apt(context: Context, part: Part) -> None:
    wanted = context.wish.hold_back
    patterns = [_pattern(word) for word in wanted]
    lines = "".join(f'  "{pattern}";\n' for pattern in patterns)
    wish = FileWish(APT, f"{_APT_HEADER}{_OPTION} {{\n{lines}}};\n" if wanted else None)
    part.files = [wish]
    is_right = wish.is_right(context.tree)
    if not wanted:
        if not is_right:
            part.rows = [row("hold_back", "changed", ("", APT), "no longer wished", APT)]
        return

    def missing() -> list[str]:
        return [word for word, pattern in zip(wanted, patterns) if pattern not in _dumped(context)]

    lacking = missing()
    told = " ".join(word for word in wanted if word not in lacking)
    part.rows = [row("hold_back", "ok" if is_right else "changed", (" ".join(wanted), told), "", APT)]
    part.measurements = [
        measured(
            "hold_back",
            " ".join(wanted),
            value=told or "nothing",
            cause=_cause() if is_right else "the kernel stage has not run, or somebody changed the file since",
            next_command=f"apt-config dump {_OPTION}",
        )
    ]

    def check() -> str:
        left = missing()
        return (
            f"hold_back: apt-config does not show {', '.join(left)} after {APT} was written: {_cause()}" if left else ""
        )

    part.check = check if context.run else None


def _cause() -> str:
    return f"a file that is read behind {APT} clears {_OPTION}; see grep -rn clear /etc/apt/apt.conf.d"


def _pattern(word: str) -> str:
    """The regular expression of a beginning of a name: unattended-upgrades matches it from the first letter on."""
    return "^" + re.sub(r"([.+])", r"[\1]", word)


def _dumped(context: Context) -> list[str]:
    """The patterns that apt sees; in a captured tree those of our own file."""
    if context.run is None:
        return re.findall(r'^\s+"(.*)";$', current(context.tree, APT) or "", re.MULTILINE)
    status, out, _ = context.run(["apt-config", "dump", _OPTION])
    return _DUMPED.findall(out) if status == 0 else []


def _plan_dnf(context: Context, part: Part) -> None:
    """dnf-automatic has one file and no drop-ins; its section `base` overrules dnf.conf. Others' words stay where they are."""
    text = current(context.tree, DNF) or ""
    globs = [f"{word}*" for word in context.wish.hold_back]
    ours = [str(word) for word in context.known("hold_back").get("added", [])]
    present = _excluded(text)
    kept = [word for word in present if word not in ours or word in globs]
    added = [word for word in globs if word not in present or word in ours]
    after = _with_excluded(text, kept + [word for word in globs if word not in kept])
    wish = FileWish(DNF, after if after != text else text)
    part.files = [wish]
    part.record = {"added": added} if added else {}
    is_right = wish.is_right(context.tree)
    told = " ".join(word for word in globs if word in present)
    if globs:
        part.rows = [row("hold_back", "ok" if is_right else "changed", (" ".join(globs), told), "", DNF)]
        part.measurements = [
            measured(
                "hold_back",
                " ".join(globs),
                value=told or "nothing",
                cause="the kernel stage has not run, or somebody changed the file since",
                next_command=f"grep -n -A20 '^.base' {DNF}",
            )
        ]
    elif not is_right:
        part.rows = [row("hold_back", "changed", ("", " ".join(ours)), "no longer wished", DNF)]


def _section_bounds(lines: list[str]) -> tuple[int, int]:
    """First line behind `[base]` and the line behind its last; (-1, -1) without one."""
    start = next((index + 1 for index, line in enumerate(lines) if line.strip() == "[base]"), -1)
    if start < 0:
        return -1, -1
    end = next((index for index in range(start, len(lines)) if lines[index].strip().startswith("[")), len(lines))
    return start, end


def _excluded(text: str) -> list[str]:
    lines = text.splitlines()
    start, end = _section_bounds(lines)
    for line in lines[start:end] if start >= 0 else []:
        match = _EXCLUDES.match(line)
        if match:
            return match.group(2).replace(",", " ").split()
    return []


def _with_excluded(text: str, words: list[str]) -> str:
    """The file with exactly these words in the list of `base`; unchanged where it holds them already."""
    if _excluded(text) == words:
        return text
    lines = text.splitlines()
    start, end = _section_bounds(lines)
    if start < 0:
        lines += ["[base]"]
        start = end = len(lines)
    for index in range(start, end):
        match = _EXCLUDES.match(lines[index])
        if match:
            lines[index : index + 1] = [match.group(1) + " ".join(words)] if words else []
            break
    else:
        lines.insert(start, "excludepkgs = " + " ".join(words))
    return "\n".join(lines) + "\n"
