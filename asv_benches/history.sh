#!/usr/bin/env bash
# The history of speed: `asv_benches/history.sh measure` builds and measures the commits of history/commits.txt that this
# machine has not measured yet, `asv_benches/history.sh publish FOLDER` makes pages of all results and prints what became
# slower, by asv's step detection. Close other programs before measuring; `asv --config history.conf.json machine`
# names the machine once.
set -euo pipefail
folder=${2:+$(mkdir -p "$2" && cd "$2" && pwd)}
cd "$(dirname "$0")"
case ${1:-} in
  measure)
    asv --config history.conf.json run HASHFILE:history/commits.txt --skip-existing --show-stderr \
      --attribute 'repeat=(3, 7, 2.0)' \
      -b "Skce.time_skce\(10000, (2|10|100|1000), '(float64|float32)', 2, 'unbiased'\)" \
      -b "Memory.peakmem_skce\(10000, 'unbiased'\)" -b Overhead -b Import \
      -b "TestMethods.time_test\('(exact|bootstrap|spectrum|features)', 2\)" -b "BinaryReplicates.*\(100000, 2\)" \
      -b "CkceMethods.*\('cg', 2\)" -b "TestLocations.*'ucme', 2\)" ||
      [ $? = 2 ]  # benchmarks of what an old version lacks fail
    # asv lists all benchmarks there are. Pages are to show, and to open with, what was measured.
    python3 - history <<'PYTHON'
import itertools, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
seen = {}
for file in folder.glob("*/*-*.json"):
    for name, (values, params, *_) in json.loads(file.read_text())["results"].items():
        for value, case in zip(values or [], itertools.product(*params)):
            if value is not None and value == value:
                for values_seen, parameter in zip(seen.setdefault(name, [set() for _ in params]), case):
                    values_seen.add(parameter)
listed = json.loads((folder / "benchmarks.json").read_text())
measured = {name: about for name, about in listed.items() if name in seen or name == "version"}
for name, values_seen in seen.items():
    params = measured[name]["params"]
    measured[name]["params"] = [[v for v in every if v in some] for every, some in zip(params, values_seen)]
(folder / "benchmarks.json").write_text(json.dumps(measured, indent=1) + "\n")
PYTHON
    ;;
  publish)
    asv --config history.conf.json publish --no-pull --html-dir "$folder"
    python3 - "$folder/regressions.json" <<'PYTHON'
import json, sys
regressions = json.load(open(sys.argv[1]))["regressions"]
print(f"{len(regressions)} regressions")
for name, _, _, _, last, best, jumps in regressions:
    print(f"  {name}: {last:.4g}, {last / best - 1:.0%} above the best, {best:.4g}; {len(jumps)} steps up")
PYTHON
    ;;
  *)
    echo "usage: asv_benches/history.sh measure | publish FOLDER" >&2
    exit 2
    ;;
esac
