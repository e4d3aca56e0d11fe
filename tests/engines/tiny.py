"""Tiny models with seeded bf16 weights, which the golden files and the checks share."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

VOCABULARY = 32


def fill(model, seed):
    """Gives every parameter seeded normal numbers, in the order of the names; norms stay near one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        numbers = torch.randn(parameter.shape, generator=generator)
        # Every tensor has an amax of its own, or wrong scale groups would go unseen.
        spread = 0.02 + 0.06 * torch.rand(1, generator=generator)
        with torch.no_grad():
            parameter.copy_(1 + 0.1 * numbers if "norm" in name else spread * numbers)


def llama(hidden, intermediate, heads, layers=1, tied=False, vocabulary=VOCABULARY, seed=0):
    """A bf16 Llama without grouped queries; `hidden` is a multiple of `heads`."""
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=hidden,
        intermediate_size=intermediate,
        max_position_embeddings=64,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        num_key_value_heads=heads,
        tie_word_embeddings=tied,
        vocab_size=vocabulary,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    fill(model, seed)
    return model


def mixtral(hidden, intermediate, heads, experts, layers=2, vocabulary=VOCABULARY, seed=0):
    """A bf16 Mixtral with two experts per token."""
    config = MixtralConfig(
        architectures=["MixtralForCausalLM"],
        hidden_size=hidden,
        intermediate_size=intermediate,
        max_position_embeddings=64,
        num_attention_heads=heads,
        num_experts_per_tok=2,
        num_hidden_layers=layers,
        num_key_value_heads=heads,
        num_local_experts=experts,
        vocab_size=vocabulary,
    )
    model = MixtralForCausalLM(config).to(torch.bfloat16).eval()
    fill(model, seed)
    return model
