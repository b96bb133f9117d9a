"""The Python behind Plumbline's modules; free of Ansible, so that it is tested as plain Python."""
