"""A Redfish BMC simulator whose BIOS settings wait for the next reset, as on real servers."""
