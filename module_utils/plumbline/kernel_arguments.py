"""Kernel arguments that outlive a restart: a drop-in for GRUB (Debian, Ubuntu), grubby for BLS (Enterprise Linux)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .kernel_boot import ENTRIES, GRUB_CFG, uses_entries
from .kernel_files import FileWish, Transaction, current
from .kernel_parts import Context, Runner
from .kernel_wish import KernelError
from .tree import Tree

DROP_IN = "/etc/default/grub.d/95-plumbline.cfg"
_HEADER = "# Managed by Plumbline (role kernel): change the inventory, not this file.\n"
_LINUX_LINE = re.compile(r"^\s*linux(?:16|efi)?\s+\S+\s+(.*)$", re.MULTILINE)
_TEN_LINUX = re.compile(r"### BEGIN /etc/grub\.d/10_linux ###(.*?)### END /etc/grub\.d/10_linux ###", re.DOTALL)
_RECOVERY_WORDS = {"single", "recovery", "rescue"}


@dataclass
class ArgumentPlan:
    """What is staged for the next boot, what runs now, and what has to be done."""

    wanted: list[str]
    loader: str = ""
    skipped: str = ""
    # Nothing to stage: every boot entry has the arguments, and none that left.
    is_staged: bool = True
    add: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    # Wanted, but not on the command line of the running kernel.
    not_running: list[str] = field(default_factory=list)
    # GRUB_DEFAULT, where a certain kernel must be said to boot.
    entry: str = ""


def split_command_line(text: str) -> list[str]:
    """The words of a kernel command line; double quotes keep spaces together, as in the kernel."""
    words, word, quoted = [], "", False
    for character in text:
        if character == '"':
            quoted = not quoted
        if character.isspace() and not quoted:
            if word:
                words.append(word)
            word = ""
        else:
            word += character
    return [*words, word] if word else words


def not_in(wanted: list[str], present: list[str]) -> list[str]:
    """The wanted arguments that a command line does not have, or that a later word of the same name overrules."""
    ours = {word.partition("=")[0]: word for word in wanted}
    last = {word.partition("=")[0]: word for word in present}
    return [
        word
        for word in wanted
        if word not in present or ("=" in word and last[word.partition("=")[0]] != ours[word.partition("=")[0]])
    ]


def boot_loader(tree: Tree) -> str:
    """`bls` where grubby edits boot entries, `grub` where GRUB reads drop-ins, empty where neither is found."""
    if uses_entries(tree):
        return "bls"
    tools = ("/usr/sbin/update-grub", "/usr/sbin/grub-mkconfig")
    if tree.exists("/etc/default/grub") and any(tree.exists(tool) for tool in tools):
        return "grub"
    return ""


def drop_in(arguments: list[str], entry: str = "") -> FileWish:
    """GRUB's drop-in: ours come behind everybody else's, and not into the recovery entries; *entry* boots by default."""
    lines = ""
    if entry:
        lines += f'GRUB_DEFAULT="{entry}"\n'
    if arguments:
        lines += 'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }'
        lines += " ".join(arguments) + '"\n'
    return FileWish(DROP_IN, _HEADER + lines if lines else None)


def plan_arguments(context: Context, previous: list[str], entry: str = "") -> ArgumentPlan:
    """What staging the arguments takes; *previous* are those that Plumbline staged before. Raises KernelError.

    In a captured tree, where no command can run, only GRUB's drop-in is looked at.
    """
    tree, wanted, container = context.tree, context.wish.arguments, context.container
    plan = ArgumentPlan(wanted=wanted, entry=entry)
    if container:
        plan.skipped = f"{container}: kernel arguments belong to the host"
        return plan
    if not wanted and not previous and not entry and not tree.exists(DROP_IN):
        return plan
    plan.loader = boot_loader(tree)
    if not plan.loader:
        if not wanted and not entry:
            return plan
        raise KernelError(
            "arguments: expected GRUB with /etc/default/grub and update-grub, or boot loader entries with grubby, found "
            "neither: set the arguments in this machine's boot loader by hand and take them out of the wish"
        )
    plan.not_running = not_in(wanted, split_command_line(tree.text("/proc/cmdline") or ""))
    if plan.loader == "grub":
        plan.is_staged = drop_in(wanted, entry).is_right(tree) and (
            not context.run or not _missing_in_grub_cfg(tree, wanted)
        )
        return plan
    _plan_entries(tree, plan, previous)
    return plan


def stage_arguments(tree: Tree, plan: ArgumentPlan, transaction: Transaction, run: Runner | None) -> None:
    """Stage a plan for the next boot and read it back; raises KernelError or OSError. The caller rolls back."""
    if plan.loader == "grub":
        transaction.apply(drop_in(plan.wanted, plan.entry))
        regenerate(tree, run)
        missing = _missing_in_grub_cfg(tree, plan.wanted) if run else []
        if missing:
            raise KernelError(
                f"arguments: {' '.join(missing)} did not reach {GRUB_CFG}: see which file behind {DROP_IN} in "
                "/etc/default/grub.d sets GRUB_CMDLINE_LINUX_DEFAULT anew"
            )
    elif plan.loader == "bls" and run:
        _grubby(run, plan.add, plan.remove)
        left = sorted({word for words in _entries(tree).values() for word in not_in(plan.wanted, words)})
        if left:
            raise KernelError(
                f"arguments: grubby succeeded, yet a boot entry lacks {' '.join(left)}: see grubby --info=ALL"
            )


def unstage_arguments(tree: Tree, plan: ArgumentPlan, run: Runner | None, before: str | None = None) -> None:
    """Undo in the boot loader what stage_arguments did; the drop-in has been put back already. *before* is GRUB's configuration then.

    Raises KernelError or OSError.
    """
    if not run:
        return
    if plan.loader == "grub":
        # A site's own file that GRUB's tools stumble over stops them before they write anything, and would stop them again.
        if before is None or current(tree, GRUB_CFG) != before:
            _regenerate_or_restore(tree, run, before)
    elif plan.loader == "bls":
        _grubby(run, plan.remove, plan.add)


def regenerate(tree: Tree, run: Runner | None) -> None:
    """Write GRUB's configuration anew."""
    if not run:
        return
    command = ["update-grub"] if tree.exists("/usr/sbin/update-grub") else ["grub-mkconfig", "-o", GRUB_CFG]
    _checked(run, command)


