"""What is to be done about firmware: installed versions beside floors, pins and images. Pure; asks no BMC and reads no file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .firmware_floors import find_components, no_component
from .firmware_images import FileState, FirmwareError, Image
from .firmware_versions import compare_versions

Component = Mapping[str, Any]

# The BMC first: a newer one knows how to write what comes after it. Then the BIOS, which newer cards may need.
ORDER = ("bmc", "bios", "other")
_BMC_NAMES = re.compile(
    r"\b(bmc|idrac|ilo|xcc|isbmc|lenovo xclarity controller|remote access controller|integrated lights.?out)\b"
)
_BIOS_NAMES = re.compile(r"\b(bios|uefi|system rom)\b")
# NVIDIA's baseboard (HGX) has a controller of its own; it is not the BMC that is asked, and its update does not restart that.
_BASEBOARD = re.compile(r"\bhgx\b")


def kind_of(component: Component) -> str:
    """Tell `bmc`, `bios` or `other` from a component's id and name."""
    words = re.sub(r"[_-]+", " ", f"{component.get('id', '')} | {component.get('name', '')}".lower())
    if _BMC_NAMES.search(words) and not _BASEBOARD.search(words):
        return "bmc"
    return "bios" if _BIOS_NAMES.search(words) else "other"


@dataclass
class Wish:
    """What an inventory asks of one component; keys are those of `firmware_floors` and `firmware_pins`."""

    component: Component
    floors: list[str] = field(default_factory=list)
    pin: str = ""
    image: Image | None = None

    @property
    def id(self) -> str:
        """Id of the component."""
        return str(self.component["id"])

    @property
    def installed(self) -> str:
        """Version that runs."""
        return str(self.component["version"])

    @property
    def wanted(self) -> str:
        """The wish as a text."""
        texts = [f"at least {floor}" for floor in self.floors] + ([f"exactly {self.pin}"] if self.pin else [])
        return " and ".join(texts)

    def order_to(self, version: str) -> int | None:
        """Order of the installed version to another."""
        return compare_versions(self.installed, version)

    @property
    def unknown(self) -> str:
        """The floor or pin whose order to the installed version nobody knows; empty where all are known."""
        for version in [*self.floors, *([self.pin] if self.pin else [])]:
            if self.order_to(version) is None:
                return version
        return ""

    @property
    def met(self) -> bool:
        """Whether the installed version is what was asked for."""
        return not self.unknown and self.accepts(self.installed)

    @property
    def too_new(self) -> bool:
        """Whether only going back to an older version would do."""
        return bool(self.pin) and self.order_to(self.pin) == 1

    def accepts(self, version: str) -> bool:
        """Whether a version would do."""
        above = all((compare_versions(version, floor) or 0) >= 0 for floor in self.floors)
        return above and (not self.pin or compare_versions(version, self.pin) == 0)


@dataclass
class Step:
    """One image to be installed, with the components that need it."""

    image: Image
    kind: str
    wishes: list[Wish]
    file: FileState | None = None  # once its checksum was taken

    @property
    def size_bytes(self) -> int:
        """Size of the image file; 0 where there is none."""
        return self.file.size_bytes if self.file is not None else 0

    @property
    def downgrade(self) -> bool:
        """Whether it goes back to an older version."""
        return any(wish.order_to(self.image.version) == 1 for wish in self.wishes)

    @property
    def name(self) -> str:
        """Its components, for a sentence."""
        return ", ".join(wish.id for wish in self.wishes)


