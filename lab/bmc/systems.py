"""The computer system and its BIOS."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .messages import RedfishError, message, refuse
from .rest import Call, Reply, Resource, collection, link, raw_etag, success

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
APPLY_TIMES = ["OnReset", "Immediate", "AtMaintenanceWindowStart", "InMaintenanceWindowOnReset"]


def check_apply_time(body: Json, supported: list[str]) -> str | None:
    """Return the requested ApplyTime, or refuse one that the machine does not offer."""
    annotation = body.get("@Redfish.SettingsApplyTime")
    if annotation is None:
        return None
    where = "/@Redfish.SettingsApplyTime/ApplyTime"
    if not isinstance(annotation, dict) or "ApplyTime" not in annotation:
        raise refuse(400, "PropertyMissing", "ApplyTime", related=where)
    wanted = annotation["ApplyTime"]
    if wanted not in supported:
        raise refuse(400, "PropertyValueNotInList", wanted, "ApplyTime", ", ".join(supported), related=where)
    return str(wanted)


class SystemResources:
    """The handlers of one system."""

    def __init__(self, service: Service) -> None:
        """Serve one system."""
        self.service = service
        self.paths = service.paths
        self.profile = service.profile
        self.bios = service.bios

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths = self.paths
        # They come first, as on machines with a GPU baseboard: who takes the first member takes the wrong one.
        others = {f"{paths.systems}/{one['Id']}": one for one in self.profile.get("other_systems", [])}
        found = {
            paths.systems: Resource(
                get=lambda: collection(paths.systems, "ComputerSystem", "Computer systems", [*others, paths.system])
            ),
            **{uri: Resource(get=partial(self.other_system, uri, body)) for uri, body in others.items()},
            paths.system: Resource(get=self.system, patch=self.patch_system),
            f"{paths.system}/Actions/ComputerSystem.Reset": Resource(post=self.reset),
            paths.bios: Resource(get=self.get_bios, patch=self.patch_bios_directly),
            paths.settings: Resource(
                get=self.get_settings, patch=self.patch_settings, put=self.put_settings, etag_of=self.get_bios
            ),
            f"{paths.bios}/Actions/Bios.ResetBios": Resource(post=self.reset_bios),
        }
        if self.profile.quirks.get("clear_by_delete", False):
            found[paths.settings].delete = self.clear_pending
        return found

    def other_system(self, uri: str, described: Json) -> Json:
        """Return a system beside the main one (a GPU baseboard, a DPU): no BIOS, and nothing to reset."""
        return {
            "@odata.id": uri,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Name": described["Id"],
            "SystemType": "Physical",
            "PowerState": "On",
            "Status": {"State": "Enabled", "Health": "OK"},
            **described,
        }

    async def system(self) -> Json:
        """Return the ComputerSystem."""
        power = self.service.power
        await power.refresh()
        paths, described = self.paths, self.profile.data["system"]
        body: Json = {
            "@odata.id": paths.system,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": paths.ids["system"],
            "Name": described.get("Name", "System"),
            "SystemType": "Physical",
            **{key: value for key, value in described.items() if key != "Name"},
            "HostName": self.service.node_name,
            "PowerState": power.state,
            "BootProgress": power.boot_progress,
            "BiosVersion": self.service.firmware_version(self.profile.get("bios_firmware", "BIOS")),
            "Status": {
                "State": "Enabled" if power.state == "On" else "Disabled",
                "Health": "OK",
                "HealthRollup": "OK",
            },
            "PowerRestorePolicy": "LastState",
            "Boot": self.service.boot,
            "AssetTag": self.service.state.data.get("asset_tag", described.get("AssetTag", "")),
            "IndicatorLED": self.service.state.data.get("indicator_led", "Off"),
            "Bios": link(paths.bios),
            "Links": {"Chassis": [link(paths.chassis)], "ManagedBy": [link(paths.manager)]},
            "Actions": {
                "#ComputerSystem.Reset": {
                    "target": f"{paths.system}/Actions/ComputerSystem.Reset",
                    "ResetType@Redfish.AllowableValues": power.allowed,
                }
            },
        }
        body.update(self.service.system_links)
        return body

    def patch_system(self, call: Call) -> Reply:
        """Change the boot override, the indicator or the asset tag."""
        errors = []
        led_values = ["Lit", "Blinking", "Off"]
        for name, value in call.body.items():
            if name == "Boot" and isinstance(value, dict):
                errors += self._boot_errors(value)
            elif name == "IndicatorLED":
                if value not in led_values:
                    errors.append(
                        message("PropertyValueNotInList", value, name, ", ".join(led_values), related="/IndicatorLED")
                    )
            elif name == "AssetTag":
                if not isinstance(value, str):
                    errors.append(message("PropertyValueTypeError", value, name, "a string", related="/AssetTag"))
            elif name == "Boot":
                errors.append(message("PropertyValueTypeError", value, name, "an object", related="/Boot"))
            else:
                key = "PropertyNotWritable" if name in self.profile.data["system"] else "PropertyUnknown"
                errors.append(message(key, name, "it is informational", related=f"/{name}"))
        if errors:
            raise RedfishError(400, *errors)
        if "Boot" in call.body:
            self.service.boot.update(call.body["Boot"])
        if "IndicatorLED" in call.body:
            self.service.state.data["indicator_led"] = call.body["IndicatorLED"]
        if "AssetTag" in call.body:
            self.service.state.data["asset_tag"] = call.body["AssetTag"]
        self.service.state.save()
        return Reply(204)

    def _boot_errors(self, wanted: Json) -> list[Json]:
        allowed = {
            "BootSourceOverrideEnabled": ["Disabled", "Once", "Continuous"],
            "BootSourceOverrideMode": ["UEFI"],
            "BootSourceOverrideTarget": self.service.boot["BootSourceOverrideTarget@Redfish.AllowableValues"],
        }
        errors = []
        for name, value in wanted.items():
            where = f"/Boot/{name}"
            if name not in allowed:
                errors.append(message("PropertyUnknown", name, related=where))
            elif value not in allowed[name]:
                errors.append(message("PropertyValueNotInList", value, name, ", ".join(allowed[name]), related=where))
        return errors

    def reset(self, call: Call) -> Reply:
        """Do ComputerSystem.Reset."""
        action = "ComputerSystem.Reset"
        unknown = sorted(set(call.body) - {"ResetType"})
        if unknown:
            raise refuse(400, "ActionParameterUnknown", action, unknown[0])
        if "ResetType" not in call.body:
            raise refuse(400, "ActionParameterMissing", action, "ResetType")
        self.service.power.request(call.body["ResetType"])
        return Reply(204)

    def get_bios(self) -> Json:
        """Return the Bios resource: the values that the machine runs with."""
        paths, bios, quirks = self.paths, self.bios, self.bios.quirks
        values = bios.active
        jobs = self.service.jobs
        if quirks.get("bios_shows_pending", False) and jobs is not None and jobs.running:
            values.update(bios.pending)  # the race of libredfish#25: values look applied before the job has ended
        annotated = quirks.get("settings_annotation", True)
        settings: Json = {"@odata.type": "#Settings.v1_3_5.Settings"}
        if annotated != "without_object":
            settings["SettingsObject"] = link(paths.settings)
        if quirks.get("supported_apply_times", True):
            settings["SupportedApplyTimes"] = self.profile.data["bios"].get("apply_times", ["OnReset"])
        if bios.applied_at:
            settings.update(Time=bios.applied_at, Messages=bios.messages, ETag=raw_etag(values))
        body: Json = {
            "@odata.id": paths.bios,
            "@odata.type": "#Bios.v1_2_0.Bios",
            "Id": "Bios",
            "Name": "BIOS Configuration Current Settings",
            "Attributes": bios.shaped(values),
            "ResetBiosToDefaultsPending": bios.reset_to_defaults_pending,
            "Actions": {"#Bios.ResetBios": {"target": f"{paths.bios}/Actions/Bios.ResetBios"}},
        }
        if quirks.get("bios_names_registry", True):
            body["AttributeRegistry"] = self.service.registry_name
        if annotated:
            body["@Redfish.Settings"] = settings
        return body

    def get_settings(self) -> Json:
        """Return the settings object: pending values, alone or laid over the active ones as the profile has it."""
        bios = self.bios
        shows = bios.quirks.get("settings_shows", "pending")
        values = bios.pending if shows == "pending" else {**bios.active, **bios.pending}
        body: Json = {
            "@odata.id": self.paths.settings,
            "@odata.type": "#Bios.v1_2_0.Bios",
            "Id": "Settings",
            "Name": "BIOS Configuration Pending Settings",
            "Attributes": bios.shaped(values),
        }
        if bios.quirks.get("bios_names_registry", True):
            body["AttributeRegistry"] = self.service.registry_name
        if bios.quirks.get("settings_annotation_apply_time", True):
            body["@Redfish.SettingsApplyTime"] = {
                "@odata.type": "#Settings.v1_3_5.PreferredApplyTime",
                "ApplyTime": "OnReset",
                "ApplyTime@Redfish.AllowableValues": self.profile.data["bios"].get("apply_times", ["OnReset"]),
            }
        if self.service.jobs is not None:
            name = "DellManager.ClearPending"
            body["Actions"] = {"Oem": {f"#{name}": {"target": f"{self.paths.settings}/Actions/Oem/{name}"}}}
        return body

    def patch_bios_directly(self, call: Call) -> Reply:
        """Refuse, or on firmware that takes it, stage what was sent to the Bios resource itself."""
        if not self.bios.quirks.get("patch_on_bios", False):
            names = sorted(self.bios.attributes_of(call.body)) or ["Attributes"]
            raise RedfishError(
                400,
                *(
                    message(
                        "PropertyNotWritable",
                        name,
                        f"changes go to the settings object {self.paths.settings}",
                        related=f"/Attributes/{name}",
                    )
                    for name in names
                ),
            )
        return self.patch_settings(call)

    def patch_settings(self, call: Call) -> Reply:
        """Stage attributes for the next reset."""
        return self._stage(call, replace=False)

    def put_settings(self, call: Call) -> Reply:
        """Make the body the whole of the pending values."""
        return self._stage(call, replace=True)

    def _stage(self, call: Call, *, replace: bool) -> Reply:
        supported = self.profile.data["bios"].get("apply_times", ["OnReset"])
        when = check_apply_time(call.body, supported)
        attributes = self.bios.attributes_of(call.body)
        jobs = self.service.jobs
        if jobs is not None:
            jobs.check_free(makes_job=when is not None)
        dropping = self.service.faults.take("stage_drops")
        if dropping is not None:
            names = dropping.parameters["attributes"] or list(attributes)
            attributes = {name: value for name, value in attributes.items() if name not in names}
        self.bios.stage(attributes, replace=replace)
        if jobs is not None:
            if when is None or not self.bios.pending:
                return success()
            job = jobs.create()
            return Reply(202, success().body, {"Location": jobs.location(job)})
        return self._staged_reply()

    def _staged_reply(self) -> Reply:
        kind = self.bios.quirks.get("settings_reply", "200")
        if kind == "202_task" and self.bios.pending:
            tasks, data = self.service.tasks, self.service.state.data
            older = data.get("settings_task")
            if older is not None:
                tasks.update(older, "Cancelled", 100, message("GeneralError", "A newer request replaced it."))
            identity = tasks.create("BIOS settings", "Pending")
            target = f"{self.paths.system}/Actions/ComputerSystem.Reset"
            tasks.update(identity, "Pending", 0, message("ResetRequired", target, "ForceRestart"))
            data["settings_task"] = identity
            self.service.state.save()
            return self.service.task_resources.accepted(identity)
        if kind == "204":
            return Reply(204)
        reply = success(202 if kind == "202_bare" else 200)
        extra = self.bios.quirks.get("settings_message")
        if extra is not None and self.bios.pending:
            reply.body["error"]["@Message.ExtendedInfo"] = [{"@odata.type": "#Message.v1_2_1.Message", **extra}]
            reply.body["error"]["code"] = extra["MessageId"]
        return reply

    def clear_pending(self, _call: Call) -> Reply:
        """Forget pending values."""
        self.bios.clear()
        return Reply(204)

    def reset_bios(self, call: Call) -> Reply:
        """Have the next reset restore the defaults."""
        if call.body and self.bios.quirks.get("reset_bios_strict", False):
            raise refuse(400, "ActionParameterUnknown", "Bios.ResetBios", sorted(call.body)[0])
        self.bios.reset_to_defaults()
        return success()