def _regenerate_or_restore(tree: Tree, run: Runner, before: str | None) -> None:
    try:
        regenerate(tree, run)
    except KernelError:
        if before is None:
            raise
        # In place, since a full file system has no room for a second one: what grub-mkconfig cut short is shorter than this.
        Path(tree.path(GRUB_CFG)).write_text(before, encoding="utf-8")


def _grubby(run: Runner, add: list[str], remove: list[str]) -> None:
    command = ["grubby", "--update-kernel=ALL"]
    if add:
        command.append(f"--args={' '.join(add)}")
    if remove:
        command.append(f"--remove-args={' '.join(remove)}")
    if add or remove:
        _checked(run, command)


def _checked(run: Runner, command: list[str]) -> None:
    status, out, err = run(command)
    if status != 0:
        last = ((err.strip() or out.strip()).splitlines() or ["no message"])[-1]
        raise KernelError(f"arguments: {command[0]} ended with status {status} ({last}): run it by hand to see why")


def _missing_in_grub_cfg(tree: Tree, wanted: list[str]) -> list[str]:
    """Wanted arguments that a normal entry of grub.cfg lacks; all of them when it has no entry."""
    text = current(tree, GRUB_CFG) or ""
    section = _TEN_LINUX.search(text)
    entries = [split_command_line(line) for line in _LINUX_LINE.findall(section.group(1) if section else text)]
    normal = [words for words in entries if not _RECOVERY_WORDS & set(words)]
    if not normal:
        return list(wanted)
    missing = {word for words in normal for word in not_in(wanted, words)}
    return [word for word in wanted if word in missing]


def _plan_entries(tree: Tree, plan: ArgumentPlan, previous: list[str]) -> None:
    """Fill the plan from the boot loader entries; refuses what grubby would do to others' arguments."""
    names = [word.partition("=")[0] for word in plan.wanted]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise KernelError(
            f"arguments: {twice[0]} is given more than once, which grubby cannot keep on boot loader entries: give it once"
        )
    add: dict[str, None] = {}
    for entry, words in _entries(tree).items():
        for word in plan.wanted:
            name = word.partition("=")[0]
            # grubby replaces an argument of the same name: ours may go, another's may not.
            others = [w for w in words if w.partition("=")[0] == name and w != word and w not in previous]
            if others:
                raise KernelError(
                    f"arguments: {word!r} is wanted, but the boot entry {entry} already has {others[0]!r} from elsewhere: "
                    f"remove it (grubby --update-kernel=ALL --remove-args={others[0]}) or take {name} out of the wish"
                )
        add.update(dict.fromkeys(not_in(plan.wanted, words)))
    plan.add = [word for word in plan.wanted if word in add]
    names_added = {word.partition("=")[0] for word in plan.wanted}
    present = {word for words in _entries(tree).values() for word in words}
    # Of the same name as a wanted one: grubby's --args replaces it by itself.
    plan.remove = [word for word in previous if word in present and word.partition("=")[0] not in names_added]
    plan.is_staged = not plan.add and not plan.remove


def _entries(tree: Tree) -> dict[str, list[str]]:
    """Name -> arguments of every boot loader entry but the rescue one."""
    grubenv = current(tree, "/boot/grub2/grubenv") or ""
    shared = next((line[len("kernelopts=") :] for line in grubenv.splitlines() if line.startswith("kernelopts=")), "")
    entries: dict[str, list[str]] = {}
    for name in tree.names(ENTRIES):
        if not name.endswith(".conf") or "-0-rescue" in name:
            continue
        words: list[str] = []
        for line in (tree.text(f"{ENTRIES}/{name}") or "").splitlines():
            keyword, _, rest = line.strip().partition(" ")
            if keyword == "options":
                words += split_command_line(rest.replace("$kernelopts", shared))
        entries[name] = [word for word in words if not word.startswith("$")]
    return entries
