"""How often the paired bootstrap interval of drift holds the true drift, in simulated sets whose truth is known.

    python benchmarks/coverage.py            1,000 sets a row, 2,000 resamples each, both cores: a few minutes

A set is drawn like this: every utterance has a length and a difficulty, which both sides feel alike; the baseline gets
each token wrong with a chance that grows with difficulty; so do the chances that the candidate breaks a right token or
mends a wrong one. Difficulty is 1 on average and knows nothing of length, so true drift is broken less mended.
Rows that are not `promised` show where the interval can be too narrow: hardly any change, or a rare and large one.
Writes benchmarks/results/coverage.json.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from svtool.wer.score import paired_bootstrap

RESULTS = Path(__file__).parent / "results" / "coverage.json"
SETS, RESAMPLES = 1000, 2000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """Chances are per token of the reference."""

    name: str
    utterances: int
    lengths: str  # commands | sentences | characters
    wrong: float  # of the baseline
    broken: float
    mended: float
    alike: bool = False  # all utterances are equally difficult
    lost: float = 0.0  # chance that the candidate loses a whole utterance
    promised: bool = True

    @property
    def drift_points(self) -> float:
        return 100.0 * ((self.broken - self.mended) * (1 - self.lost) + (1 - self.wrong) * self.lost)

    @property
    def disagreement_percent(self) -> float:
        return 100.0 * ((self.broken + self.mended) * (1 - self.lost) + self.lost)


ROWS = [
    Row("commands, all alike, no drift", 500, "commands", 0.05, 0.01, 0.01, alike=True),
    Row("commands, no drift", 500, "commands", 0.05, 0.01, 0.01),
    Row("sentences, drift at the budget", 500, "sentences", 0.10, 0.0125, 0.0075),
    Row("sentences, only broken", 500, "sentences", 0.05, 0.02, 0.0),
    Row("characters, drift above the budget", 500, "characters", 0.05, 0.02, 0.01),
    Row("commands, much disagreement", 500, "commands", 0.08, 0.03, 0.02),
    Row("sentences, 1,000", 1000, "sentences", 0.05, 0.0125, 0.0075),
    Row("sentences, 3,000", 3000, "sentences", 0.05, 0.01, 0.01),
    Row("few utterances", 50, "commands", 0.05, 0.01, 0.01, promised=False),
    Row("little disagreement", 500, "commands", 0.05, 0.0005, 0.0, promised=False),
    Row("one in 300 utterances lost whole", 500, "sentences", 0.05, 0.01, 0.01, lost=1 / 300, promised=False),
]
_DIFFICULTIES, _SHARES = (0.2, 1.0, 5.0), (0.6, 0.28, 0.12)  # 1 on average


def draw(row: Row, generator: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Errors of the baseline, errors of the candidate, tokens: i64[N] each."""
    size = row.utterances
    match row.lengths:
        case "commands":
            tokens = generator.integers(2, 9, size)
        case "sentences":
            tokens = np.maximum(1, generator.lognormal(2.3, 0.7, size).astype(np.int64))
        case _:
            tokens = generator.integers(6, 41, size)
    hard = np.ones(size) if row.alike else generator.choice(_DIFFICULTIES, size, p=_SHARES)
    wrong = generator.binomial(tokens, row.wrong * hard)
    broken = generator.binomial(tokens - wrong, row.broken * hard / (1 - row.wrong * hard))
    candidate = wrong + broken - generator.binomial(wrong, row.mended / row.wrong)
    return wrong, np.where(generator.random(size) < row.lost, tokens, candidate), tokens


def simulate(row: Row, sets: int = SETS, resamples: int = RESAMPLES) -> dict[str, Any]:
    generator = np.random.default_rng(20)
    below = above = 0
    for number in range(sets):
        drift = paired_bootstrap(*draw(row, generator), resamples=resamples, seed=number)
        assert drift is not None
        below += drift.high < row.drift_points
        above += drift.low > row.drift_points
    return {
        **asdict(row),
        "drift_points": round(row.drift_points, 4),
        "disagreement_percent": round(row.disagreement_percent, 4),
        "sets": sets,
        "resamples": resamples,
        "covered_percent": round(100.0 * (sets - below - above) / sets, 2),
        "interval_too_low_percent": round(100.0 * below / sets, 2),
        "interval_too_high_percent": round(100.0 * above / sets, 2),
    }


def main() -> None:
    began = time.monotonic()
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        rows = list(pool.map(simulate, ROWS))
    for row in rows:
        print(f"{row['covered_percent']:6.2f} %  {row['name']}", file=sys.stderr)
    document = {
        "what": "share of simulated sets whose 95 % paired bootstrap interval of drift holds the true drift",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "wall_s": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
