"""The virtual bare metal: a QEMU machine that boots, reboots and has DIMMs, PCIe links and a BMC of its own (docs/lab-vm.md)."""
