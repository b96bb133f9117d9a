"""What the limits of sessions really are, beside what limits.d was told: PAM has the last word, and another file may come behind ours."""

from __future__ import annotations

from typing import Any

from .kernel_files import LIMITS
from .kernel_parts import Context, Part

# The wildcard of limits.d reaches everybody but root.
_USERS = {"root": "root", "other users": "nobody"}
_ULIMIT = {"nofile": "n", "memlock": "l"}


def plan_limits(context: Context) -> Part:
    """The part that only reads: one session as root and one as somebody else, each asked for its limits."""
    part = Part("limits")
    wanted = context.wish.limits
    if not wanted:
        return part
    reason = ""
    if context.container:
        reason = f"{context.container}: its runtime sets the limits"
    elif context.run is None:
        reason = "no session is begun for a captured tree"
    if reason:
        part.measurements = [
            _measured(name, value, who, skipped=reason) for name, value in wanted.items() for who in _USERS
        ]
        return part
    for who, user in _USERS.items():
        found, error = _of_session(context, user, list(wanted))
        for name, value in wanted.items():
            if error:
                part.measurements.append(_measured(name, value, who, error=error))
                continue
            soft, hard = found[name]
            part.measurements.append(
                _measured(
                    name,
                    value,
                    who,
                    value=soft if soft == hard else f"{soft} (soft), {hard} (hard)",
                    cause=f"a file of /etc/security/limits.d behind {LIMITS.rpartition('/')[2]} says otherwise, pam_limits is not asked "
                    "(/etc/pam.d/runuser), or the stage has not run",
                    next_command=f"grep -rn {name} /etc/security/limits.conf /etc/security/limits.d; grep -rn pam_limits /etc/pam.d",
                )
            )
    return part


def _of_session(context: Context, user: str, names: list[str]) -> tuple[dict[str, tuple[str, str]], str]:
    """Name -> (soft, hard) of a new session of a user, or why it cannot be told."""
    asked = [f"ulimit -{kind}{_ULIMIT[name]}" for name in names for kind in "SH"]
    if context.run is None:
        return {}, "no command can be run"
    status, out, err = context.run(["runuser", user, "-s", "/bin/sh", "-c", "; ".join(asked)])
    words = out.split()
    if status != 0 or len(words) != len(asked):
        last = ((err.strip() or out.strip()).splitlines() or ["no message"])[-1]
        return (
            {},
            f"a session of {user} could not be begun to read its limits: runuser ended with status {status} ({last})",
        )
    return {name: (words[2 * place], words[2 * place + 1]) for place, name in enumerate(names)}, ""


def _measured(name: str, expected: str, who: str, **found: str) -> dict[str, Any]:
    return {
        "name": "session_limit",
        "scope": f"{name} of {who}",
        "expected": expected,
        "unit": "KiB" if name == "memlock" and expected.isdigit() else "",
        "statistic": "read once",
        **found,
    }
