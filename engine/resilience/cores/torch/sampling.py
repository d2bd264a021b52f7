"""From hidden states to the next token: what transformers does for every step, less what a CPU
pays for in vain.

Each change puts a subclass or a function in the place of one of transformers' own, where that one
is exactly what was expected; anything else is left as it is.
"""

from __future__ import annotations

from typing import Any

# A temperature that leaves only the likeliest token; a request that asks for less gets it. Scores
# over much less are infinite, and one sequence with infinite scores ends the thread for all.
COLD = 1e-5


def fit_processors(manager: Any) -> None:
    """Give a manager the processors of `processors_for`, in the places of its own."""
    found = manager.logit_processor.logits_processor
    temperature, *others = processors_for(manager)
    for index, processor in enumerate(found):
        if type(processor) is temperature.__base__:
            found[index] = temperature(processor)
        for kind in others:
            if type(processor) is kind.__base__:
                found[index] = kind(processor)


def processors_for(manager: Any) -> tuple[Any, Any, Any]:
    """Return the processors for temperature, top-k and top-p, as classes.

    Top-k and top-p each sort the whole vocabulary for every sequence; a step in which no request
    asks for them leaves them out. A cold sequence takes its likeliest token, the first among
    equals; a step of such sequences draws nothing, which would take random numbers for the whole
    vocabulary.
    """
    import torch
    from transformers.generation.continuous_batching import cb_logits_processors as theirs

    class Temperature(theirs.ContinuousBatchingTemperatureLogitsWarper):  # type: ignore[misc]
        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            cold = tensor_arg[: scores.size(0)].view(dtype=torch.float32) <= COLD
            still = bool(cold.all())
            runner = getattr(manager.batch_processor, "model_runner", None)
            if runner is not None:
                runner.do_sample = not still
            if still and runner is not None:
                return scores
            warmed = super().__call__(scores, tensor_arg)
            return _likeliest(scores, warmed, cold) if bool(cold.any()) else warmed

    class TopK(theirs.ContinuousBatchingTopKLogitsWarper):  # type: ignore[misc]
        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            idle = bool((tensor_arg[: scores.size(0)] >= scores.size(1)).all())
            return scores if idle else super().__call__(scores, tensor_arg)

    class TopP(theirs.ContinuousBatchingTopPLogitsWarper):  # type: ignore[misc]
        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            shares = tensor_arg[: scores.size(0)].view(dtype=torch.float32)
            return scores if bool((shares >= 1).all()) else super().__call__(scores, tensor_arg)

    return Temperature, TopK, TopP


def _likeliest(scores: Any, warmed: Any, cold: Any) -> Any:
    """Return `warmed` with nothing but the likeliest token in the rows that are `cold`."""
    best = scores[cold].argmax(dim=-1, keepdim=True)
    warmed[cold] = scores.new_full((best.size(0), scores.size(1)), float("-inf")).scatter_(
        1, best, 0.0
    )
    return warmed


def turn_head(model: Any) -> None:
    """Let a float32 model multiply its vocabulary by the hidden states and not the other way round.

    For a few rows BLAS takes two to three times as long over the large matrix on the right.
    """
    import torch

    head: Any = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or getattr(head, "bias", None) is not None:
        return
    if head.weight.dtype is not torch.float32 or head.weight.device.type != "cpu":
        return

    def scores(hidden: Any) -> Any:
        rows = hidden.reshape(-1, hidden.size(-1))
        found = torch.mm(head.weight, rows.t()).t().contiguous()
        return found.view(*hidden.shape[:-1], head.weight.size(0))

    setattr(head, "forward", scores)  # noqa: B010 - a type checker sees a method of its own
