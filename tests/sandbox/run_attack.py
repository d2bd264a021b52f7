"""Run attack files through the real sandbox and print what came of each.

    python tests/sandbox/run_attack.py FILE… [--context ctx.json]

One line each: file, outcome (and DENIED or CONTAINED, the corpus' words for it), verdict, detail.
`mode: kernel` in a file's header runs it as plain Python inside the locked worker, which must stop
it alone. Exit code 0 if every outcome is one that the file's `# expect:` line accepts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(Path(__file__).resolve().parent)]
attacks = importlib.import_module("attacks")


def main() -> int:
    """Parse arguments, run, print; see the module's text."""
    parser = argparse.ArgumentParser(description="run attack files through the real sandbox")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--context", type=Path, default=None)
    arguments = parser.parse_args()
    context = json.loads(arguments.context.read_text()) if arguments.context else _context()
    chosen = [attacks.read_attack(path) for path in arguments.files]
    outcomes = attacks.run_all(chosen, context)
    good = True
    for attack in chosen:
        outcome = outcomes[attack.name]
        passed = attacks.as_expected(attack, outcome)
        good = good and passed
        pwned = isinstance(outcome.result, dict) and "pwned" in outcome.result
        words = [outcome.outcome]
        if "DENIED" in attack.expect and passed:
            words.append("(DENIED)")
        if outcome.outcome == "ok" and not pwned:
            words.append("(CONTAINED)")
        shown = f"pwned: {outcome.result['pwned']}" if pwned else outcome.detail or ""
        print("\t".join([attack.name, " ".join(words), "held" if passed else "NOT HELD", shown]))
    return 0 if good else 1


def _context() -> dict[str, object]:
    corpus = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus"))
    path = corpus / "udf_context.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"metrics": {}, "labels": {}}


if __name__ == "__main__":
    sys.exit(main())
