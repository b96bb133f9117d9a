"""The part of DMTF's Base message registry that the simulator speaks (DSP2065; wording is our own).

A message is a key, its arguments, and what a person should do. `message` makes the object that goes into
`@Message.ExtendedInfo`, and `REGISTRY_ENTRIES` is what the service publishes under `/redfish/v1/Registries`.
"""

from __future__ import annotations

from typing import Any

REGISTRY = "Base.1.18"
REGISTRY_VERSION = "1.18.0"

# key | severity | text with %1, %2 ... | resolution
_TABLE = """
Success | OK | The request completed successfully. | None.
GeneralError | Critical | %1 | See the message, correct the cause and send the request again.
InternalError | Critical | The service failed to handle the request. | Send it again; report the service log.
MalformedJSON | Critical | The request body is not valid JSON. | Correct the body and send it again.
UnrecognizedRequestBody | Warning | The request body cannot be used: %1. | Send a JSON object as the schema of the resource describes it.
ResourceMissingAtURI | Critical | There is no resource at %1. | Follow the links from /redfish/v1.
OperationNotAllowed | Critical | %1 is not allowed on %2. | Use a method of the Allow header.
NoValidSession | Critical | The request carries no valid credentials: %1. | Log in at SessionService/Sessions, or by basic authentication.
ResourceAtUriUnauthorized | Critical | Access to %1 was refused. | Send credentials that may read it.
InsufficientPrivilege | Critical | The account has not the privilege that this request needs. | Log in with an account that has it.
ResourceAlreadyExists | Critical | There is already a %1 whose %2 is %3. | Choose another value.
ResourceCannotBeDeleted | Critical | The resource cannot be deleted. | Leave it.
CreateLimitReachedForResource | Critical | No more resources can be created here. | Delete one first.
SessionLimitExceeded | Critical | %1 sessions are open, which is the limit. | Log out of a session or wait until one expires.
PreconditionFailed | Critical | The If-Match header %1 does not match the current ETag of %2. | Read it again and repeat the change.
HeaderMissing | Critical | The header %1 is required for this request. | Add the header.
HeaderInvalid | Critical | The header %1 is not supported. | Send a value that the specification names.
NoOperation | Warning | The request body asks for no change. | Send at least one property that can be changed.
QueryNotSupported | Warning | The query parameter %1 is not supported. | Leave it out; see ProtocolFeaturesSupported in the root.
QueryParameterValueTypeError | Warning | The value %1 for the query parameter %2 has the wrong type. | Send a whole number.
PropertyUnknown | Warning | The property %1 does not exist here. | Correct the name or leave it out.
PropertyNotWritable | Warning | The property %1 is read-only: %2. | Leave it out, or first change what locks it.
PropertyMissing | Warning | The property %1 is required and missing. | Add it and send the request again.
PropertyValueNotInList | Warning | The value %1 for %2 is not one of: %3. | Choose a value of the attribute registry.
PropertyValueTypeError | Warning | The value %1 for %2 has the wrong type; expected %3. | Send a value of the expected type.
PropertyValueOutOfRange | Warning | The value %1 for %2 is out of range: %3. | Send a value within the bounds.
PropertyValueFormatError | Warning | The value %1 for %2 has the wrong format: %3. | Send a value of the expected format.
ActionParameterMissing | Critical | The action %1 needs the parameter %2. | Add the parameter.
ActionParameterUnknown | Warning | The action %1 has no parameter %2. | Leave it out.
ActionParameterNotSupported | Warning | The parameter %1 of the action %2 does not support %3; supported: %4. | Choose one of them.
ActionParameterValueTypeError | Warning | The value %1 for the parameter %2 of the action %3 has the wrong type. | Correct it.
ResourceInUse | Warning | %1 is in use or in transition: %2. | Wait until it is done and send the request again.
ResourceInStandby | Critical | The request needs the system to be on, and it is off. | Turn it on and send the request again.
ServiceTemporarilyUnavailable | Critical | The service is temporarily unavailable. Retry in %1 seconds. | Wait that long.
ResetRequired | Warning | To complete the change, reset %1 with ResetType %2. | Reset it.
SettingsFailed | Warning | The value of %1 was not applied: %2. | Remove the cause and stage the value anew.
ConditionInRelatedResource | Warning | Look at %1 for the cause. | Look there.
"""
_MESSAGES: dict[str, tuple[str, str, str]] = {
    key: (severity, text, resolution)
    for key, severity, text, resolution in (line.split(" | ") for line in _TABLE.strip().splitlines())
}


def message(key: str, *args: Any, related: str | None = None) -> dict[str, Any]:
    """Return a message object with its arguments filled in.

    `related` is a JSON pointer to the property at fault, such as `/Attributes/C6Enable`.
    """
    severity, text, resolution = _MESSAGES[key]
    texts = [str(arg) for arg in args]
    for index, value in enumerate(texts, start=1):
        text = text.replace(f"%{index}", value)
    body: dict[str, Any] = {
        "@odata.type": "#Message.v1_2_1.Message",
        "MessageId": f"{REGISTRY}.{key}",
        "Message": text,
        "MessageArgs": texts,
        "MessageSeverity": severity,
        "Severity": severity,
        "Resolution": resolution,
    }
    if related is not None:
        body["RelatedProperties"] = [related]
    return body


def _entry(severity: str, text: str, resolution: str) -> dict[str, Any]:
    count = sum(f"%{index}" in text for index in range(1, 10))
    return {
        "Description": text,
        "Message": text,
        "Severity": severity,
        "MessageSeverity": severity,
        "NumberOfArgs": count,
        "ParamTypes": ["string"] * count,
        "Resolution": resolution,
    }


REGISTRY_ENTRIES: dict[str, Any] = {key: _entry(*value) for key, value in _MESSAGES.items()}


class RedfishError(Exception):
    """A refusal: an HTTP status and one or more messages, sent as a Redfish error body."""

    def __init__(self, status: int, *messages: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Keep the status, the messages and extra headers."""
        super().__init__(messages[0]["Message"] if messages else str(status))
        self.status = status
        self.messages = list(messages)
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the error body of DSP0266."""
        if len(self.messages) == 1:
            code, text = self.messages[0]["MessageId"], self.messages[0]["Message"]
        else:
            code = f"{REGISTRY}.GeneralError"
            text = "Several errors; see ExtendedInfo."
        return {"error": {"code": code, "message": text, "@Message.ExtendedInfo": self.messages}}


def refuse(status: int, key: str, *args: Any, related: str | None = None) -> RedfishError:
    """Return (to raise) an error with a single message."""
    return RedfishError(status, message(key, *args, related=related))
