"""How each vendor calls what Plumbline calls by one name. Data only; one module a vendor, since a module's payload holds Python.

Each `MAP` has

- `vendor`, and `manufacturers`: lower-case beginnings of `ComputerSystem.Manufacturer`,
- `logical`: name -> value -> candidates. A candidate is a mapping of attribute -> acceptable values, best first. The first
  candidate whose first attribute exists on the machine, with one of the values, is taken; its further attributes are set where
  they exist. `*` in a name stands for anything (`PciSlot*LinkSpeed` is one setting for all slots); a suffix that differs from
  board to board (Supermicro's `_3D22`) is left out here,
- `requires`: attribute -> {attribute: value} that must hold for it to be settable, for firmware whose registry does not say so.

Sources: docs/bios.md. The live registry decides: a name or a value that it does not list is never sent.
"""

from __future__ import annotations

from . import dell, hpe, ieit, lenovo, supermicro

MAPS = [ieit.MAP, dell.MAP, hpe.MAP, lenovo.MAP, supermicro.MAP]
