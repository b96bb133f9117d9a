"""Accounts and roles. The first account comes from the configuration; further ones live in the state."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .messages import RedfishError, message, refuse
from .paths import ROOT
from .rest import Call, Reply, Resource, collection, link
from .state import State

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
ROLES: dict[str, list[str]] = {
    "Administrator": ["Login", "ConfigureManager", "ConfigureUsers", "ConfigureSelf", "ConfigureComponents"],
    "Operator": ["Login", "ConfigureSelf", "ConfigureComponents"],
    "ReadOnly": ["Login", "ConfigureSelf"],
}
MIN_PASSWORD, MAX_PASSWORD, MAX_USERNAME = 8, 64, 32
_LIMIT = 16


def _digest(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=1024, r=8, p=1).hex()


@dataclass
class Account:
    """An account. The first keeps its password as configured, others only a digest."""

    identity: str
    username: str
    role: str
    enabled: bool = True

    def may(self, privilege: str) -> bool:
        """Whether the role has a privilege."""
        return privilege in ROLES[self.role]


class Accounts:
    """All accounts."""

    def __init__(self, username: str, password: str, state: State) -> None:
        """Take the configured account and those of the state."""
        self._first = Account("1", username, "Administrator")
        self._password = password
        self._state = state
        self._data: Json = state.section("accounts", {"next": 2, "all": {}})

    def all(self) -> list[Account]:
        """Return the accounts."""
        others = (
            Account(identity, one["username"], one["role"], one["enabled"])
            for identity, one in self._data["all"].items()
        )
        return [self._first, *others]

    def get(self, identity: str) -> Account | None:
        """Return an account by its id."""
        return next((one for one in self.all() if one.identity == identity), None)

    def check(self, username: str, password: str) -> Account | None:
        """Return the account whose credentials these are."""
        for account in self.all():
            if not hmac.compare_digest(account.username.encode(), username.encode()) or not account.enabled:
                continue
            if account.identity == "1":
                right = hmac.compare_digest(self._password.encode(), password.encode())
            else:
                stored = self._data["all"][account.identity]
                right = hmac.compare_digest(stored["digest"], _digest(password, stored["salt"]))
            return account if right else None
        return None

    def add(self, username: str, password: str, role: str, enabled: bool) -> Account:
        """Add an account; names are unique."""
        if any(one.username == username for one in self.all()):
            raise refuse(400, "ResourceAlreadyExists", "ManagerAccount", "UserName", username)
        if len(self.all()) >= _LIMIT:
            raise refuse(400, "CreateLimitReachedForResource")
        identity = str(self._data["next"])
        self._data["next"] += 1
        salt = secrets.token_hex(16)
        self._data["all"][identity] = {
            "username": username,
            "role": role,
            "enabled": enabled,
            "salt": salt,
            "digest": _digest(password, salt),
        }
        self._state.save()
        return Account(identity, username, role, enabled)

    def change(self, identity: str, changes: Json) -> None:
        """Change an account of the state; keys are `username`, `password`, `role`, `enabled`."""
        stored = self._data["all"][identity]
        for key, value in changes.items():
            if key == "password":
                stored["salt"] = secrets.token_hex(16)
                stored["digest"] = _digest(value, stored["salt"])
            else:
                stored[key] = value
        self._state.save()

    def remove(self, identity: str) -> None:
        """Remove an account of the state."""
        self._data["all"].pop(identity, None)
        self._state.save()


class AccountResources:
    """The handlers of the AccountService."""

    def __init__(self, service: Service) -> None:
        """Serve the accounts of the service."""
        self.service = service
        self.accounts = service.accounts
        self.uri = f"{ROOT}/AccountService"

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        roles = f"{self.uri}/Roles"
        table = {
            self.uri: Resource(get=self.account_service),
            f"{self.uri}/Accounts": Resource(get=self.all, post=self.create, privilege="ConfigureUsers"),
            roles: Resource(get=partial(collection, roles, "Role", "Roles", [f"{roles}/{name}" for name in ROLES])),
        }
        for name in ROLES:
            table[f"{roles}/{name}"] = Resource(get=partial(self.role, name))
        return table

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {f"{self.uri}/Accounts": self.find}

    def account_service(self) -> Json:
        """Return the AccountService."""
        return {
            "@odata.id": self.uri,
            "@odata.type": "#AccountService.v1_15_0.AccountService",
            "Id": "AccountService",
            "Name": "Account Service",
            "ServiceEnabled": True,
            "MinPasswordLength": MIN_PASSWORD,
            "MaxPasswordLength": MAX_PASSWORD,
            "HTTPBasicAuth": "Enabled",
            "Accounts": link(f"{self.uri}/Accounts"),
            "Roles": link(f"{self.uri}/Roles"),
        }

    def role(self, name: str) -> Json:
        """Return a Role."""
        return {
            "@odata.id": f"{self.uri}/Roles/{name}",
            "@odata.type": "#Role.v1_3_2.Role",
            "Id": name,
            "Name": f"{name} role",
            "RoleId": name,
            "IsPredefined": True,
            "AssignedPrivileges": ROLES[name],
            "OemPrivileges": [],
        }

    def all(self) -> Json:
        """Return the account collection."""
        members = [f"{self.uri}/Accounts/{one.identity}" for one in self.accounts.all()]
        return collection(f"{self.uri}/Accounts", "ManagerAccount", "Accounts", members)

    def body(self, account: Account) -> Json:
        """Return a ManagerAccount."""
        return {
            "@odata.id": f"{self.uri}/Accounts/{account.identity}",
            "@odata.type": "#ManagerAccount.v1_12_0.ManagerAccount",
            "Id": account.identity,
            "Name": "User Account",
            "UserName": account.username,
            "Password": None,
            "RoleId": account.role,
            "Enabled": account.enabled,
            "Locked": False,
            "AccountTypes": ["Redfish"],
            "Links": {"Role": link(f"{self.uri}/Roles/{account.role}")},
        }

    @staticmethod
    def _changes(body: Json) -> Json:
        keys = {"UserName": "username", "Password": "password", "RoleId": "role", "Enabled": "enabled"}
        errors, changes = [], {}
        for name, value in body.items():
            where = f"/{name}"
            if name not in keys:
                known = name in ("Id", "Name", "Locked", "AccountTypes", "Links") or name.startswith("@")
                key = "PropertyNotWritable" if known else "PropertyUnknown"
                errors.append(message(key, name, "it is informational", related=where))
            elif name == "Enabled":
                if not isinstance(value, bool):
                    errors.append(message("PropertyValueTypeError", value, name, "a boolean", related=where))
            elif not isinstance(value, str):
                errors.append(message("PropertyValueTypeError", "(hidden)", name, "a string", related=where))
            elif name == "RoleId" and value not in ROLES:
                errors.append(message("PropertyValueNotInList", value, name, ", ".join(ROLES), related=where))
            elif name == "Password" and not MIN_PASSWORD <= len(value) <= MAX_PASSWORD:
                length = f"length {MIN_PASSWORD} to {MAX_PASSWORD}"
                errors.append(message("PropertyValueOutOfRange", "(hidden)", name, length, related=where))
            elif name == "UserName" and not 1 <= len(value) <= MAX_USERNAME:
                length = f"length 1 to {MAX_USERNAME}"
                errors.append(message("PropertyValueOutOfRange", value, name, length, related=where))
            changes[keys.get(name, name)] = value
        if errors:
            raise RedfishError(400, *errors)
        return changes

    def create(self, call: Call) -> Reply:
        """Add an account."""
        changes = self._changes(call.body)
        missing = [name for name in ("UserName", "Password", "RoleId") if name not in call.body]
        if missing:
            raise RedfishError(400, *(message("PropertyMissing", name, related=f"/{name}") for name in missing))
        account = self.accounts.add(
            changes["username"], changes["password"], changes["role"], changes.get("enabled", True)
        )
        body = self.body(account)
        return Reply(201, body, {"Location": body["@odata.id"]})

    def find(self, identity: str) -> Resource | None:
        """Return an account's resource."""
        account = self.accounts.get(identity)
        if account is None:
            return None

        def patch(call: Call) -> Reply:
            changes = self._changes(call.body)
            own = call.account is not None and call.account.identity == identity
            if not (call.account is not None and call.account.may("ConfigureUsers")) and not (
                own and set(changes) == {"password"}
            ):
                raise refuse(403, "InsufficientPrivilege")
            if identity == "1":
                names = sorted(call.body)
                raise refuse(400, "PropertyNotWritable", names[0] if names else "", "the configuration sets it")
            if changes.get("username") != account.username and any(
                one.username == changes.get("username") for one in self.accounts.all()
            ):
                raise refuse(400, "ResourceAlreadyExists", "ManagerAccount", "UserName", changes["username"])
            self.accounts.change(identity, changes)
            return Reply(200, self.body(self.accounts.get(identity) or account))

        def delete(_call: Call) -> Reply:
            if identity == "1":
                raise refuse(400, "ResourceCannotBeDeleted")
            self.accounts.remove(identity)
            self.service.sessions.logout_user(account.username)
            return Reply(204)

        return Resource(
            get=lambda: self.body(self.accounts.get(identity) or account),
            patch=patch,
            delete=delete,
            privilege="ConfigureUsers",
            own_privilege={"PATCH": "ConfigureSelf"},
        )
