"""The service root, sessions and registries."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from . import messages
from .auth import Session
from .messages import RedfishError, message, refuse
from .paths import ROOT
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
REDFISH_VERSION = "1.18.1"


class CoreResources:
    """The handlers of what every service has."""

    def __init__(self, service: Service) -> None:
        """Serve one BMC."""
        self.service = service
        self.paths = service.paths
        self.profile = service.profile

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        reading = frozenset({"GET"})
        paths = self.paths
        name = self.service.registry_name
        attribute_file = f"{paths.registries}/{name}"
        base_file = f"{paths.registries}/{messages.REGISTRY}"
        attribute_store = self.profile.data["bios"].get("registry_uri", f"{attribute_file}/{name}.json")
        base_store = f"{base_file}/{messages.REGISTRY}.json"
        return {
            "/redfish": Resource(get=lambda: {"v1": f"{ROOT}/"}, open_to=reading),
            ROOT: Resource(get=self.root, open_to=reading),
            f"{ROOT}/odata": Resource(get=self.odata, open_to=reading),
            f"{ROOT}/$metadata": Resource(get=self.metadata, open_to=reading, content_type="application/xml"),
            f"{ROOT}/SessionService": Resource(
                get=self.session_service, patch=self.patch_session_service, privilege="ConfigureManager"
            ),
            # Empty, but there: HPE's ilorest takes a service without it for an iLO of the time before Redfish.
            f"{ROOT}/JsonSchemas": Resource(
                get=lambda: collection(f"{ROOT}/JsonSchemas", "JsonSchemaFile", "JSON schemas", [])
            ),
            paths.sessions: Resource(get=self.sessions, post=self.login, open_to=frozenset({"POST"})),
            paths.registries: Resource(
                get=lambda: collection(
                    paths.registries, "MessageRegistryFile", "Registries", [attribute_file, base_file]
                )
            ),
            attribute_file: Resource(
                get=lambda: self.registry_file(attribute_file, name, "BIOS attributes", attribute_store)
            ),
            attribute_store: Resource(get=self.attribute_registry),
            base_file: Resource(
                get=lambda: self.registry_file(base_file, messages.REGISTRY, "Base messages", base_store)
            ),
            base_store: Resource(get=self.base_registry),
        }

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {self.paths.sessions: self.find_session}

    def root(self) -> Json:
        """Return the ServiceRoot."""
        paths = self.paths
        expand = bool(self.profile.quirks.get("expand", False))
        return {
            "@odata.id": f"{ROOT}/",
            "@odata.type": "#ServiceRoot.v1_16_1.ServiceRoot",
            "Id": "RootService",
            "Name": "Root Service",
            "RedfishVersion": REDFISH_VERSION,
            "UUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.service.node_name}.bmc")),
            "Vendor": self.profile.get("vendor", ""),
            "Product": self.profile.get("product", ""),
            **({"Oem": self.profile.data["root_oem"]} if "root_oem" in self.profile.data else {}),
            "ProtocolFeaturesSupported": {
                "FilterQuery": False,
                "SelectQuery": False,
                "ExcerptQuery": False,
                "OnlyMemberQuery": False,
                "ExpandQuery": {
                    "ExpandAll": expand,
                    "Levels": expand,
                    "Links": False,
                    "NoLinks": expand,
                    **({"MaxLevels": 1} if expand else {}),
                },
            },
            "Systems": link(paths.systems),
            "Chassis": link(paths.chassis_all),
            "Managers": link(paths.managers),
            "UpdateService": link(paths.update),
            "Tasks": link(f"{ROOT}/TaskService"),
            "SessionService": link(f"{ROOT}/SessionService"),
            "AccountService": link(f"{ROOT}/AccountService"),
            "Registries": link(paths.registries),
            "JsonSchemas": link(f"{ROOT}/JsonSchemas"),
            "Links": {"Sessions": link(paths.sessions)},
        }

    def odata(self) -> Json:
        """Return the OData service document."""
        names = ("Systems", "Chassis", "Managers", "UpdateService", "Tasks", "SessionService", "Registries")
        root = self.root()
        return {
            "@odata.context": f"{ROOT}/$metadata",
            "value": [
                {"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"},
                *({"name": name, "kind": "Singleton", "url": root[name]["@odata.id"]} for name in names),
            ],
        }

    def metadata(self) -> Any:
        """Return the OData metadata document: references to DMTF's schemas."""
        kinds = ("ServiceRoot", "ComputerSystem", "Bios", "Chassis", "Manager", "UpdateService", "Task", "Session")
        references = "".join(
            f'<edmx:Reference Uri="http://redfish.dmtf.org/schemas/v1/{kind}_v1.xml">'
            f'<edmx:Include Namespace="{kind}"/></edmx:Reference>'
            for kind in kinds
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">'
            f"{references}<edmx:DataServices>"
            '<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">'
            '<EntityContainer Name="Service" Extends="ServiceRoot.v1_16_1.ServiceContainer"/>'
            "</Schema></edmx:DataServices></edmx:Edmx>"
        )

    def session_service(self) -> Json:
        """Return the SessionService."""
        return {
            "@odata.id": f"{ROOT}/SessionService",
            "@odata.type": "#SessionService.v1_1_9.SessionService",
            "Id": "SessionService",
            "Name": "Session Service",
            "ServiceEnabled": True,
            "SessionTimeout": self.service.sessions.timeout_seconds,
            "Sessions": link(self.paths.sessions),
        }

    def patch_session_service(self, call: Call) -> Reply:
        """Change the session timeout."""
        for name in call.body:
            if name != "SessionTimeout":
                raise refuse(400, "PropertyNotWritable", name, "it is informational", related=f"/{name}")
        value = call.body.get("SessionTimeout")
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse(
                400, "PropertyValueTypeError", value, "SessionTimeout", "an integer", related="/SessionTimeout"
            )
        if not 1 <= value <= 86400:
            raise refuse(
                400, "PropertyValueOutOfRange", value, "SessionTimeout", "1 to 86400 s", related="/SessionTimeout"
            )
        self.service.sessions.timeout_seconds = value
        return Reply(204)

    def sessions(self) -> Json:
        """Return the open sessions."""
        members = [f"{self.paths.sessions}/{one.identity}" for one in self.service.sessions.all()]
        return collection(self.paths.sessions, "Session", "Sessions", members)

    def _session(self, session: Session) -> Json:
        return {
            "@odata.id": f"{self.paths.sessions}/{session.identity}",
            "@odata.type": "#Session.v1_7_1.Session",
            "Id": session.identity,
            "Name": "User Session",
            "UserName": session.username,
            "Password": None,
            "SessionType": "Redfish",
            "CreatedTime": session.created,
            "ClientOriginIPAddress": session.client,
        }

    def login(self, call: Call) -> Reply:
        """Open a session."""
        missing = [name for name in ("UserName", "Password") if name not in call.body]
        if missing:
            raise RedfishError(400, *(message("PropertyMissing", name, related=f"/{name}") for name in missing))
        for name in ("UserName", "Password"):
            if not isinstance(call.body[name], str):
                raise refuse(400, "PropertyValueTypeError", "(hidden)", name, "a string", related=f"/{name}")
        session = self.service.sessions.login(
            call.body["UserName"], call.body["Password"], call.request.remote or "unknown"
        )
        uri = f"{self.paths.sessions}/{session.identity}"
        return Reply(201, self._session(session), {"Location": uri, "X-Auth-Token": session.token})

    def find_session(self, identity: str) -> Resource | None:
        """Return an open session's resource."""
        session = self.service.sessions.get(identity)
        if session is None:
            return None

        def logout(_call: Call) -> Reply:
            self.service.sessions.logout(identity)
            return Reply(204)

        return Resource(get=lambda: self._session(session), delete=logout, privilege="ConfigureSelf")

    @staticmethod
    def registry_file(uri: str, name: str, title: str, store: str) -> Json:
        """Return a MessageRegistryFile, which says where a registry lies."""
        return {
            "@odata.id": uri,
            "@odata.type": "#MessageRegistryFile.v1_1_4.MessageRegistryFile",
            "Id": name,
            "Name": title,
            "Registry": name,
            "Languages": ["en"],
            "Location": [{"Language": "en", "Uri": store}],
        }

    def attribute_registry(self) -> Json:
        """Return the BIOS attribute registry."""
        return self.profile.registry.document

    @staticmethod
    def base_registry() -> Json:
        """Return the part of the Base message registry that is in use."""
        return {
            "@odata.type": "#MessageRegistry.v1_6_3.MessageRegistry",
            "Id": f"Base.{messages.REGISTRY_VERSION}",
            "Name": "Base Message Registry (the messages in use)",
            "Language": "en",
            "RegistryPrefix": "Base",
            "RegistryVersion": messages.REGISTRY_VERSION,
            "OwningEntity": "DMTF",
            "Messages": messages.REGISTRY_ENTRIES,
        }
