"""Documentation that the redfish_* modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of the connection to a BMC, and what the modules have in common."""

    DOCUMENTATION = r"""
options:
  base_url:
    description: Address of the BMC's Redfish service, for instance V(https://bmc.example:443).
    type: str
    required: true
  username:
    description: Account of the BMC. Staging and restarting need the role Operator or Administrator.
    type: str
    required: true
  password:
    description: Its password.
    type: str
    required: true
  ca_file:
    description:
      - PEM file on the controller with the CA that signed the BMC's certificate.
      - Unset, the CAs of the controller's Python (certifi) are trusted.
    type: path
  validate_certs:
    description: Whether the BMC's certificate is checked. V(false) leaves the password open to whoever can listen in.
    type: bool
    default: true
  timeout_seconds:
    description: >-
      How long one answer may take, and how long a BMC that says 502, 503 or 504 is asked again (in the rhythm of its
      C(Retry-After)).
    type: float
    default: 30
  system_id:
    description: C(Id) of the computer system. Needed only where the BMC manages several.
    type: str
    default: ''
requirements:
  - sushy >= 5.14 (on the host that runs the module)
notes:
  - Runs on the controller (C(delegate_to) localhost), which must reach the BMC.
  - The session that it opens at the BMC is closed at the end, after errors too.
  - Proxies and C(.netrc) of the environment are not used.
"""
