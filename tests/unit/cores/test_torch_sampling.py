"""How the PyTorch core comes to the next token, against transformers' own way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.generation.continuous_batching import cb_logits_processors as theirs
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from resilience.cores.cpu import fast_dtype, is_vllm_for_cpus
from resilience.cores.torch.sampling import COLD, fit_processors, turn_head

WORDS = 11


def manager() -> Any:
    """Return what `fit_processors` looks at, fitted."""
    found = SimpleNamespace(
        logit_processor=SimpleNamespace(logits_processor=[
            theirs.ContinuousBatchingTemperatureLogitsWarper(TemperatureLogitsWarper(0.7)),
            theirs.ContinuousBatchingTopKLogitsWarper(TopKLogitsWarper(5)),
            theirs.ContinuousBatchingTopPLogitsWarper(TopPLogitsWarper(0.9)),
        ]),
        batch_processor=SimpleNamespace(model_runner=SimpleNamespace(do_sample=True)),
    )
    fit_processors(found)
    return found


def processed(made: Any, scores: torch.Tensor, temperatures: list[float]) -> torch.Tensor:
    """Return the scores after temperature, top-k and top-p, the latter two off."""
    rows = scores.size(0)
    heat = torch.tensor(temperatures, dtype=torch.float32).view(torch.int32)
    off = [torch.full((rows,), WORDS, dtype=torch.int32), torch.ones(rows).view(torch.int32)]
    for processor, argument in zip(made.logit_processor.logits_processor, [heat, *off],
                                   strict=True):
        scores = processor(scores, argument)
    return scores


def test_a_step_of_cold_sequences_draws_nothing() -> None:
    made, scores = manager(), torch.randn(3, WORDS)
    assert processed(made, scores, [COLD] * 3).equal(scores)
    assert made.batch_processor.model_runner.do_sample is False
    processed(made, scores, [COLD, 1.0, COLD])
    assert made.batch_processor.model_runner.do_sample is True


def test_a_cold_sequence_among_warm_ones_takes_the_first_of_the_likeliest() -> None:
    scores = torch.randn(2, WORDS)
    scores[0, 3] = scores[0, 8] = 9.0
    shares = processed(manager(), scores.clone(), [COLD, 0.5]).softmax(-1)
    assert shares[0].tolist() == [float(word == 3) for word in range(WORDS)]
    assert torch.allclose(shares[1], (scores[1] / 0.5).softmax(-1))


def test_before_the_batch_exists_a_cold_step_is_as_sure() -> None:
    made = manager()
    made.batch_processor = None
    scores = torch.randn(2, WORDS)
    shares = processed(made, scores.clone(), [COLD, COLD]).softmax(-1)
    assert shares.argmax(-1).equal(scores.argmax(-1)) and shares.max(-1).values.tolist() == [1, 1]


def test_a_step_without_a_new_token_passes() -> None:
    assert processed(manager(), torch.empty(0, WORDS), []).shape == (0, WORDS)


@pytest.mark.parametrize("shape", [(1, 0, 6), (1, 1, 6), (1, 8, 6), (8, 1, 6), (3, 6)])
def test_the_turned_head_gives_the_same_scores(shape: tuple[int, ...]) -> None:
    head = torch.nn.Linear(6, WORDS, bias=False)
    hidden = torch.randn(shape)
    with torch.no_grad():
        before = head(hidden)
        turn_head(SimpleNamespace(get_output_embeddings=lambda: head))
        after = head(hidden)
    assert after.shape == before.shape and torch.allclose(after, before, atol=1e-6)
    assert after.is_contiguous()


@pytest.mark.parametrize(
    "head",
    [None, torch.nn.Linear(6, WORDS), torch.nn.Linear(6, WORDS, bias=False).bfloat16(),
     torch.nn.Identity()],
)
def test_another_head_is_left_as_it_is(head: Any) -> None:
    turn_head(SimpleNamespace(get_output_embeddings=lambda: head))
    assert "forward" not in vars(head or SimpleNamespace())


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [("fpu avx avx2 fma", "float32"), ("fpu avx2 avx512f avx512_bf16", "auto"),
     ("fp asimd bf16", "auto"), (None, "auto")],
)
def test_auto_is_what_the_cpu_multiplies_fast(
    tmp_path: Path, flags: str | None, chosen: str
) -> None:
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"flags : {flags}\n")
    assert fast_dtype("auto", file) == chosen
    assert fast_dtype("bfloat16", file) == "bfloat16"


def test_a_vllm_that_is_not_for_cpus_is_told_apart() -> None:
    assert not is_vllm_for_cpus("no-such-package-of-anybody")
