# The two commands: `make demo` and `make test`. Everything the lab does is in lab/ (python -m lab --help); see docs/lab.md.
# Settings, also on the command line: LAB_NAME, LAB_SSH_PORT, LAB_API_PORT, LAB_BMC_PORT, LAB_GATEWAY_PORT, PYTHON (3.11 or newer); LAB_VM_SSH_PORT,
# LAB_VM_BMC_PORT, LAB_VM_IPMI_PORT for the virtual bare metal (docs/lab-vm.md).
PYTHON ?= python3
LAB := .venv/bin/python -m lab
# Taking down must work whether or not .venv is there.
ANY_PYTHON = $(or $(wildcard .venv/bin/python),$(PYTHON))
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo lab lab-down lab-vm lab-vm-down clean distclean packages venv venv-dev test test-yuan test-e2e test-vm lock

help: ## What there is
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: lab ## Provision the lab's node, serve a model on it, measure and judge it
	@. lab/activate && ansible-playbook -i inventories/lab site.yml
	@$(LAB) ask

lab: packages venv ## Bring the lab up: a node (a container with systemd) and its BMC
	@$(LAB) up

lab-down: ## Stop the lab; the node keeps its disk, and make lab starts it again
	@$(ANY_PYTHON) -m lab down

lab-vm: venv ## Build and start the virtual bare metal: a QEMU machine that really reboots
	@$(PYTHON) -m lab packages --vm
	@$(LAB) vm up

lab-vm-down: ## Stop it; it keeps its disk, and make lab-vm starts it again
	@$(ANY_PYTHON) -m lab vm down

clean: ## Take the lab down: nothing is left running, and the node is gone
	@$(ANY_PYTHON) -m lab clean

distclean: ## And remove what was made: images, caches, .venv, the lab's keys
	@$(PYTHON) -m lab purge

packages: # Distribution packages, where any is missing
	@$(PYTHON) -m lab packages

venv: ## The controller's virtual environment, from requirements.txt
	@$(PYTHON) -m lab packages --controller
	@$(PYTHON) -m lab venv

venv-dev: packages ## The same with what the tests need, from requirements-dev.txt
	@$(PYTHON) -m lab venv --dev

test: venv-dev ## Linters, unit tests, molecule
	@$(PYTHON) -m lab packages --gateway
	@$(PYTHON) -m lab packages --tests
	@tests/run.sh

test-yuan: venv-dev ## Tests in the engine's Python: the Yuan plugin in a real vLLM, checkpoints, quantisation
	@$(PYTHON) -m lab packages --engine
	@tests/yuan.sh

test-e2e: venv-dev ## The demo end to end, as a test
	@.venv/bin/python -m pytest --verbose tests/e2e

test-vm: venv-dev ## The stages from survey to verify on the virtual bare metal, with one restart
	@$(PYTHON) -m lab packages --vm
	@.venv/bin/python -m pytest --verbose -x -s tests/vm

lock: venv-dev ## Renew requirements.txt and requirements-dev.txt
	@$(LAB) lock
