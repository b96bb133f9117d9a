"""The embedded lab: a systemd node in a container and a simulated BMC, both on loopback.

``python -m lab up|down|status|power`` is the whole interface; ``make`` calls nothing else. Everything but the TLS
certificates needs the standard library only, because the first commands run before the virtual environment exists.
"""
