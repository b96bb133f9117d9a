"""Makes a kernel be what a wish says, all of it or nothing, and tells for each setting what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .kernel_arguments import ArgumentPlan, plan_arguments, stage_arguments, unstage_arguments
from .kernel_boot import GRUB_CFG
from .kernel_files import (
    STATE,
    FileWish,
    Transaction,
    current,
    dump_state,
    files_of,
    load_state,
    sysctl_rivals,
)
from .kernel_knobs import KNOBS, Live, Setting, container_evidence, has_own_network, plan_live
from .kernel_limits import plan_limits
from .kernel_packages import Boot, plan_boot
from .kernel_pairs import contradictions, partner, partner_path, to_write_back
from .kernel_parts import Command, Context, Part, Runner, run_commands, undo_commands
from .kernel_services import plan_irqbalance, plan_tuned
from .kernel_slice import plan_slice
from .kernel_unattended import plan_unattended
from .kernel_wish import KernelError, Wish, parse_wish
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
    boot: Boot
    parts: list[Part]
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
            or any(part.commands for part in self.parts)
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
    faults += contradictions({setting.name: setting.wanted for setting in live if not setting.skipped})
    if faults:
        raise KernelError("; ".join(faults))
    boot_id = tree.text("/proc/sys/kernel/random/boot_id") or ""
    context = Context(tree, wish, container, state.get("parts", {}), run, boot_id)
    boot, boot_part = plan_boot(context)
    parts = [
        boot_part,
        *(make(context) for make in (plan_unattended, plan_slice, plan_irqbalance, plan_tuned, plan_limits)),
    ]
    limits_skipped = f"{container}: its runtime sets the limits" if container and wish.limits else ""
    plan = Plan(
        tree=tree,
        wish=wish,
        container=container,
        live=live,
        give_back=_given_back(tree, live, state, container),
        limits_skipped=limits_skipped,
        arguments=plan_arguments(context, words(state, "arguments"), boot.entry),
        files=[*files_of(live, {} if limits_skipped else wish.limits), *(f for part in parts for f in part.files)],
        state=state,
        boot_id=boot_id,
        boot=boot,
        parts=parts,
        warnings=[warning] if warning else [],
    )
    if plan.arguments.loader == "grub" and words(state, "arguments") != wish.arguments:
        # An earlier run may have been cut off between the drop-in and the boot loader's configuration.
        plan.arguments.is_staged = False
    profile = tree.text(_TUNED_PROFILE)
    if profile and profile != "plumbline" and not container and (live or wish.limits):
        plan.warnings.append(
            f"tuned is set to the profile {profile}: where it sets the same things, the last to act wins; verify tells"
        )
    return plan


def apply_plan(plan: Plan, live: Live, run: Runner | None) -> None:
    """Make it so. Raises RefusedError when something is refused, after everything was put back."""
    attempt = _Attempt(plan, live, run)
    try:
        attempt.go()
    except (OSError, KernelError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = (
                f"{attempt.step}: could not be written ({error.strerror or error}): run with root's rights, or see the "
                "disk"
            )
        faults = attempt.put_back()
        tail = "; nothing was changed" if not faults else "; beware: " + "; ".join(faults)
        raise RefusedError(reason + tail, attempt.step) from None


class _Attempt:
    """One try at a plan, that knows how far it came."""

    def __init__(self, plan: Plan, live: Live, run: Runner | None) -> None:
        self.plan = plan
        self.live = live
        self.run = run
        self.step = ""
        self.transaction = Transaction(plan.tree)
        self.before: dict[str, str] = {}
        self.written: list[str] = []
        self.done: list[Command] = []
        self.staged = False
        self.grub_cfg = current(plan.tree, GRUB_CFG)

    def go(self) -> None:
        """Raises OSError or KernelError; `step` then tells at what."""
        plan = self.plan
        record = bool(plan.state) or plan.is_changed or any(part.record for part in plan.parts)
        if plan.is_changed:
            # Before anything else: a machine that is cut off in the middle must still know what was there first.
            self.step = STATE
            self._record(intended_state(plan))
        writes = _live_writes(plan)
        # All of them before the first write: one may clear another.
        for _, path, _ in writes:
            for one in filter(None, (path, partner_path(path))):
                self.before[one] = self.live.read(one) or ""
        for name, path, value in writes:
            self.step = name
            self.written.append(path)
            _write(self.live, name, path, value)
        # All of them again: one may undo another (vm.dirty_bytes and vm.dirty_ratio).
        for setting in plan.live:
            self.step = setting.name
            _read_back(self.live, setting)
        for wish in plan.wrong_files:
            self.step = wish.path
            self.transaction.apply(wish)
        for part in plan.parts:
            self.step = part.name
            run_commands(part, self.run, self.done)
        if not plan.arguments.is_staged:
            self.step = "arguments"
            self.staged = True
            stage_arguments(plan.tree, plan.arguments, self.transaction, self.run)
        for part in plan.parts:
            self.step = part.name
            fault = part.check() if part.check else ""
            if fault:
                raise KernelError(fault)
        self.step = STATE
        if record:
            self._record(next_state(plan))

    def _record(self, state: dict[str, Any]) -> None:
        text = dump_state(state)
        if current(self.plan.tree, STATE) != text:
            self.transaction.apply(FileWish(STATE, text))

    def put_back(self) -> list[str]:
        """Everything as it was; returns what could not be put back."""
        faults = self.transaction.rollback() + undo_commands(self.done, self.run)
        if self.staged:
            try:
                unstage_arguments(self.plan.tree, self.plan.arguments, self.run, self.grub_cfg)
            except (KernelError, OSError) as again:
                faults.append(f"the boot loader could not be put back ({again})")
        # A mode of the CPU frequency driver first: it brings its own governors.
        modes = [path for path in self.written if path.endswith("pstate/status")]
        others = [path for path in self.written if path not in modes]
        values = {path: self.before[path] for path in modes + others[::-1]}
        for path, value in to_write_back(values, self.before).items():
            try:
                if self.live.read(path) != value:
                    self.live.write(path, value)
            except OSError as error:
                faults.append(f"{path} could not be put back to {value} ({error.strerror})")
        return faults


def next_state(plan: Plan) -> dict[str, Any]:
    """The record after this run: what each live setting was before Plumbline, and when arguments were staged."""
    known = plan.state.get("live", {})
    live = {setting.name: _record_of(setting, known) for setting in plan.live if not setting.skipped}
    previous = words(plan.state, "arguments")
    arguments = [] if plan.arguments.skipped else plan.wish.arguments
    restaged = previous != arguments or not plan.arguments.is_staged or "boot_id" not in plan.state
    leaving = [word for word in previous if word not in arguments]
    if plan.state.get("boot_id") == plan.boot_id:
        leaving += [word for word in words(plan.state, "leaving") if word not in arguments and word not in leaving]
    elif not restaged:
        leaving = []
    records = {part.name: part.record for part in plan.parts if part.record}
    return {
        "version": 1,
        "live": live,
        **({"parts": records} if records else {}),
        "arguments": arguments,
        "leaving": leaving,
        "boot_id": plan.boot_id if restaged else plan.state["boot_id"],
    }


def _record_of(setting: Setting, known: dict[str, Any]) -> dict[str, Any]:
    """What was there before Plumbline, of this setting and of its partner, which an earlier wish may have set."""
    earlier, other = known.get(setting.name), known.get(partner(setting.name))
    before, beside = setting.before, setting.beside
    if earlier is not None:
        before, beside = earlier["before"], earlier.get("beside", {})
    elif other is not None:
        before, beside = {**before, **other.get("beside", {})}, other["before"]
    return {"set": setting.wanted, "before": before, **({"beside": beside} if beside else {})}


def intended_state(plan: Plan) -> dict[str, Any]:
    """The record while a run is at work: what it is about to set beside what it is about to give back, until both are done."""
    state = next_state(plan)
    state["live"] = {**plan.state.get("live", {}), **state["live"]}
    parts: dict[str, Any] = {}
    for record in (plan.state.get("parts", {}), state.get("parts", {})):
        for name, known in record.items():
            part = parts.setdefault(name, {})
            for key, value in known.items():
                before = part.get(key)
                both = isinstance(before, list) and isinstance(value, list)
                part[key] = [*before, *(one for one in value if one not in before)] if both else value
    if parts:
        state["parts"] = parts
    previous = words(plan.state, "arguments")
    state["arguments"] = [*previous, *(word for word in state["arguments"] if word not in previous)]
    return state


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
    order = {name: index for index, name in enumerate(KNOBS)}
    for name, entry in sorted(state.get("live", {}).items(), key=lambda item: order.get(item[0], -1)):
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
            back[name] = to_write_back(values, entry.get("beside", {}))
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


def words(state: dict[str, Any], key: str) -> list[str]:
    """A list of words in the record."""
    return [str(word) for word in state.get(key, [])]