@dataclass
class Plan:
    """All wishes; the steps in their order; and why a component that needs a change gets none, by its id."""

    wishes: list[Wish]
    steps: list[Step]
    blocked: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the steps lead to all that was asked for; where not, none of them is to be taken."""
        return not self.blocked and not self.missing


def make_plan(
    components: Sequence[Component],
    floors: Mapping[str, str],
    pins: Mapping[str, str],
    images: Sequence[Image],
    *,
    allow_downgrade: bool = False,
) -> Plan:
    """Set wishes beside what is installed.

    Raises:
        FirmwareError: floors, pins and images contradict each other, or an image is of no use on this machine.
    """
    wishes: dict[str, Wish] = {}
    missing: list[tuple[str, str]] = []
    problems: list[str] = []
    for table, name in ((floors, "firmware_floors"), (pins, "firmware_pins")):
        for key, version in table.items():
            found = find_components(components, str(key))
            if not found:
                missing.append((str(key), name))
            for component in found:
                wish = wishes.setdefault(str(component["id"]), Wish(component))
                problems += _add(wish, str(key), str(version), is_pin=table is pins)
    problems += _assign(components, wishes, images)
    if problems:
        raise FirmwareError(list(dict.fromkeys(problems)))
    made = Plan(list(wishes.values()), [], missing=missing)
    for wish in made.wishes:
        if wish.met:
            continue
        reason = _blocked(wish, allow_downgrade)
        if reason:
            made.blocked[wish.id] = reason
        elif wish.image is not None:
            _step(made.steps, wish, wish.image)
    made.steps.sort(key=lambda step: ORDER.index(step.kind))
    return made


def _add(wish: Wish, key: str, version: str, *, is_pin: bool) -> list[str]:
    if not is_pin:
        wish.floors.append(version)
        return []
    if wish.pin and compare_versions(wish.pin, version) != 0:
        return [f"firmware_pins asks for two versions of {wish.id}, {wish.pin} and {version}: keep one"]
    wish.pin = version
    below = [floor for floor in wish.floors if compare_versions(version, floor) == -1]
    return (
        [f"firmware_pins[{key}] is {version}, below the floor {below[0]} of {wish.id}: raise one or lower the other"]
        if below
        else []
    )


def _assign(components: Sequence[Component], wishes: Mapping[str, Wish], images: Sequence[Image]) -> list[str]:
    """Give each wish its image; say what is wrong with the images."""
    problems = []
    for image in images:
        found = find_components(components, image.component)
        if not found:
            problems.append(f"firmware_images: {no_component(components, image.component)}")
        useful = [wishes[str(one["id"])] for one in found if str(one["id"]) in wishes]
        if found and not useful:
            problems.append(
                f"firmware_images holds {image.version} for {image.component}, of which neither firmware_floors nor"
                " firmware_pins asks for anything: say there which version is wanted"
            )
        for wish in useful:
            if wish.image is not None:
                problems.append(
                    f"firmware_images has two images for {wish.id}, {wish.image.source} and {image.source}: keep one"
                )
                continue
            wish.image = image
            problems += _unfit(wish, image)
    return problems


def _unfit(wish: Wish, image: Image) -> list[str]:
    for floor in wish.floors:
        order = compare_versions(image.version, floor)
        if order is None:
            return [
                f'the order of the image {image.version} and the floor "{floor}" of {wish.id} is not known: write both in'
                " the form that the component reports"
            ]
        if order == -1:
            return [
                f"the image {image.source} for {wish.id} is {image.version}, below the floor {floor}: give a newer image"
                " or lower the floor"
            ]
    if wish.pin and compare_versions(image.version, wish.pin) != 0:
        return [f"the image {image.source} for {wish.id} is {image.version}, not the pin {wish.pin}: make them agree"]
    return []


def _blocked(wish: Wish, allow_downgrade: bool) -> str:
    """Why a component that is not as wanted cannot be changed; empty where it can."""
    if wish.unknown:
        found = f'"{wish.installed}"' if wish.installed else "no version"
        return (
            f'the order of {found} and "{wish.unknown}" is not known: write it in the form that the component reports'
        )
    if wish.image is None:
        return "no image for it in firmware_images"
    if wish.too_new and not allow_downgrade:
        return f"it runs {wish.installed}, newer than the pin {wish.pin}, and firmware_allow_downgrade is false"
    # What the inventory does not list comes from the system or the manager, which say nothing about updates.
    if not wish.component.get("updateable") and wish.component.get("source") != "system":
        return "the BMC says that it cannot be updated through it (Updateable is false)"
    return ""


def _step(steps: list[Step], wish: Wish, image: Image) -> None:
    kind = kind_of(wish.component) if image.kind == "auto" else image.kind
    for step in steps:
        if step.image is image and step.kind == kind:
            step.wishes.append(wish)
            return
    steps.append(Step(image, kind, [wish]))
