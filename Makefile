# What CI runs, by name. Builds go to a folder outside the checkout, so that a fresh clone finds them again; set
# CARGO_TARGET_DIR to have them elsewhere. All targets work from a fresh clone and ask nothing.

CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/tokenmill
export CARGO_TARGET_DIR ?= $(CACHE)/target
PYTHON ?= python3

BINARY := $(CARGO_TARGET_DIR)/release/tokenmill
# A name for the content of a requirements file and this Python.
digest = $(shell { cat $(1); $(PYTHON) --version; } | $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])')

# Makes the virtual environment $(1) of the requirements $(2), and of $(3) without what those ask for, if it isn't there.
define install
	@if [ ! -f "$(1)/.ready" ]; then \
		echo "installing $(2) into $(1)"; \
		rm -rf "$(1)" && mkdir -p "$(CACHE)" && $(PYTHON) -m venv "$(1)" && \
		"$(1)/bin/python" -m pip install --quiet --disable-pip-version-check -r $(2) && \
		$(if $(3),"$(1)/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r $(3) &&) \
		touch "$(1)/.ready"; \
	fi
endef

REQUIREMENTS := tests/oracle/requirements.txt
REQUIREMENTS_ALONE := tests/oracle/requirements-alone.txt
# A virtual environment for each content of the requirements and each Python.
VENV = $(CACHE)/venv-$(call digest,$(REQUIREMENTS) $(REQUIREMENTS_ALONE))

# The same for the Python package: torch is large, so it is kept as long as the requirements stand.
PYTHON_REQUIREMENTS := python/requirements-test.txt
PYTHON_REQUIREMENTS_ALONE := python/requirements-test-alone.txt
PYTHON_VENV = $(CACHE)/venv-python-$(call digest,$(PYTHON_REQUIREMENTS) $(PYTHON_REQUIREMENTS_ALONE))

# The S3 server of tests/it/s3.rs, by the content of its requirements.
S3_REQUIREMENTS := tests/s3/requirements.txt
S3_VENV = $(CACHE)/venv-s3-$(call digest,$(S3_REQUIREMENTS))

.PHONY: help s3-server test test-rust test-oracle test-python python-venv fuzz fuzz-lock lint quickstart venv clean bench-peers

help:
	@echo "make test        everything that CI runs, apart from lint"
	@echo "make test-rust   the Rust tests alone"
	@echo "make s3-server   install the S3 server that the Rust tests start, into the cache folder"
	@echo "make test-oracle the checks against Hugging Face tokenizers, transformers and trl alone"
	@echo "make test-python the Python package's tests alone, with PyTorch"
	@echo "make fuzz        each fuzz target for FUZZ_SECONDS (20), with what was found before"
	@echo "make lint        cargo fmt --check and clippy, warnings being errors"
	@echo "make quickstart  run configs/quickstart.toml into blocks.npy"
	@echo "make bench-peers PEERS=.. CORPUS=.. TOKENIZERS=..  speed beside other tools"
	@echo "make clean       remove what the quickstart wrote; builds and caches outside the checkout stay"

test: test-rust test-oracle test-python

test-rust: s3-server
	TOKENMILL_TEST_WEED="$(S3_VENV)/bin/weed" cargo test --release

test-oracle: venv
	cargo build --release
	"$(VENV)/bin/python" tests/oracle/check_ids.py --binary "$(BINARY)"
	"$(VENV)/bin/python" tests/oracle/check_templates.py --binary "$(BINARY)"
	"$(VENV)/bin/python" tests/oracle/check_chats.py --binary "$(BINARY)"

# The wheel as users get it is what is tested, from a folder in which the sources don't hide it.
test-python: python-venv
	cargo build --release
	cd python && "$(PYTHON_VENV)/bin/maturin" build --release --strip --quiet --interpreter "$(PYTHON_VENV)/bin/python" --out "$(CARGO_TARGET_DIR)/wheels"
	"$(PYTHON_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall \
		"$(CARGO_TARGET_DIR)"/wheels/tokenmill-*.whl
	cd python && "$(PYTHON_VENV)/bin/python" -m mypy --cache-dir "$(CARGO_TARGET_DIR)/mypy" tokenmill
	cd "$(CARGO_TARGET_DIR)" && TOKENMILL_BINARY="$(BINARY)" PYTHONDONTWRITEBYTECODE=1 "$(PYTHON_VENV)/bin/pytest" -q -p no:cacheprovider \
		-c "$(CURDIR)/python/pyproject.toml" --rootdir "$(CURDIR)/python" "$(CURDIR)/python/tests"

python-venv:
	$(call install,$(PYTHON_VENV),$(PYTHON_REQUIREMENTS),$(PYTHON_REQUIREMENTS_ALONE))

# The fuzz crate is a workspace of its own, of the same locked versions, and only tokenmill itself is compiled anew for it, with
# coverage counters. What a run finds interesting is kept beside the builds; what fails, too.
FUZZ := $(CARGO_TARGET_DIR)/fuzz
FUZZ_SECONDS ?= 20
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard tests/fuzz/targets/*.rs)))

fuzz: fuzz-lock
	RUSTC_WRAPPER="$(CURDIR)/tests/fuzz/rustc.sh" CARGO_INCREMENTAL=0 \
		cargo build --release --manifest-path tests/fuzz/Cargo.toml
	"$(CARGO_TARGET_DIR)/release/seeds" "$(FUZZ)/seeds"
	@set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p "$(FUZZ)/corpus/$$target" "$(FUZZ)/failures"; \
		log="$(FUZZ)/$$target.log"; \
		"$(CARGO_TARGET_DIR)/release/$$target" -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 \
			-malloc_limit_mb=512 -max_len=4096 -artifact_prefix="$(FUZZ)/failures/$$target-" \
			"$(FUZZ)/corpus/$$target" "$(FUZZ)/seeds/$$target" >"$$log" 2>&1 \
			|| { tail -n 60 "$$log"; echo "fuzz: $$target failed; its input is in $(FUZZ)/failures, all output in $$log" >&2; exit 1; }; \
		echo "fuzz: $$target: $$(tail -n 1 "$$log")"; \
	done

fuzz-lock:
	@cp Cargo.lock tests/fuzz/Cargo.lock

lint:
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	cargo fmt --manifest-path tests/fuzz/Cargo.toml --check

quickstart:
	cargo run --release -- run configs/quickstart.toml --out blocks.npy

venv:
	$(call install,$(VENV),$(REQUIREMENTS),$(REQUIREMENTS_ALONE))

s3-server:
	$(call install,$(S3_VENV),$(S3_REQUIREMENTS))

# Beside other tools, where their scripts are: PEERS, CORPUS (english, multi, code) and TOKENIZERS (NAME.json) name the folders.
PEERS ?= ../shared/peers
PEERS_VENV = $(CACHE)/venv-peers
bench-peers:
	@if [ ! -d "$(PEERS)" ]; then echo "no peers at $(PEERS): nothing to compare with"; exit 0; fi; \
	if [ -z "$(CORPUS)" ] || [ -z "$(TOKENIZERS)" ]; then echo "set CORPUS=folder TOKENIZERS=folder"; exit 2; fi; \
	set -e; cargo build --release; \
	if [ ! -f "$(PEERS_VENV)/.ready" ]; then $(PYTHON) -m venv "$(PEERS_VENV)"; \
		"$(PEERS_VENV)/bin/python" -m pip install -q -r benches/peers-requirements.txt; touch "$(PEERS_VENV)/.ready"; fi; \
	"$(PEERS_VENV)/bin/python" benches/peers.py --binary "$(BINARY)" --peers "$(PEERS)" --corpus "$(CORPUS)" --tokenizers "$(TOKENIZERS)"

clean:
	rm -f blocks.npy
