"""The tiny models: one config.json dict for each kind of Gemma 4, in the layout of the real repositories.

Two sizes of each kind. `original` has hidden size 64 and the more interesting layer order. `quantized` has hidden size
128, so that a row of a matrix holds several groups of 32 and 64 and one of 128, and the fewest layers that still hold
every sort of module: its files differ in the format, not in the architecture.
"""

VOCAB = 320
WINDOW = 16
FIRST_MEDIA_ID = VOCAB - 8  # prompts stay below: a media id would need features
SLIDING, FULL = "sliding_attention", "full_attention"


def layer_types(order):
    """`"SSF"` -> two sliding layers, then a full one."""
    return [{"S": SLIDING, "F": FULL}[letter] for letter in order]


def text(model_type, order, **sizes):
    config = dict(
        attention_bias=False, attention_dropout=0.0, attention_k_eq_v=True, bos_token_id=2, dtype="bfloat16",
        enable_moe_block=False, eos_token_id=1, final_logit_softcapping=30.0, global_head_dim=128, head_dim=64,
        hidden_activation="gelu_pytorch_tanh", hidden_size=64, hidden_size_per_layer_input=0, initializer_range=0.02,
        intermediate_size=64, layer_types=layer_types(order), max_position_embeddings=4096, model_type=model_type,
        moe_intermediate_size=None, num_attention_heads=2, num_experts=None, num_global_key_value_heads=1,
        num_hidden_layers=len(order), num_key_value_heads=2, num_kv_shared_layers=0, pad_token_id=0, rms_norm_eps=1e-06,
        rope_parameters={
            FULL: dict(partial_rotary_factor=0.25, rope_theta=1000000.0, rope_type="proportional"),
            SLIDING: dict(rope_theta=10000.0, rope_type="default"),
        },
        sliding_window=WINDOW, tie_word_embeddings=True, top_k_experts=None, use_bidirectional_attention="vision",
        use_cache=True, use_double_wide_mlp=False, vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB,
    )
    assert set(sizes) <= set(config), f"no such text setting: {set(sizes) - set(config)}"
    return config | sizes


def vision():
    return dict(
        attention_bias=False, attention_dropout=0.0, default_output_length=70, dtype="bfloat16", global_head_dim=16,
        head_dim=16, hidden_activation="gelu_pytorch_tanh", hidden_size=32, initializer_range=0.02,
        intermediate_size=32, max_position_embeddings=4096, model_type="gemma4_vision", num_attention_heads=2,
        num_hidden_layers=1, num_key_value_heads=2, patch_size=4, pooling_kernel_size=3, position_embedding_size=32,
        rms_norm_eps=1e-06, rope_parameters=dict(rope_theta=100.0, rope_type="default"), standardize=False,
        use_clipped_linears=True,
    )


def audio():
    return dict(
        attention_chunk_size=12, attention_context_left=13, attention_context_right=0,
        attention_invalid_logits_value=-1000000000.0, attention_logit_cap=50.0, conv_kernel_size=5, dtype="bfloat16",
        gradient_clipping=10000000000.0, hidden_act="silu", hidden_size=32, initializer_range=0.02,
        model_type="gemma4_audio", num_attention_heads=2, num_hidden_layers=1, output_proj_dims=64, residual_weight=0.5,
        rms_norm_eps=1e-06, subsampling_conv_channels=[128, 4], use_clipped_linears=True,
    )


def whole(architecture, model_type, text_config, vision_config=None, audio_config=None):
    return dict(
        architectures=[architecture], audio_config=audio_config, audio_token_id=VOCAB - 4, boa_token_id=VOCAB - 6,
        boi_token_id=VOCAB - 7, dtype="bfloat16", eoa_token_id=VOCAB - 2, eoa_token_index=VOCAB - 2,
        eoi_token_id=VOCAB - 3, eos_token_id=[1, 106], image_token_id=VOCAB - 5, initializer_range=0.02,
        model_type=model_type, text_config=text_config, tie_word_embeddings=True, video_token_id=VOCAB - 1,
        vision_config=vision_config, vision_soft_tokens_per_image=70,
    )


def gemma4(text_config, vision_config=None, audio_config=None):
    return whole("Gemma4ForConditionalGeneration", "gemma4", text_config, vision_config, audio_config)


def e(order, shared, hidden, per_layer, towers):
    """E2B: per-layer embeddings, a tail that reads earlier layers' keys and values and has a double-wide MLP."""
    config = text(
        "gemma4_text", order, attention_k_eq_v=False, hidden_size=hidden, hidden_size_per_layer_input=per_layer,
        num_global_key_value_heads=None, num_key_value_heads=1, num_kv_shared_layers=shared,
        use_bidirectional_attention=None, use_double_wide_mlp=True,
    )
    return gemma4(config, *((vision(), audio()) if towers else ()))


def unified(order, hidden):
    """12B: K = V on full layers, which have fewer KV heads; no towers (and here no embedders for media either)."""
    config = text("gemma4_unified_text", order, hidden_size=hidden)
    return whole("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", config)


def moe(order, hidden, experts, top_k, expert_width):
    """26B-A4B: a dense MLP and routed experts side by side, K = V on full layers."""
    return gemma4(text(
        "gemma4_text", order, hidden_size=hidden, enable_moe_block=True, num_experts=experts, top_k_experts=top_k,
        moe_intermediate_size=expert_width,
    ))


def dense(order, hidden, heads):
    """31B: K = V on full layers, several queries to a KV head."""
    return gemma4(text("gemma4_text", order, hidden_size=hidden, num_attention_heads=heads))


ORIGINAL = {
    # Sliding layer 3 must read layer 1, not 0; full layer 4 reads layer 2.
    "e": e("SSFSF", shared=2, hidden=64, per_layer=32, towers=True),
    "unified": unified("SSSF", hidden=64),
    "moe": moe("SSF", hidden=64, experts=8, top_k=3, expert_width=32),
    "dense": dense("SSF", hidden=64, heads=4),
}


def quantized(kind, towers=False):
    return {
        "e": lambda: e("SFSF", shared=2, hidden=128, per_layer=64, towers=towers),
        "unified": lambda: unified("SF", hidden=128),
        "moe": lambda: moe("SF", hidden=128, experts=4, top_k=2, expert_width=64),
        "dense": lambda: dense("SF", hidden=128, heads=2),
    }[kind]()
