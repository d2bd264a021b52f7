"""The data set of the benchmark: generated once, then as a recording, as TSDB blocks, and in
VictoriaMetrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import serving

from resilience.promql.storage import ABSENT
from resilience.samples import labels_of
from resilience.sources.recording import RecordingMeta, write
from resilience.sources.store import Group, MemoryStore

Say = Callable[[str], None]


@dataclass(frozen=True)
class DataSet:
    """Where the generated data lies."""

    folder: Path

    @property
    def recording(self) -> Path:
        return self.folder / "recording.parquet"

    @property
    def labels(self) -> Path:
        return self.folder / "labels.json"

    def blocks(self, promtool: Path, say: Say) -> Path:
        """Return a Prometheus data folder, made from the generated text once."""
        target = self.folder / "blocks"
        if not (target / "done").exists():
            say("loading Prometheus …")
            shutil.rmtree(target, ignore_errors=True)
            for text in sorted((self.folder / "om").glob("*.om")):
                subprocess.run(
                    [promtool, "tsdb", "create-blocks-from", "openmetrics", text, target],
                    check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            (target / "done").touch()
        return target

    def import_into_victoria(self, command: list[str], url: str, data: Path, say: Say) -> None:
        if (data / "done").exists():
            return
        say("loading VictoriaMetrics …")
        with serving(command, url, "/health"):
            for body in self._lines():
                request = urllib.request.Request(f"{url}/api/v1/import", body, method="POST")
                with urllib.request.urlopen(request, timeout=600):
                    pass
            with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=600):
                pass
        (data / "done").touch()

    def _lines(self) -> Iterator[bytes]:
        """Yield VictoriaMetrics' JSON lines, one pod at a time."""
        arrays = np.load(self.folder / "rec.npz")
        for i, labels in enumerate(json.loads(self.labels.read_text())):
            times, values = arrays[f"t{i}"], arrays[f"v{i}"]
            lines: list[str] = []
            for metric, row in zip(labels, values, strict=True):
                there = ~np.isnan(row)
                lines.append(json.dumps({
                    "metric": metric, "values": row[there].tolist(),
                    "timestamps": times[there].tolist(),
                }))
            yield "\n".join(lines).encode()


def prepare(bench: Path, folder: Path, pods: int, hours: int, say: Say) -> DataSet:
    """Generate the data set unless it is there, and write our recording of it."""
    stamp = folder / f"{pods}x{hours}"
    data = DataSet(folder)
    if not stamp.exists():
        say(f"generating {pods} pods x {hours} h …")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        environment = {**os.environ, "PODS": str(pods), "HOURS": str(hours)}
        command = [sys.executable, str(bench / "gen_recording.py"), str(folder)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        _record(data)
        stamp.touch()
    return data


def _record(data: DataSet) -> None:
    arrays = np.load(data.folder / "rec.npz")
    groups: list[Group] = []
    for i, labels in enumerate(json.loads(data.labels.read_text())):
        times, values = arrays[f"t{i}"], arrays[f"v{i}"]
        values[np.isnan(values)] = ABSENT
        seqs = np.arange(1, len(times) + 1, dtype=np.int64)
        groups.append(Group(times, seqs, tuple(labels_of(x) for x in labels), values))
    store = MemoryStore.from_groups(groups)
    write(data.recording, store, [], RecordingMeta("generated", scrape_interval_ms=15_000))
