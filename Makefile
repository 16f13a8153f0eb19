# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3.11
VENV   ?= .venv
RUN    := $(VENV)/bin/python
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
# Busy-waiting OpenMP threads slow small batches manifold beside any other process.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: lock locked sbom audit campaign demo test test-fast test-for test-extras test-oldest test-newest test-wheel coverage browser check format \
  bench docs wheel clean help

help:
	@echo "make demo         explain a few sentences with the embedded model (offline once set up)"
	@echo "make test         format, lint, types and all tests"
	@echo "make test SEED=N  the same in the order of an earlier run"
	@echo "make test-extras  the tests that need duckdb, datasets, S3, Google Storage, Spark, Jupyter or spaCy"
	@echo "make test-fast    official numbers, twins and laws alone, in a minute"
	@echo "make test-for     the tests of one module: make test-for M=explaining/batches"
	@echo "make test-oldest  a small suite on the oldest versions that are allowed"
	@echo "make test-newest  the fast tier on the newest transformers"
	@echo "make test-wheel   the wheel in an environment of its own"
	@echo "make coverage     which lines the fast tier runs"
	@echo "make campaign     kill, starve and damage every command for half an hour: is anything lost?"
	@echo "make check        format, lint and types only"
	@echo "make bench        speed and memory, as ratios to the bare model"
	@echo "make docs         build the guide into site/"
	@echo "make lock         every package of the tests by version and hash, into requirements.lock"
	@echo "make sbom         bill of materials as CycloneDX JSON, into dist/sbom.json"
	@echo "make audit        known weaknesses of what is locked, where a list of them can be reached"

demo: $(VENV)/.demo
	$(OFFLINE) $(RUN) examples/demo.py
	@echo "Next, a text of your own: $(VENV)/bin/tokenlight explain 'A charming and often affecting journey, though the ending is too long.' --trust"

test: check browser
	$(OFFLINE) $(RUN) -m pytest -n $(WORKERS) --dist loadgroup -m "not extras" $(ORDER)

# The order of the tests is random; its seed stands at the top of a run and repeats it: make test SEED=N.
ORDER := $(if $(SEED),--order-seed=$(SEED))
WORKERS ?= 2

# Libraries that read what tokenlight writes, Jupyter and spaCy, in an environment of their own; none may be missing.
test-extras: $(VENV)-extras/.extras
	TOKENLIGHT_EXTRAS=1 $(OFFLINE) $(VENV)-extras/bin/python -m pytest -m extras $(ORDER) \
	  tests/unit/scale/test_file_job.py tests/unit/attention_heads/test_parsing.py tests/project/test_tutorials.py

$(VENV)-extras/.extras: pyproject.toml constraints.txt
	$(MAKE) VENV=$(VENV)-extras $(VENV)-extras/.demo
	$(VENV)-extras/bin/python -m pip install --quiet --constraint constraints.txt \
	  --editable '.[cli,plots,bench,baselines,vision,web,gguf,parse]' --group test --group extras
	touch $@

# Kills, full disks, cut pipes, damaged files, hostile folders, fuzzed calls: half an hour, not in CI.
CAMPAIGN ?=
campaign: $(VENV)/.dev
	$(OFFLINE) OMP_NUM_THREADS=1 $(RUN) -m tests.campaign $(CAMPAIGN)

# Official numbers, second writings, laws and house rules: what a change of a formula breaks first.
FAST := tests/golden tests/twins tests/contract tests/project/test_code_rules.py tests/unit/test_registry.py
test-fast: $(VENV)/.dev
	$(OFFLINE) $(RUN) -m pytest -n 2 --dist loadgroup $(FAST)

# The tests of one module or one package: `make test-for M=explaining/batches`, `make test-for M=plots`.
# A module whose name begins with an underscore is named with or without it. Where no file has its name,
# tests/unit/TEST_INDEX.md lists which files test it.
NAMED_TESTS = $(wildcard tests/unit/$(M)/ $(dir tests/unit/$(M))test_$(patsubst _%,%,$(notdir $(M)))*.py)
LISTED_TESTS = $(shell sed -n 's/^| `$(subst /,\/,$(M))` | [^|]* | \(.*\) |$$/\1/p' tests/unit/TEST_INDEX.md | tr -d '`')
TESTS_OF = $(sort $(NAMED_TESTS) $(LISTED_TESTS))
test-for: $(VENV)/.dev
	@test -n "$(M)" || { echo "Name a module or a package: make test-for M=explaining/batches"; exit 2; }
	@test -n "$(TESTS_OF)" || { echo "tests/unit/TEST_INDEX.md lists no module or package $(M)"; exit 2; }
	$(OFFLINE) $(RUN) -m pytest -q $(TESTS_OF)

# 46 % of all statements: lrp 97, methods 95, metrics 90, model, hooks, trace, perturb and accel 86 %; of web
# and bench none, which `make test` runs.
coverage: $(VENV)/.coverage
	$(OFFLINE) $(RUN) -m pytest -n 2 --dist loadgroup --cov=tokenlight --cov-report=term:skip-covered $(FAST)

# The oldest versions that pyproject.toml allows, really installed: does what it promises hold there?
OLDEST := $(VENV)-oldest/bin/python
test-oldest: $(VENV)-oldest/.made
	$(OFFLINE) $(OLDEST) -m tokenlight explain 'Never dull.' --trust
	$(OFFLINE) $(OLDEST) -m pytest -q -p no:cacheprovider -o filterwarnings=default $(SMOKE)
