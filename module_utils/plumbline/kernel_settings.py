"""Makes a kernel be what a wish says, all of it or nothing, and tells for each setting what became of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .kernel_arguments import ArgumentPlan, Runner, plan_arguments, stage_arguments, unstage_arguments
from .kernel_files import (
    LIMITS,
    STATE,
    SYSCTL,
    TMPFILES,
    FileWish,
    Transaction,
    current,
    dump_state,
    files_of,
    load_state,
    sysctl_rivals,
)
from .kernel_knobs import Live, Setting, container_evidence, has_own_network, plan_live
from .kernel_wish import KernelError, Wish, normalise_value, parse_wish
from .tree import Tree

_TUNED_PROFILE = "/etc/tuned/active_profile"


class RefusedError(KernelError):
    """A write was refused after planning; everything written has been put back."""

    def __init__(self, message: str, culprit: str) -> None:
        """Take the sentence for the user and the name of the setting that was refused."""
        super().__init__(message)
        self.culprit = culprit


@dataclass
class Plan:
    """Everything that a run looks at and would do, before a byte is written."""

    tree: Tree
    wish: Wish
    container: str
    live: list[Setting]
    # Set by Plumbline earlier and not wished any more: path -> value from before.
    give_back: dict[str, dict[str, str]]
    limits_skipped: str
    arguments: ArgumentPlan
    files: list[FileWish]
    state: dict[str, Any]
    boot_id: str
    warnings: list[str] = field(default_factory=list)

    @property
    def wrong_files(self) -> list[FileWish]:
        """The files that have to be written or removed."""
        return [wish for wish in self.files if not wish.is_right(self.tree)]

    @property
    def is_changed(self) -> bool:
        """True when a run would change anything."""
        return bool(
            self.wrong_files
            or any(not setting.is_right for setting in self.live if not setting.skipped)
            or self.give_back
            or not self.arguments.is_staged
        )


def make_plan(root: str, raw_wish: dict[str, Any], told_container: bool, run: Runner | None) -> Plan:
    """Read the machine and check the whole wish against it; raises KernelError, and has changed nothing."""
    tree = Tree(root)
    wish = parse_wish(raw_wish)
    container = container_evidence(tree) or ("container (as the survey says)" if told_container else "")
    live = plan_live(tree, wish, container)
    state, warning = load_state(tree)
    rivals = sysctl_rivals(tree, {s.name: s.wanted for s in live if s.kind == "sysctl" and not s.skipped})
    faults = list(rivals.values()) + _limit_faults(tree, wish)
    if faults:
        raise KernelError("; ".join(faults))
    limits_skipped = f"{container}: its runtime sets the limits" if container and wish.limits else ""
    plan = Plan(
        tree=tree,
        wish=wish,
        container=container,
        live=live,
        give_back=_given_back(tree, live, state, container),
        limits_skipped=limits_skipped,
        arguments=plan_arguments(tree, wish.arguments, _words(state, "arguments"), container, run is not None),
        files=files_of(live, {} if limits_skipped else wish.limits),
        state=state,
        boot_id=tree.text("/proc/sys/kernel/random/boot_id") or "",
        warnings=[warning] if warning else [],
    )
    if plan.arguments.loader == "grub" and _words(state, "arguments") != wish.arguments:
        # An earlier run may have been cut off between the drop-in and the boot loader's configuration.
        plan.arguments.is_staged = False
    profile = tree.text(_TUNED_PROFILE)
    if profile and not container and (live or wish.limits):
        plan.warnings.append(
            f"tuned is set to the profile {profile}: where it sets the same things, the last to act wins; verify tells"
        )
    return plan


def apply_plan(plan: Plan, live: Live, run: Runner | None) -> None:
    """Make it so. Raises RefusedError when something is refused, after everything was put back."""
    transaction = Transaction(plan.tree)
    written: list[tuple[str, str]] = []
    staged = False
    step = ""
    record = bool(plan.state) or plan.is_changed
    try:
        for name, path, value in _live_writes(plan):
            step = name
            written.append((path, live.read(path) or ""))
            _write(live, name, path, value)
        # All of them again: one may undo another (vm.dirty_bytes and vm.dirty_ratio).
        for setting in plan.live:
            step = setting.name
            _read_back(live, setting)
        for wish in plan.wrong_files:
            step = wish.path
            transaction.apply(wish)
        if not plan.arguments.is_staged:
            step = "arguments"
            staged = True
            stage_arguments(plan.tree, plan.arguments, transaction, run)
        step = STATE
        state = dump_state(next_state(plan))
        if record and current(plan.tree, STATE) != state:
            transaction.apply(FileWish(STATE, state))
    except (OSError, KernelError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = (
                f"{step}: could not be written ({error.strerror or error}): run with root's rights, or see the disk"
            )
        faults = transaction.rollback()
        if staged:
            try:
                unstage_arguments(plan.tree, plan.arguments, run)
            except KernelError as again:
                faults.append(f"the boot loader could not be put back ({again})")
        for path, value in reversed(written):
            try:
                if live.read(path) != value:
                    live.write(path, value)
            except OSError as again:
                faults.append(f"{path} could not be put back to {value} ({again.strerror})")
        tail = "; nothing was changed" if not faults else "; beware: " + "; ".join(faults)
        raise RefusedError(reason + tail, step) from None


def next_state(plan: Plan) -> dict[str, Any]:
    """The record after this run: what each live setting was before Plumbline, and when arguments were staged."""
    known = plan.state.get("live", {})
    live = {
        setting.name: {
            "set": setting.wanted,
            "before": known[setting.name]["before"] if setting.name in known else setting.before,
        }
        for setting in plan.live
        if not setting.skipped
    }
    previous = _words(plan.state, "arguments")
    arguments = [] if plan.arguments.skipped else plan.wish.arguments
    restaged = previous != arguments or not plan.arguments.is_staged or "boot_id" not in plan.state
    leaving = [word for word in previous if word not in arguments]
    if plan.state.get("boot_id") == plan.boot_id:
        leaving += [word for word in _words(plan.state, "leaving") if word not in arguments and word not in leaving]
    elif not restaged:
        leaving = []
    return {
        "version": 1,
        "live": live,
        "arguments": arguments,
        "leaving": leaving,
        "boot_id": plan.boot_id if restaged else plan.state["boot_id"],
    }


def report(plan: Plan, refused: RefusedError | None = None) -> list[dict[str, Any]]:
    """For each setting: name, state (ok, changed, skipped, failed), wanted, before, reason, restart_required."""
    rows = [_live_row(plan, setting) for setting in plan.live]
    rows += [
        _row(name, "changed", ("", _told(before)), "no longer wished: given back to what it was before Plumbline")
        for name, before in plan.give_back.items()
    ]
    limits_now = _limit_values(current(plan.tree, LIMITS) or "")
    for name, value in plan.wish.limits.items():
        before = limits_now.get(name, "")
        state = "skipped" if plan.limits_skipped else "ok" if before == value else "changed"
        rows.append(
            _row(f"limits.{name}", state, (value, before), plan.limits_skipped or "for sessions that begin later")
        )
    rows += _argument_rows(plan)
    if refused:
        for row in rows:
            if row["name"] == refused.culprit or (
                refused.culprit == "arguments" and row["name"].startswith("argument ")
            ):
                row.update(state="failed", reason=str(refused))
            elif row["state"] == "changed":
                row.update(state="skipped", reason=f"put back, because {refused.culprit} was refused")
    return rows


def differences(plan: Plan) -> list[dict[str, str]]:
    """Ansible diffs: one for the live settings, one for each file."""
    before, after = "", ""
    for setting in plan.live:
        if not setting.skipped and not setting.is_right:
            before += f"{setting.name} = {_told(setting.before)}\n"
            after += f"{setting.name} = {setting.wanted}\n"
    for name, values in plan.give_back.items():
        before += f"{name} = {plan.state['live'][name]['set']}\n"
        after += f"{name} = {_told(values)}\n"
    diffs = [{"before_header": "live", "after_header": "live", "before": before, "after": after}] if before else []
    for wish in plan.wrong_files:
        link = plan.tree.link(wish.path)
        diffs.append(
            {
                "before_header": wish.path,
                "after_header": wish.path,
                "before": f"-> {link}\n" if link is not None else current(plan.tree, wish.path) or "",
                "after": f"-> {wish.link}\n" if wish.link is not None else wish.content or "",
            }
        )
    if not plan.arguments.is_staged:
        old = _words(plan.state, "arguments")
        diffs.append(
            {
                "before_header": f"kernel arguments ({plan.arguments.loader})",
                "after_header": f"kernel arguments ({plan.arguments.loader})",
                "before": "".join(f"{word}\n" for word in old),
                "after": "".join(f"{word}\n" for word in plan.wish.arguments),
            }
        )
    return diffs


def _live_writes(plan: Plan) -> list[tuple[str, str, str]]:
    """(setting, path, value) in the order to write: what is given back first, so that a new wish has the last word."""
    writes = [(name, path, value) for name, values in plan.give_back.items() for path, value in values.items()]
    for setting in plan.live:
        writes += [
            (setting.name, path, setting.wanted) for path in setting.paths if setting.before[path] != setting.wanted
        ]
    return writes


def _write(live: Live, name: str, path: str, value: str) -> None:
    try:
        live.write(path, value)
    except OSError as error:
        raise KernelError(f"{name}: the kernel refused {value!r} for {path} ({error.strerror or error})") from error


def _read_back(live: Live, setting: Setting) -> None:
    for path in setting.paths:
        now = live.read(path)
        setting.after[path] = now or ""
        if now != setting.wanted:
            raise KernelError(
                f"{setting.name}: expected {setting.wanted!r} after writing it, found {now!r} in {path}: the kernel keeps "
                "another value, or another setting of the wish undoes this one; correct the wish"
            )


def _given_back(tree: Tree, live: list[Setting], state: dict[str, Any], container: str) -> dict[str, dict[str, str]]:
    """What Plumbline set and is not wished any more, unless somebody else has changed it since."""
    wished = {setting.name for setting in live}
    reader = Live(tree)
    back: dict[str, dict[str, str]] = {}
    for name, entry in state.get("live", {}).items():
        if name in wished:
            continue
        # A container may carry the record of the machine that its image was taken from.
        mine = not container or (name.startswith("net.") and has_own_network(tree))
        values = {
            path: str(value)
            for path, value in entry["before"].items()
            if mine and value != entry["set"] and reader.read(path) == entry["set"]
        }
        if values:
            back[name] = values
    return back


def _limit_faults(tree: Tree, wish: Wish) -> list[str]:
    """A nofile limit above fs.nr_open locks everybody out: PAM then refuses the session."""
    if "nofile" not in wish.limits:
        return []
    ceiling = wish.sysctl.get("fs.nr_open", (tree.text("/proc/sys/fs/nr_open") or "", False))[0]
    if ceiling.isdigit() and int(wish.limits["nofile"]) > int(ceiling):
        return [
            f"limits.nofile: expected at most {ceiling} (fs.nr_open), found {wish.limits['nofile']}: every login would be "
            "refused; lower it, or raise sysctl fs.nr_open in the same wish"
        ]
    return []


def _limit_values(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {row[2]: row[3] for row in rows if len(row) == 4}


def _live_row(plan: Plan, setting: Setting) -> dict[str, Any]:
    before = _told(setting.before)
    if setting.skipped:
        return _row(setting.name, "skipped", (setting.wanted, before), setting.skipped)
    file = SYSCTL if setting.kind == "sysctl" else TMPFILES
    line = f"{setting.pattern} = {setting.wanted}" if setting.kind == "sysctl" else f"w {setting.pattern} "
    lines = (current(plan.tree, file) or "").splitlines()
    kept = any(found.startswith(line) and found.endswith(setting.wanted) for found in lines)
    if not setting.is_right:
        return _row(setting.name, "changed", (setting.wanted, before), "", file)
    if not kept:
        return _row(setting.name, "changed", (setting.wanted, before), f"was right, is now kept in {file}", file)
    return _row(setting.name, "ok", (setting.wanted, before), "", file)


def _argument_rows(plan: Plan) -> list[dict[str, Any]]:
    arguments = plan.arguments
    previous = _words(plan.state, "arguments")
    running = (plan.tree.text("/proc/cmdline") or "").split()
    staged_in_this_boot = not arguments.is_staged or plan.state.get("boot_id", plan.boot_id) == plan.boot_id
    rows = []
    for word in arguments.wanted:
        name = f"argument {word}"
        if arguments.skipped:
            rows.append(_row(name, "skipped", (word, ""), arguments.skipped))
            continue
        is_running = word not in arguments.not_running
        state = "ok" if arguments.is_staged or word in previous else "changed"
        reason = ""
        if not is_running and not staged_in_this_boot:
            state = "failed"
            reason = (
                "staged before the last restart, yet the running kernel does not have it: the machine booted another "
                "entry (see GRUB_DEFAULT, grub2-editenv list, /proc/cmdline)"
            )
        elif not is_running:
            reason = "takes effect with the next restart"
        before = word if is_running else ""
        row = _row(name, state, (word, before), reason, arguments.loader)
        row["restart_required"] = not is_running and staged_in_this_boot
        rows.append(row)
    leaving = [word for word in previous if word not in arguments.wanted]
    if plan.state.get("boot_id") == plan.boot_id:
        leaving += [word for word in _words(plan.state, "leaving") if word not in arguments.wanted]
    for word in dict.fromkeys(leaving):
        row = _row(f"argument {word}", "changed" if word in previous else "ok", ("", word), "no longer wished")
        row["restart_required"] = word in running
        if not arguments.skipped:
            rows.append(row)
    return rows


def _row(name: str, state: str, values: tuple[str, str], reason: str, kept_in: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "state": state,
        "wanted": values[0],
        "before": values[1],
        "reason": reason,
        "restart_required": False,
        "persisted_in": kept_in,
    }


def _told(values: dict[str, str]) -> str:
    """One value for all files, or how often each occurs."""
    counted = Counter(values.values())
    if len(counted) <= 1:
        return next(iter(counted), "")
    return ", ".join(f"{normalise_value(value)} on {count}" for value, count in sorted(counted.items()))


def _words(state: dict[str, Any], key: str) -> list[str]:
    return [str(word) for word in state.get(key, [])]
