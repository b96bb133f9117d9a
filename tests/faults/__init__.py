"""Faults of hardware, injected into captured machines: each with the check that must find it and what that check must say."""