SMOKE := tests/unit/test_registry.py tests/unit/data/test_head.py tests/unit/data/test_span_target.py tests/unit/explainer/test_explainer.py \
  tests/unit/cli/test_explain.py tests/unit/files/test_columns.py tests/unit/metrics \
  tests/unit/evaluation/test_results.py tests/unit/evaluation/test_run.py tests/unit/files/test_tables.py \
  tests/unit/plots/test_figures.py tests/unit/web/test_app.py tests/unit/web/test_tasks.py \
  tests/unit/bench/test_plan.py tests/unit/methods/test_baseline_methods.py

$(VENV)-oldest/.made: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest || python3 -m venv $(VENV)-oldest
	$(OLDEST) -m pip install --quiet --constraint constraints-oldest.txt --editable \
	  '.[cli,plots,bench,baselines,vision,web,gguf]' pytest pytest-xdist hypothesis httpx
	touch $@

# The newest transformers there is, in an environment of its own: a release elsewhere is met early.
test-newest:
	$(MAKE) VENV=$(VENV)-newest $(VENV)-newest/.dev
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade transformers
	$(MAKE) VENV=$(VENV)-newest test-fast

# What users install, away from the checkout: the wheel with its models, types and templates.
test-wheel: wheel
	$(PYTHON) -m venv --clear $(VENV)-wheel || python3 -m venv --clear $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VENV)-wheel/bin/python -m pip install --quiet --constraint constraints.txt \
	  "$$(ls dist/tokenlight-*.whl)[cli,plots,bench]"
	mkdir -p build/away && cd build/away && $(OFFLINE) $(abspath $(VENV)-wheel)/bin/tokenlight \
	  explain 'Never dull.' --trust --html page.html
	cd build/away && $(abspath $(VENV)-wheel)/bin/python -c "from importlib.resources import files; \
	  assert files('tokenlight').joinpath('py.typed').is_file()"

check: $(VENV)/.dev
	$(RUN) -m ruff format --check src tests examples benchmarks training
	$(RUN) -m ruff check src tests examples benchmarks training
	$(RUN) -m mypy

# Debian's Chromium for the tests of the page; where it cannot be had, they skip and say what to run.
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core || \
	    { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core; }; }; } \
	  || echo "No Chromium: the browser tests will skip. Run as root: apt-get install chromium"

format: $(VENV)/.dev
	$(RUN) -m ruff format src tests examples benchmarks training
	$(RUN) -m ruff check --fix src tests examples benchmarks training

bench: $(VENV)/.dev
	$(OFFLINE) $(RUN) benchmarks/model_speed.py
	$(OFFLINE) $(RUN) benchmarks/answer_cost.py
	$(OFFLINE) $(RUN) benchmarks/one_pass_cost.py
	$(OFFLINE) $(RUN) benchmarks/relevance_cost.py
	$(OFFLINE) $(RUN) benchmarks/perturbation_throughput.py
	$(OFFLINE) $(RUN) benchmarks/baseline_cost.py
	$(OFFLINE) $(RUN) benchmarks/scale.py factor
	$(OFFLINE) $(RUN) benchmarks/serve_load.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

wheel: $(VENV)/.python
	rm -f dist/tokenlight-*.whl
	$(RUN) -m pip wheel --quiet --no-deps --wheel-dir dist .

# Every package the tests use, by version and hash, from what pip resolves here.
lock: $(VENV)/.python
	mkdir -p build
	$(RUN) -m pip install --quiet --dry-run --ignore-installed --report build/lock.json \
	  --constraint constraints.txt torch '.[cli,plots,bench,baselines,vision,web,gguf]' --group test
	$(RUN) -m tests.tools.supply_chain lock build/lock.json

# The tests' packages from the lock alone: pip refuses a file whose hash is another.
locked: $(VENV)/.python
	$(RUN) -m pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(RUN) -m pip install --quiet --no-deps --editable .

sbom: $(VENV)/.dev
	mkdir -p dist
	$(RUN) -m tests.tools.supply_chain sbom dist/sbom.json

# Known weaknesses of what is locked, where a list of them can be reached; else it says so and passes.
audit: $(VENV)/.dev
	@mkdir -p build && rm -f build/audit.json
	@test -x $(VENV)-audit/bin/pip-audit || { python3 -m venv $(VENV)-audit && \
	  $(VENV)-audit/bin/pip install --quiet pip-audit; } || true
	@sed 's/==\([^ +]*\)+[^ ]*/==\1/; s/ \\$$//; /--hash/d' requirements.lock > build/audit.txt
	@$(VENV)-audit/bin/pip-audit --disable-pip --no-deps --timeout 15 --progress-spinner off \
	  --requirement build/audit.txt --format json --output build/audit.json > build/audit.log 2>&1 || true
	@$(RUN) -m tests.tools.supply_chain audited build/audit.json

clean:
	rm -rf build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Torch comes first and by its exact pin, so that no later step pulls another build of it.
$(VENV)/.python:
	$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml constraints.txt
	$(RUN) -m pip install --quiet --constraint constraints.txt torch
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[cli,plots]'
	touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml constraints.txt
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[cli,plots,bench,baselines,vision,web,gguf]' --group test
	touch $@

$(VENV)/.coverage: $(VENV)/.dev
	$(RUN) -m pip install --quiet --constraint constraints.txt --group coverage
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(RUN) -m pip install --quiet --constraint constraints.txt --group docs
	touch $@
