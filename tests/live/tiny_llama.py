"""A Llama with random weights, its tokenizer and one LoRA adapter, made in a second or two.

It serves real requests on a CPU and says nothing sensible: the live tests count tokens, steps and
headers, never words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HIDDEN = 128
LAYERS = 2
HEADS = 2
VOCABULARY = 320
CONTEXT = 4096
RANK = 8


def make_model(folder: Path) -> Path:
    """Write the model to `folder` and return it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=False,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    _make_tokenizer(folder)
    return folder


def _make_tokenizer(folder: Path) -> None:
    """One token a byte: every text works and its length is known."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>",
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    )
    fast.save_pretrained(folder)


def make_adapter(folder: Path) -> Path:
    """Write a LoRA adapter with weights large enough to change what the model says."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(11)
    weights = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator)
            weights[f"{stem}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny", "modules_to_save": None, "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
