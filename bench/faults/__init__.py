"""The benchmark of planted faults: which damage do `scan` and `compare` find in real models, and where?

python -m bench.faults plant            plant every fault in every subject, scan, and keep the surveys (long)
python -m bench.faults judge            score the kept surveys: bench/faults.json and docs/faults.md
python -m bench.faults peers            ask other tools about the same faults: bench/faults_peers.json, docs/faults.md
"""
